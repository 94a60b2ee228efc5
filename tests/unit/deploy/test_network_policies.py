"""What the network policies let through, evaluated as a cluster does: egress and ingress must both have a rule."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tests.support.manifests import OVERLAY_NAMES, of_kind, pods
from tests.support.repository import ROOT
from tools.manifests import problems

EPHEMERAL = 40000
"""One of the ports that gloo and NCCL take."""
OUTSIDE: dict[str, str] = {"some": "pod"}

# Who may call whom on which port, among the pods of the namespace.
ALLOWED = {
    *((worker, "coordinator", 50050) for worker in ("generator", "learner", "reward")),
    *(("coordinator", worker, 50051) for worker in ("generator", "learner", "reward")),
    ("generator", "learner", 50052),
    ("generator", "learner", EPHEMERAL),
    ("learner", "generator", EPHEMERAL),
    ("generator", "generator", EPHEMERAL),
    *(("learner", "learner", port) for port in (50050, 50051, 50052, 29400, 9090, EPHEMERAL)),
}
PORTS = (50050, 50051, 50052, 29400, 9090, EPHEMERAL)


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    for rule in selector.get("matchExpressions", ()):
        assert rule["operator"] == "In"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def allows(
    overlay: str,
    direction: str,
    own: dict[str, str],
    other: dict[str, str],
    port: int,
    more: Sequence[dict[str, Any]] = (),
) -> bool:
    """Whether a pod may send to (Egress) or receive from (Ingress) another pod of its namespace. `more` are policies
    beside those of the overlay."""
    policies = [
        item["spec"]
        for item in (*of_kind(overlay, "NetworkPolicy"), *more)
        if direction in item["spec"]["policyTypes"] and matches(item["spec"]["podSelector"], own)
    ]
    peers = "to" if direction == "Egress" else "from"
    for rule in (rule for policy in policies for rule in policy.get(direction.lower(), ())):
        chosen = any(
            matches(peer["podSelector"], other)
            for peer in rule[peers]
            if "podSelector" in peer and "namespaceSelector" not in peer
        )
        ports = rule.get("ports")
        if chosen and (
            ports is None or any(entry["port"] <= port <= entry.get("endPort", entry["port"]) for entry in ports)
        ):
            return True
    return not policies


@pytest.mark.parametrize("overlay", OVERLAY_NAMES)
def test_pods_reach_each_other_where_the_services_need_it_and_nowhere_else(overlay: str) -> None:
    labels = {component: pod.labels for component, pod in pods(overlay).items()} | {"outside": OUTSIDE}
    let_through = {
        (source, target, port)
        for source, own in labels.items()
        for target, other in labels.items()
        for port in PORTS
        if allows(overlay, "Egress", own, other, port) and allows(overlay, "Ingress", other, own, port)
    }
    assert let_through == ALLOWED, f"too much: {let_through - ALLOWED}, too little: {ALLOWED - let_through}"


@pytest.mark.parametrize("overlay", OVERLAY_NAMES)
def test_a_pod_with_the_label_of_clients_reaches_the_coordinator_alone(overlay: str) -> None:
    client = {"shoal-client": "true"}
    reached = {
        (component, port)
        for component, pod in pods(overlay).items()
        for port in PORTS
        if allows(overlay, "Ingress", pod.labels, client, port)
    }
    assert reached == {("coordinator", 50050)}


@pytest.mark.parametrize("overlay", OVERLAY_NAMES)
def test_the_policies_name_ports_that_the_pods_have(overlay: str) -> None:
    known = {port for pod in pods(overlay).values() for port in pod.ports.values()} | {53, 443, 32768}
    for item in of_kind(overlay, "NetworkPolicy"):
        rules = [*item["spec"].get("ingress", ()), *item["spec"].get("egress", ())]
        named = {entry["port"] for rule in rules for entry in rule.get("ports", ())}
        assert named <= known, item["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAY_NAMES)
def test_the_ephemeral_ports_that_are_let_through_are_those_that_the_pods_take(overlay: str) -> None:
    for component in ("generator", "learner"):
        (setting,) = pods(overlay)[component].spec["securityContext"]["sysctls"]
        assert setting["name"] == "net.ipv4.ip_local_port_range"
        first, last = map(int, setting["value"].split())
        ranges = {
            (entry["port"], entry["endPort"])
            for item in of_kind(overlay, "NetworkPolicy")
            for rule in [*item["spec"].get("ingress", ()), *item["spec"].get("egress", ())]
            for entry in rule.get("ports", ())
            if "endPort" in entry
        }
        assert ranges == {(first, last)}
        assert not [port for port in PORTS if port != EPHEMERAL and first <= port <= last]


def test_the_policies_of_the_documentation_let_rewards_reach_a_server_of_environments_and_nobody_else() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text()
    (block,) = (block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "rewards-to-games" in block)
    policies = list(yaml.safe_load_all(block))
    assert not [problem for policy in policies for problem in problems(policy)]
    labels = {component: pod.labels for component, pod in pods("nodes-9").items()} | {"games": {"app": "games"}}

    def reached(more: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
        return {
            (source, target)
            for source, own in labels.items()
            for target, other in labels.items()
            if allows("nodes-9", "Egress", own, other, 7010, more)
            and allows("nodes-9", "Ingress", other, own, 7010, more)
        }

    among_ranks = ("learner", "learner")
    assert reached(()) == {among_ranks}
    assert reached(policies) == {among_ranks, ("reward", "games")}
    assert not reached(policies[:1]) - {among_ranks}, "the server's namespace refuses what it does not name"
