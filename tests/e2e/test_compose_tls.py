"""The compose stack with compose.tls.yaml: a run under mutual TLS, whose learner dies."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.coordinator.cli.certs import certs
from tests.e2e.compose_stack import ComposeStack, wait_until, why_not
from tests.support.local_stack import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]

CONTAINER_USER = 10001
RUN = "secured"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[ComposeStack]:
    certs(tmp_path / "certs", ["coordinator"])
    for path in (tmp_path / "certs").rglob("*"):
        os.chown(path, CONTAINER_USER, -1)
    stack = ComposeStack(f"shoal-e2e-tls-{os.getpid()}", free_port(), tmp_path / "certs")
    stack.run("build")
    try:
        yield stack
    finally:
        stack.remove()


def test_a_run_under_mutual_tls_goes_on_after_the_death_of_its_learner(stack: ComposeStack) -> None:
    stack.run("up", "-d", "coordinator")
    wait_until(lambda: stack.workers() == ["GENERATOR", "LEARNER", "REWARD"], "all workers are registered")
    stack.run(
        *("run", "-d", "train", "/configs/quickstart.toml", "--name", RUN, "--set", "weights.store_port=50052"),
        *("--set", "run.num_steps=4", "--set", "checkpoint.every_steps=1", "--set", "evaluation.num_prompts=8"),
    )
    wait_until(lambda: stack.steps(RUN) >= 2, "two steps are taken", at_most_s=900)
    killed = time.monotonic()
    # The process that init started in the container, as a crash would end it.
    stack.run("exec", "-T", "learner", "sh", "-c", "kill -9 -1", check=False)
    wait_until(lambda: stack.shoal("run", "status", RUN)["state"] == "RUN_STATE_FINISHED", "the run ends", 1800)
    run = stack.shoal("run", "status", RUN)
    assert (run["policy_version"], run["attempt"]) == (4, 1), run
    (lost,) = [event for event in stack.events(RUN) if event["kind"] == "worker_lost"]
    print(f"\n{lost['message']}; the run ended {time.monotonic() - killed:.0f} s after the kill")
    assert lost["attributes"]["worker_kind"] == "learner", lost
