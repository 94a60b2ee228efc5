"""Each overlay renders, satisfies the schemas, refers to nothing missing, and starts the services of the images."""

import argparse
import importlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider

import shoal
from shoal.rpc import healthcheck
from shoal.telemetry import names
from tests.support.manifests import OVERLAY_NAMES, Pod, dockerfile, objects, of_kind, pods
from tests.support.repository import ROOT
from tools.manifests import problems, render

K8S = ROOT / "deploy" / "k8s"
COMPONENTS = ["coordinator", "generator", "learner", "reward"]

each_overlay = pytest.mark.parametrize("overlay", OVERLAY_NAMES)
each_component = pytest.mark.parametrize("component", COMPONENTS)


@each_overlay
def test_an_overlay_renders_and_satisfies_the_schemas(overlay: str) -> None:
    assert sorted(pods(overlay)) == COMPONENTS
    found = [problem for item in objects(overlay) for problem in problems(item)]
    assert not found, found


def test_the_other_autoscaler_renders_and_satisfies_the_schemas(tmp_path: Path) -> None:
    overlay = yaml.safe_load((K8S / "overlays" / "nodes-28" / "kustomization.yaml").read_text())
    where = "../" * (len(tmp_path.parts) - 1) + str(K8S.relative_to("/"))
    overlay["resources"] = [f"{where}/base", "scale.yaml"]
    overlay["components"] = [
        f"{where}/{path.removeprefix('../../').replace('keda', 'hpa')}" for path in overlay["components"]
    ]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    (tmp_path / "scale.yaml").write_text((K8S / "overlays" / "nodes-28" / "scale.yaml").read_text())
    rendered = render(tmp_path)
    assert not [problem for item in rendered for problem in problems(item)]
    scalers = {item["metadata"]["name"]: item["spec"] for item in rendered if item["kind"] == "HorizontalPodAutoscaler"}
    keda = {item["metadata"]["name"]: item["spec"] for item in of_kind("nodes-28", "ScaledObject")}
    assert scalers.keys() == keda.keys() == {"generator", "reward"}
    for name, spec in scalers.items():
        assert spec["minReplicas"] == keda[name]["minReplicaCount"]
        assert spec["maxReplicas"] == keda[name]["maxReplicaCount"]
        assert spec["behavior"] == keda[name]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        for metric, trigger in zip(spec["metrics"], keda[name]["triggers"], strict=True):
            assert trigger["metadata"]["query"] == f"sum({metric['external']['metric']['name']})"
            assert trigger["metadata"]["threshold"] == metric["external"]["target"]["averageValue"]


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0, "comand"), ["python"]),
        ("Deployment", ("spec", "replicas"), "three"),
        ("JobSet", ("spec", "failurePolicy", "maxRestart"), 3),
        ("JobSet", ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "container"), []),
        ("ScaledObject", ("spec", "triggers", 0, "metadata", "threshold"), 128),
        ("ScaledObject", ("apiVersion",), "keda.sh/v1"),
    ],
)
def test_a_mistake_in_a_manifest_is_found(kind: str, path: tuple[str | int, ...], value: Any) -> None:
    item = json.loads(json.dumps(of_kind("nodes-28", kind)[0]))
    part: Any = item
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert problems(item), f"{kind}.{'.'.join(map(str, path))} = {value!r} passes"


