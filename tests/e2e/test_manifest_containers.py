"""The images run as the Kubernetes manifests start them: command, user, file systems, certificates, probes."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.cli.certs import certs
from services.coordinator.cli.shared.exit_codes import ExitCode
from tests.e2e.compose_stack import wait_until, why_not
from tests.support.local_stack import SHOAL
from tests.support.manifests import Pod, dockerfile, pods
from tests.support.repository import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]

OVERLAY = "cpu-dev"
COMPONENTS = ("coordinator", "generator", "learner", "reward")
COORDINATOR_PORT = 50050
NAMES = {"learner": "learner-ranks-0-0.learner"}
"""Names in the network, where they are not the component's: JobSet gives each pod one."""

Done = subprocess.CompletedProcess[str]


def docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, (
        f"docker {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done


@dataclass(frozen=True)
class Container:
    name: str
    pod: Pod

    def exec(self, probe: str) -> int:
        """Runs the command of a probe or a hook inside; returns its exit code."""
        section = self.pod.container.get(probe) or self.pod.container["lifecycle"][probe]
        return docker("exec", self.name, *section["exec"]["command"], check=False).returncode

    @property
    def logs(self) -> str:
        done = docker("logs", self.name)
        return done.stdout + done.stderr


def start(pod: Pod, folder: Path, network: str) -> Container:
    """Starts the container of a pod, with an empty folder for each volume; its secret is from `shoal certs`."""
    container = pod.container
    docker("build", "--network=host", "-f", str(dockerfile(pod.component)), "-t", container["image"], str(ROOT))
    name = f"shoal-{pod.component}-{os.getpid()}"
    options = [f"--name={name}", f"--network={network}", f"--network-alias={NAMES.get(pod.component, pod.component)}"]
    options += [*_confinement(pod), *(f"--env={key}={value}" for key, value in pod.environment().items())]
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    for mount in container["volumeMounts"]:
        own_claim = {"name": mount["name"]}  # From the volumeClaimTemplates of a StatefulSet.
        source = _volume(volumes.get(mount["name"], own_claim), pod, folder)
        options.append(f"--volume={source}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}")
    if pod.component == "coordinator":
        options.append(f"--publish=127.0.0.1::{COORDINATOR_PORT}")
    program, *words = [*container.get("command", ()), *pod.expand(list(container.get("args", ())))] or [""]
    if "command" in container:
        options.append(f"--entrypoint={program}")
    elif program:
        words = [program, *words]
    docker("run", "--detach", *options, container["image"], *words)
    return Container(name, pod)


def _confinement(pod: Pod) -> list[str]:
    """Returns the options for what the manifest does not let a container do."""
    security, own = pod.spec["securityContext"], pod.container["securityContext"]
    assert own["readOnlyRootFilesystem"]
    options = [f"--user={security['runAsUser']}:{security['runAsGroup']}", "--read-only"]
    options += ["--security-opt=no-new-privileges:true"]
    options += [f"--cap-drop={capability}" for capability in own["capabilities"]["drop"]]
    options += [f"--sysctl={sysctl['name']}={sysctl['value']}" for sysctl in security.get("sysctls", ())]
    if own.get("seccompProfile", {}).get("type") == "Unconfined":
        options += ["--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
    if pod.spec.get("shareProcessNamespace"):
        options.append("--init")
    return options


def _volume(volume: dict[str, Any], pod: Pod, folder: Path) -> Path:
    """Makes a volume as a node does for fsGroup: the owner is root, and the group may write. Pods share a claim."""
    group = pod.spec["securityContext"]["fsGroup"]
    if "secret" in volume:
        return _secret(folder / pod.component, group)
    claim = volume.get("persistentVolumeClaim", {}).get("claimName")
    source = folder / "volumes" / (f"claim-{claim}" if claim else f"{pod.component}-{volume['name']}")
    source.mkdir(parents=True, exist_ok=True)
    os.chown(source, 0, group)
    source.chmod(0o2770)
    return source


def _secret(folder: Path, group: int) -> Path:
    """Gives the files the owner, the group and the mode that a node gives those of a secret."""
    for file in folder.iterdir():
        os.chown(file, 0, group)
        file.chmod(0o440)
    return folder


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Container]]:
    folder = tmp_path_factory.mktemp("certificates")
    certs(folder, ["coordinator"])
    network = f"shoal-manifests-{os.getpid()}"
    docker("network", "create", network)
    found: dict[str, Container] = {}
    try:
        for component in COMPONENTS:
            found[component] = start(pods(OVERLAY)[component], folder, network)
        yield found
    finally:
        for component in COMPONENTS:
            docker("rm", "--force", f"shoal-{component}-{os.getpid()}", check=False)
        docker("network", "rm", network, check=False)


@pytest.mark.parametrize("component", COMPONENTS)
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


@pytest.fixture
def shoal(containers: dict[str, Container], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Done]:
    """Runs `shoal` with the certificate of somebody, against the coordinator in its container."""
    address = docker("port", containers["coordinator"].name, str(COORDINATOR_PORT)).stdout.split()[0]
    folder = next(tmp_path_factory.getbasetemp().glob("certificates*"))

    def run(who: str, *arguments: str) -> Done:
        command = [str(SHOAL), "--tls-dir", str(folder / who), *arguments, "--coordinator", address]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_the_workers_register_and_people_see_them_with_their_certificate(
    containers: dict[str, Container], shoal: Callable[..., Done]
) -> None:
    for kind in ("GENERATOR", "LEARNER", "REWARD"):
        wait_until(
            lambda kind=kind: f"WORKER_KIND_{kind}" in shoal("viewer", "workers", "-o", "json").stdout,  # type: ignore[misc]
            f"{kind} is registered: {containers[kind.lower()].logs[-2000:]}",
        )
    assert shoal("generator", "workers").returncode not in (ExitCode.OK, ExitCode.UNAVAILABLE)


def test_the_four_containers_train_two_steps(containers: dict[str, Container], shoal: Callable[..., Done]) -> None:
    small = ("run.num_steps=2", "grpo.groups_per_step=2", "evaluation.num_prompts=8")
    settings = [part for each in small for part in ("--set", each)]
    done = shoal("operator", "run", "start", str(ROOT / "configs/quickstart.toml"), "--watch", *settings)
    logs = "".join(f"{name}: {container.logs[-1500:]}\n" for name, container in containers.items())
    assert done.returncode == 0 and "step 2/2" in done.stdout, done.stdout[-3000:] + done.stderr[-2000:] + logs


def test_a_reward_pod_ends_beside_a_coordinator_that_goes_on(containers: dict[str, Container]) -> None:
    reward = containers["reward"]
    assert reward.exec("preStop") == 0
    docker("stop", "--time", str(reward.pod.spec["terminationGracePeriodSeconds"]), reward.name)
    (state,) = json.loads(docker("inspect", reward.name).stdout)
    assert state["State"]["ExitCode"] == 0, reward.logs
