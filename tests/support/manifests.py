"""The Kubernetes manifests as a cluster gets them: rendered overlays, and the pods that their objects make."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT
from tools.manifests import OVERLAYS, jobs_of, render

OVERLAY_NAMES = [path.name for path in OVERLAYS]
COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True)
class Pod:
    """The template of a pod, with the labels that it has in the cluster."""

    owner: dict[str, Any]
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def component(self) -> str:
        """coordinator, generator, learner or reward."""
        return self.labels[COMPONENT]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    def environment(self) -> dict[str, str]:
        """Its variables, with $(NAME) replaced; variables from fields have the value that the first pod would have."""
        values: dict[str, str] = {}
        for variable in self.container["env"]:
            text = variable.get("value", "0")
            for name, value in values.items():
                text = text.replace(f"$({name})", value)
            values[variable["name"]] = text
        return values

    def expand(self, words: list[str]) -> list[str]:
        """Replaces $(NAME) in the words of a command, as Kubernetes does."""
        for name, value in self.environment().items():
            words = [word.replace(f"$({name})", value) for word in words]
        return words


@cache
def objects(overlay: str) -> tuple[dict[str, Any], ...]:
    return tuple(render(ROOT / "deploy" / "k8s" / "overlays" / overlay))


def of_kind(overlay: str, *kinds: str) -> list[dict[str, Any]]:
    return [item for item in objects(overlay) if item["kind"] in kinds]


def pods(overlay: str) -> dict[str, Pod]:
    found = [pod for item in objects(overlay) for pod in _pods_of(item)]
    assert len({pod.component for pod in found}) == len(found)
    return {pod.component: pod for pod in found}


def _pods_of(item: dict[str, Any]) -> Iterator[Pod]:
    templates = [job["spec"]["template"] for job in jobs_of(item)]
    if item["kind"] in ("Deployment", "StatefulSet"):
        templates.append(item["spec"]["template"])
    for template in templates:
        yield Pod(item, template["metadata"]["labels"], template["spec"])


def dockerfile(component: str) -> Path:
    return ROOT / "deploy" / "docker" / f"{component}.Dockerfile"
