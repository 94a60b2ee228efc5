"""The certificates that the manifests ask for are those that the services accept, and clients of theirs."""

from pathlib import Path
from typing import Any

import pytest

from services.coordinator.cli.certs import certs
from shoal.rpc.auth.authority import Authority
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role, caller_of_uri
from tests.support.manifests import OVERLAY_NAMES, objects, of_kind, pods

SERVICES = {"coordinator": Role.COORDINATOR, "generator": Role.WORKER, "learner": Role.WORKER, "reward": Role.WORKER}
WITHOUT_CERT_MANAGER = ["cpu-dev"]
WITH_CERT_MANAGER = [name for name in OVERLAY_NAMES if name not in WITHOUT_CERT_MANAGER]


def certificates(overlay: str) -> dict[str, Any]:
    return {item["spec"]["secretName"]: item["spec"] for item in of_kind(overlay, "Certificate")}


def test_all_overlays_ask_for_the_same_certificates() -> None:
    assert [certificates(overlay) for overlay in WITH_CERT_MANAGER[1:]] == [certificates(WITH_CERT_MANAGER[0])] * (
        len(WITH_CERT_MANAGER) - 1
    )


def test_each_service_accepts_the_certificate_of_its_secret(tmp_path: Path) -> None:
    overlay = WITH_CERT_MANAGER[0]
    authority, asked_for = Authority.create(), certificates(overlay)
    for component, pod in pods(overlay).items():
        secret = mounted_secret(overlay, component)
        spec = asked_for[secret]
        (uri,) = spec["uris"]
        caller = caller_of_uri(uri)
        assert caller is not None and caller.role is SERVICES[component]
        assert {"server auth", "client auth"} <= set(spec["usages"])
        hosts = (*spec["dnsNames"], *spec.get("ipAddresses", ()))
        folder = tmp_path / pod.component
        authority.issue(folder, caller.role, caller.name, hosts)
        assert Credentials.of_server(SERVICES[component], tls_dir=folder, tokens_file=None).knows_callers


@pytest.mark.parametrize("overlay", WITH_CERT_MANAGER)
def test_the_coordinators_certificate_has_every_name_that_it_is_called_by(overlay: str) -> None:
    names = set(certificates(overlay)["coordinator-tls"]["dnsNames"])
    called = {pods(overlay)[worker].environment()["SHOAL_COORDINATOR"] for worker in ("generator", "learner", "reward")}
    assert {address.rpartition(":")[0] for address in called} | {"localhost"} <= names


@pytest.mark.parametrize("overlay", WITH_CERT_MANAGER)
def test_people_get_certificates_of_their_own_that_serve_no_port(overlay: str) -> None:
    for role in (Role.OPERATOR, Role.VIEWER):
        spec = certificates(overlay)[f"{role}-tls"]
        (uri,) = spec["uris"]
        caller = caller_of_uri(uri)
        assert caller is not None and caller.role is role
        assert "server auth" not in spec["usages"]


@pytest.mark.parametrize("overlay", WITH_CERT_MANAGER)
def test_every_certificate_has_an_issuer_and_the_authority_is_the_only_one_that_signs(overlay: str) -> None:
    issuers = {item["metadata"]["name"]: item["spec"] for item in of_kind(overlay, "Issuer")}
    signing = {secret for secret, spec in certificates(overlay).items() if spec.get("isCA")}
    assert signing == {issuers["authority"]["ca"]["secretName"]}
    for secret, spec in certificates(overlay).items():
        assert spec["issuerRef"]["name"] == ("authority-itself" if secret in signing else "authority")


@pytest.mark.parametrize("overlay", WITHOUT_CERT_MANAGER)
def test_without_cert_manager_the_secrets_are_folders_of_shoal_certs(overlay: str, tmp_path: Path) -> None:
    assert not [item for item in objects(overlay) if item["apiVersion"].startswith("cert-manager.io")]
    certs(tmp_path, ["coordinator"])
    for component in pods(overlay):
        folder = tmp_path / mounted_secret(overlay, component).removesuffix("-tls")
        assert Credentials.of_server(SERVICES[component], tls_dir=folder, tokens_file=None).knows_callers


@pytest.mark.parametrize("overlay", OVERLAY_NAMES)
def test_only_the_user_of_the_process_can_read_its_key(overlay: str) -> None:
    for pod in pods(overlay).values():
        (volume,) = [volume["secret"] for volume in pod.spec["volumes"] if "secret" in volume]
        assert volume["defaultMode"] == 0o440, f"{pod.component}: {volume['defaultMode']:o}"
        assert pod.spec["securityContext"]["fsGroup"] == pod.spec["securityContext"]["runAsGroup"]


def mounted_secret(overlay: str, component: str) -> str:
    """Returns the name of the secret that a pod sees as the folder of its TLS files."""
    pod = pods(overlay)[component]
    folder = pod.environment()["SHOAL_TLS_DIR"]
    (volume,) = [mount["name"] for mount in pod.container["volumeMounts"] if mount["mountPath"] == folder]
    (secret,) = [item["secret"]["secretName"] for item in pod.spec["volumes"] if item["name"] == volume]
    return str(secret)
