"""The images run as the Kubernetes manifests start them: command, user, file systems, certificates, probes."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.coordinator.cli.certs import certs
from services.coordinator.cli.shared.exit_codes import ExitCode
from tests.e2e.compose_stack import wait_until, why_not
from tests.support.manifests import Pod, dockerfile, pods
from tests.support.repository import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]

OVERLAY = "cpu-dev"
COORDINATOR_PORT = 50050


def docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command of docker."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, (
        f"docker {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done


@dataclass(frozen=True)
class Container:
    """A container of a pod, as a node would start it."""

    name: str
    pod: Pod

    def exec(self, probe: str) -> int:
        """Runs the command of a probe or a hook inside; returns its exit code."""
        section = self.pod.container.get(probe) or self.pod.container["lifecycle"][probe]
        return docker("exec", self.name, *section["exec"]["command"], check=False).returncode

    @property
    def logs(self) -> str:
        """What it has written."""
        done = docker("logs", self.name)
        return done.stdout + done.stderr


def start(pod: Pod, folder: Path, network: str) -> Container:
    """Starts the container of a pod, with an empty folder for each volume; its secret is from `shoal certs`."""
    container, security = pod.container, pod.spec["securityContext"]
    docker("build", "--network=host", "-f", str(dockerfile(pod.component)), "-t", container["image"], str(ROOT))
    name = f"shoal-{pod.component}-{os.getpid()}"
    user = f"{security['runAsUser']}:{security['runAsGroup']}"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    options = [f"--name={name}", f"--network={network}", f"--network-alias={pod.component}", f"--user={user}"]
    options += ["--read-only", "--security-opt=no-new-privileges:true"]
    options += [f"--cap-drop={capability}" for capability in container["securityContext"]["capabilities"]["drop"]]
    if container["securityContext"].get("seccompProfile", {}).get("type") == "Unconfined":
        options += ["--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
    options += [f"--env={key}={value}" for key, value in pod.environment().items()]
    secrets = {volume["name"] for volume in pod.spec["volumes"] if "secret" in volume}
    for mount in container["volumeMounts"]:
        if mount["name"] in secrets:
            options.append(f"--volume={_secret(folder / pod.component, security['fsGroup'])}:{mount['mountPath']}:ro")
        else:
            volume = _volume(folder / "volumes" / pod.component / mount["name"], security["fsGroup"])
            options.append(f"--volume={volume}:{mount['mountPath']}")
    if pod.component == "coordinator":
        options.append(f"--publish=127.0.0.1::{COORDINATOR_PORT}")
    assert "command" not in container
    docker("run", "--detach", *options, container["image"], *container.get("args", ()))
    return Container(name, pod)


def _volume(folder: Path, group: int) -> Path:
    """Makes a folder as a node makes an empty volume for fsGroup: the owner is root, and the group may write."""
    folder.mkdir(parents=True)
    os.chown(folder, 0, group)
    folder.chmod(0o2770)
    return folder


def _secret(folder: Path, group: int) -> Path:
    """Gives the files the owner, the group and the mode that a node gives those of a secret."""
    for file in folder.iterdir():
        os.chown(file, 0, group)
        file.chmod(0o440)
    return folder


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Container]]:
    """The coordinator and the reward service, and their folder of certificates."""
    folder = tmp_path_factory.mktemp("certificates")
    certs(folder, ["coordinator"])
    network = f"shoal-manifests-{os.getpid()}"
    docker("network", "create", network)
    found: dict[str, Container] = {}
    try:
        for component in ("coordinator", "reward"):
            found[component] = start(pods(OVERLAY)[component], folder, network)
        yield found
    finally:
        for component in ("coordinator", "reward"):
            docker("rm", "--force", f"shoal-{component}-{os.getpid()}", check=False)
        docker("network", "rm", network, check=False)


@pytest.mark.parametrize("component", ["coordinator", "reward"])
def test_a_container_with_the_manifests_command_user_and_read_only_root_is_healthy(
    containers: dict[str, Container], component: str
) -> None:
    container = containers[component]

    def has_started() -> bool:
        assert docker("inspect", "--format={{.State.Running}}", container.name).stdout == "true\n", container.logs
        return container.exec("startupProbe") == 0

    wait_until(has_started, f"the {component} is healthy")
    assert container.exec("readinessProbe") == container.exec("livenessProbe") == 0, container.logs
    (state,) = json.loads(docker("inspect", container.name).stdout)
    assert state["HostConfig"]["ReadonlyRootfs"] and state["Config"]["User"] == "10001:10001"
    touched = docker("exec", container.name, "touch", "/opt/shoal/x", check=False)
    assert touched.returncode and "Read-only" in touched.stderr
    assert docker("exec", container.name, "id", "-u").stdout.strip() == "10001"


def test_the_reward_service_registers_and_people_see_it_with_their_certificate(
    containers: dict[str, Container], tmp_path_factory: pytest.TempPathFactory
) -> None:
    address = docker("port", containers["coordinator"].name, str(COORDINATOR_PORT)).stdout.split()[0]
    folder = next(tmp_path_factory.getbasetemp().glob("certificates*"))

    def list_workers(who: str) -> subprocess.CompletedProcess[str]:
        command = ["shoal", "--tls-dir", str(folder / who), "workers", "-o", "json", "--coordinator", address]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    wait_until(lambda: "WORKER_KIND_REWARD" in list_workers("viewer").stdout, containers["reward"].logs)
    assert list_workers("generator").returncode not in (ExitCode.OK, ExitCode.UNAVAILABLE)


def test_a_reward_pod_ends_beside_a_coordinator_that_goes_on(containers: dict[str, Container]) -> None:
    reward = containers["reward"]
    assert reward.exec("preStop") == 0
    docker("stop", "--time", str(reward.pod.spec["terminationGracePeriodSeconds"]), reward.name)
    (state,) = json.loads(docker("inspect", reward.name).stdout)
    assert state["State"]["ExitCode"] == 0, reward.logs
