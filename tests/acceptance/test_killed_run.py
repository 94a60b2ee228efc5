"""A whole run with real engines that loses its learner, then all its processes, and ends by Ctrl-C."""

import signal
from pathlib import Path

import pytest

from tests.integration.test_run import ledger
from tests.support.local_stack import STARTING_S, LocalStack, guessing_config, write_config
from tests.support.waiting import block_until


@pytest.mark.timeout(1800)
def test_a_run_goes_on_by_itself_when_its_learner_is_killed_and_as_changed_when_all_of_it_is_until_ctrl_c(
    tmp_path: Path,
) -> None:
    """At a staleness of 3, so groups in flight are lost too. test_next_runs.py resumes once more."""
    from transformers import AutoModelForCausalLM

    checkpoint = {
        "every_steps": 2, "export_every_steps": 2, "export_keep_last": 1, "export_best_metric": "objective/scores",
    }  # fmt: skip
    config = guessing_config(tmp_path, grpo={"max_staleness": 3}, checkpoint=checkpoint, run={"num_steps": 500})
    path = str(write_config(tmp_path / "run.toml", config))
    stack = LocalStack(tmp_path / "runs", "orphan", path)
    try:
        stack.until_step(5)
        generator = stack.services("generator")[0].pid
        stack.services("learner")[0].send_signal(signal.SIGKILL)
        again = stack.until("the next attempt", lambda event: event["kind"] == "restored", STARTING_S)
        stack.until_step(int(again["attributes"]["policy_version"]) + 3)
        assert stack.services("generator")[0].pid == generator, "the generator was restarted with the learner"
        stack.process.kill()
        stack.process.wait()
        block_until(lambda: not stack.left_over(), "every process has ended with shoal train")

        changes = ("--set", "run.num_steps=400", "--set", "learner.learning_rate=0.0005")
        stack = LocalStack(tmp_path / "runs", "orphan", "--resume", "orphan", *changes)
        restored = stack.until(
            "the restore", lambda event: event["kind"] == "restored" and event["attributes"]["attempt"] == 2, 240
        )
        kept = int(restored["attributes"]["policy_version"])
        stack.until(
            "the export of the second step, and one more step",
            lambda e: e["sequence"] > restored["sequence"] and e["attributes"].get("step") == kept + 3,
            STARTING_S,
        )
        stack.process.send_signal(signal.SIGINT)
        assert stack.wait(300) == 130, stack.tail()
        block_until(lambda: not stack.left_over(), "every process has ended with shoal train")
        last = {event["kind"]: event["sequence"] for event in stack.events()}
        assert last["checkpoint"] > last["step"], "Ctrl-C wrote no checkpoint of the last step"
        assert not (stack.folder / "model").exists(), "Ctrl-C ends a run without its model"
    finally:
        stack.end()
    rows = stack.metrics()
    assert [int(row["step"]) for row in rows] == list(range(1, len(rows) + 1))
    assert [row["lr"] for row in rows] == [1e-3] * kept + [5e-4] * (len(rows) - kept) and len(rows) >= kept + 2 >= 6
    groups = ledger(stack, "SELECT order_number, state, staleness FROM groups ORDER BY order_number")
    assert [group[0] for group in groups] == list(range(len(groups)))
    ages = [group[2] for group in groups if group[1] == "TRAINED"]
    assert max(ages) <= 3, f"staleness {max(ages)} for a bound of 3"
    # A stop leaves the export of its last step to the resume.
    exported = {int(e["attributes"]["policy_version"]) for e in stack.of_kind("step_exported")}
    assert exported >= set(range(2, kept + 3, 2)), exported
    scores = {int(row["step"]): row["objective/scores"] for row in rows if row["step"] in exported}
    best = max(scores, key=lambda step: (scores[step], -step))
    names = {f"step-{step:08d}" for step in (best, max(scores))}
    assert {path.name for path in (stack.folder / "exports").iterdir()} == names, f"the best of {scores}"
    assert all(AutoModelForCausalLM.from_pretrained(stack.folder / "exports" / name) for name in names)