@each_overlay
def test_no_pod_runs_as_root_or_with_rights_that_it_does_not_need(overlay: str) -> None:
    for pod in pods(overlay).values():
        security = pod.spec["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == security["runAsGroup"] == 10001, pod.component
        for each in (pod.container, *pod.spec.get("initContainers", ())):
            container = each["securityContext"]
            assert container["readOnlyRootFilesystem"] and container["allowPrivilegeEscalation"] is False, each["name"]
            assert container["capabilities"] == {"drop": ["ALL"]}, each["name"]
            assert {"requests", "limits"} <= each["resources"].keys(), each["name"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys(), pod.component
        assert pod.spec["automountServiceAccountToken"] is False and pod.spec["enableServiceLinks"] is False
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, pod.component


@each_overlay
def test_only_the_sandbox_of_programs_lowers_the_profiles_and_says_so_to_the_namespace(overlay: str) -> None:
    lowered = [pod.component for pod in pods(overlay).values() if "seccompProfile" in pod.container["securityContext"]]
    (namespace,) = of_kind(overlay, "Namespace")
    level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert (lowered, level) in (([], "restricted"), (["reward"], "privileged"))


@each_overlay
def test_every_container_has_probes_that_ask_its_own_port(overlay: str) -> None:
    for pod in pods(overlay).values():
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = pod.container[kind]
            command = probe["exec"]["command"]
            assert command[:3] == ["python", "-m", "shoal.rpc.healthcheck"]
            host, _, port = command[3].rpartition(":")
            assert int(port) == pod.ports["grpc"], f"{pod.component}: {kind}"
            assert host == ("learner-ranks-0-0.learner" if pod.component == "learner" else "127.0.0.1")
            answer_s = float(command[-1].removeprefix("--timeout-s="))
            assert answer_s < probe["timeoutSeconds"], "the reason would not be shown"
            assert _exit_code_where_nobody_listens(*command[4:-1]) == 1


@cache
def _exit_code_where_nobody_listens(*options: str) -> int:
    """Runs the check with its own parser, which ends the process for a wrong command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["healthcheck", "127.0.0.1:1", *options, "--timeout-s=0.2"])
        return healthcheck.main()


class Parsed(Exception):
    """A command line that a service's parser accepted."""


@each_overlay
@each_component
def test_an_image_gets_a_command_line_that_its_service_accepts(
    overlay: str, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, text = pods(overlay)[component], dockerfile(component).read_text()
    name, _, tag = pod.container["image"].partition(":")
    device = "cuda" if "nvidia.com/gpu" in pod.container["resources"]["limits"] else "cpu"
    has_builds = component in ("generator", "learner")
    assert (name, tag) == (f"shoal-{component}", shoal.__version__ + (f"-{device}" if has_builds else ""))
    arguments = pod.expand(pod.container.get("args", []))
    if component == "learner":
        arguments = _after_torchrun(pod, arguments)
        monkeypatch.setenv("RANK", "0")
    else:
        assert "command" not in pod.container
        assert f'ENTRYPOINT ["python", "-m", "services.{component}"]' in text
    (image_environment,) = re.findall(r"^ENV (SHOAL_.*)$", text, re.M)
    for variable in [*image_environment.split(), *(f"{k}={v}" for k, v in pod.environment().items())]:
        monkeypatch.setenv(*variable.split("=", 1))
    parse = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, *args: Any) -> None:
        raise Parsed(parse(self, *args))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", [component, *arguments])
    with pytest.raises(Parsed) as parsed:
        importlib.import_module(f"services.{component}.__main__").main()
    options = parsed.value.args[0]
    assert options.listen == f"0.0.0.0:{pod.ports['grpc']}" and options.allow_wildcard_address
    assert str(options.tls_dir) in {mount["mountPath"] for mount in pod.container["volumeMounts"]}
    assert str(options.metrics_port) == str(pod.ports["metrics"])
    assert str(options.data_dir) in {mount["mountPath"] for mount in pod.container["volumeMounts"]}
    if component == "coordinator":
        assert options.grace_s + 30 <= pod.spec["terminationGracePeriodSeconds"]
    else:
        (service,) = of_kind(overlay, "Service")
        (port,) = service["spec"]["ports"]
        assert options.coordinator == f"{service['metadata']['name']}:{port['port']}"


def _after_torchrun(pod: Pod, arguments: list[str]) -> list[str]:
    """Parses the arguments of torchrun with its own parser; returns those of the learner."""
    run = pytest.importorskip("torch.distributed.run")
    assert pod.container["command"] == ["python", "-m", "torch.distributed.run"]
    options = run.get_args_parser().parse_args(arguments)
    (ranks,) = pod.owner["spec"]["replicatedJobs"]
    name = pod.owner["metadata"]["name"]
    first = f"{name}-{ranks['name']}-0-0.{pod.owner['spec']['network']['subdomain']}"
    assert options.nnodes == str(ranks["replicas"])
    assert options.rdzv_endpoint == f"{first}:{pod.ports['rendezvous']}"
    assert options.local_addr == pod.environment()["SHOAL_ADVERTISE"] == first
    assert options.nproc_per_node == pod.container["resources"]["limits"].get("nvidia.com/gpu", "1")
    assert options.module and options.training_script == "services.learner" and int(options.max_restarts) > 0
    return list(options.training_script_args)


@each_overlay
def test_nothing_that_is_referred_to_is_missing(overlay: str) -> None:
    def names(*kinds: str) -> set[str]:
        return {item["metadata"]["name"] for item in of_kind(overlay, *kinds)}

    # Without cert-manager the same secrets are made by hand.
    secrets = {item["spec"]["secretName"] for item in of_kind("nodes-28", "Certificate")}
    assert {item["metadata"].get("namespace", "shoal") for item in objects(overlay)} == {"shoal"}
    for pod in pods(overlay).values():
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        claims = {claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", ())}
        mounts = [mount["name"] for mount in pod.container["volumeMounts"]]
        assert sorted(mounts) == sorted(volumes.keys() | claims), pod.component
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in names("PersistentVolumeClaim")
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets
            assert not {"configMap", "hostPath"} & volume.keys()
        selector = pod.owner["spec"].get("selector")
        if selector is not None:
            assert selector["matchLabels"].items() <= pod.labels.items()
        assert pod.owner["spec"].get("serviceName", "coordinator") in names("Service")
    for item in of_kind(overlay, "Service", "PodDisruptionBudget"):
        selector = item["spec"]["selector"]
        chosen = [
            p for p in pods(overlay).values() if selector.get("matchLabels", selector).items() <= p.labels.items()
        ]
        assert len(chosen) == 1 and chosen[0].component == item["metadata"]["name"], item["metadata"]
        for port in item["spec"].get("ports", ()):
            assert chosen[0].ports[port["targetPort"]] == port["port"]
    for item in of_kind(overlay, "ScaledObject"):
        assert item["spec"]["scaleTargetRef"]["name"] in names("Deployment")
        (target,) = [d for d in of_kind(overlay, "Deployment") if d["metadata"]["name"] == item["metadata"]["name"]]
        assert "replicas" not in target["spec"], "each apply would undo the autoscaler's work"
    assert names("PodDisruptionBudget") == set(COMPONENTS)


@each_overlay
def test_the_learners_pods_wait_until_the_first_one_can_be_looked_up(overlay: str) -> None:
    pod = pods(overlay)["learner"]
    (waiting,) = pod.spec["initContainers"]
    assert waiting["image"] == pod.container["image"], "a second image would have to be pulled"
    *command, name, _ = waiting["command"]
    endpoint = next(word for word in pod.container["args"] if word.startswith("--rdzv-endpoint="))
    assert endpoint == f"--rdzv-endpoint={name}:{pod.ports['rendezvous']}"
    if overlay == OVERLAY_NAMES[0]:
        command[0] = sys.executable
        assert subprocess.run([*command, "localhost", "0"], check=False).returncode == 0
        lost = subprocess.run([*command, "nobody.invalid", "0"], capture_output=True, text=True, check=False)
        assert lost.returncode == 1 and "nobody.invalid " in lost.stderr, lost.stderr


def test_with_a_mirror_the_coordinator_sees_the_learners_data_folder_and_gets_credentials() -> None:
    with_mirror = [overlay for overlay in OVERLAY_NAMES if "envFrom" in pods(overlay)["coordinator"].container]
    assert with_mirror == ["nodes-12", "nodes-28"]
    for overlay in with_mirror:
        coordinator, learner = (pods(overlay)[component] for component in ("coordinator", "learner"))
        seen = _claim_at(coordinator, coordinator.environment()["SHOAL_LEARNER_DATA_DIR"])
        (folder,) = re.findall(r"SHOAL_DATA_DIR=(\S+)", dockerfile("learner").read_text())
        assert seen == _claim_at(learner, folder) == "learner-data"
        (source,) = coordinator.container["envFrom"]
        assert source == {"secretRef": {"name": "mirror-credentials", "optional": True}}


def _claim_at(pod: Pod, folder: str) -> str:
    """Returns the name of the claim that is mounted at a folder, for writing as well."""
    (mount,) = [mount for mount in pod.container["volumeMounts"] if mount["mountPath"] == folder]
    assert not mount.get("readOnly"), f"{pod.component}: what a mirror gives back cannot be written to {folder}"
    (volume,) = [volume for volume in pod.spec["volumes"] if volume["name"] == mount["name"]]
    return str(volume["persistentVolumeClaim"]["claimName"])


def test_the_autoscalers_ask_for_metrics_that_prometheus_gets() -> None:
    provider = MeterProvider(metric_readers=[PrometheusMetricReader()], shutdown_on_exit=False)
    meter = provider.get_meter("test")
    for metric in (names.RUN_SAMPLING, names.REWARD_OPEN, names.ENVIRONMENT_OPEN):
        meter.create_gauge(metric.name, metric.unit).set(1)
    shown = prometheus_client.generate_latest().decode()
    provider.shutdown()
    asked = {
        (item["metadata"]["name"], *re.findall(r"sum\((\w+)\)", trigger["metadata"]["query"]))
        for item in of_kind("nodes-28", "ScaledObject")
        for trigger in item["spec"]["triggers"]
    }
    # Reward services score completions and play episodes: either may be all that a run does there.
    of_rewards = {("reward", "shoal_reward_open"), ("reward", "shoal_environment_open")}
    assert asked == {("generator", "shoal_run_sampling"), *of_rewards}
    for _, name in asked:
        assert re.search(rf"^{name}[{{ ]", shown, re.M), f"{name} is not in {shown}"


@each_overlay
def test_a_worker_has_time_to_wait_for_the_coordinators_checkpoint_and_to_end(overlay: str) -> None:
    prestop = importlib.import_module("shoal.worker.prestop")
    coordinator = pods(overlay)["coordinator"]
    at_most_s = prestop.AT_MOST_S
    assert at_most_s >= float(coordinator.container["args"][1])
    for component in ("generator", "learner", "reward"):
        pod = pods(overlay)[component]
        assert pod.container["lifecycle"]["preStop"]["exec"]["command"] == ["python", "-m", prestop.__name__]
        assert pod.spec["terminationGracePeriodSeconds"] >= at_most_s + 60
