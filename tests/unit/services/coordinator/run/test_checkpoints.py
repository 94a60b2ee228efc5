import errno
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.store.files import manifest as module
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.rollouts import list_rollouts
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.store.segments import series
from shoal.errors import DataLoss, ResourceExhausted
from shoal.rollout import Completion, FinishReason, Prompt, Rollout, VersionSpan, WeightVersion
from shoal.scores import Score, ScoreOutcome
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import learner_pb2
from tests.support.mirrored_run import MirroredRun
from tests.support.whole_checkpoints import save_whole


class Learner:
    """Counts the checkpoints that it writes."""

    num_saved = 0

    async def write_checkpoint(self, checkpoint_id: str, version: Any, keep: Any) -> None:
        self.num_saved += 1

    async def finish_checkpoint(self, checkpoint_id: str, version: Any, keep: Any) -> list[learner_pb2.FileDigest]:
        return [learner_pb2.FileDigest(path=checkpoint_id)]


async def step_to(ledger: Ledger, policy_version: int, next_order_number: int) -> None:
    progress = Progress(policy_version, next_order_number, num_episodes=0)
    await ledger.step_done(progress, trained=(), dropped=())


async def restored(checkpoints: Checkpoints, folder: Path) -> Progress:
    """Restores the newest checkpoint's ledger below another folder, and returns its progress."""
    manifest = checkpoints.load_manifest(checkpoints.committed()[-1])
    folder.mkdir()
    checkpoints.restore_ledger(manifest, folder / "ledger.sqlite", attempt=1)
    ledger = Ledger(folder / "ledger.sqlite", attempt=1)
    try:
        return await ledger.open()
    finally:
        await ledger.close()


async def test_a_checkpoint_moves_on_with_skipped_steps_and_keeps_the_learners_files(
    ledger: Ledger, tmp_path: Path
) -> None:
    learner, checkpoints = Learner(), Checkpoints(tmp_path)
    for policy_version, next_order_number, is_new in ((0, 0, True), (0, 0, False), (0, 4, True), (0, 8, True)):
        await step_to(ledger, policy_version, next_order_number)
        saved = await save_whole(checkpoints, learner, ledger)
        assert saved == ("step-00000000", is_new), f"after group {next_order_number}: {saved}"
        assert checkpoints.num_bytes("step-00000000") > 4096, "its ledger is not counted"
    assert learner.num_saved == 1, f"the learner wrote the same weights {learner.num_saved} times"
    assert len(list(tmp_path.glob("checkpoints/*/ledger*.sqlite"))) == 1
    assert (await restored(checkpoints, tmp_path / "restored")).next_order_number == 8
    await step_to(ledger, 1, 12)
    assert await save_whole(checkpoints, learner, ledger) == ("step-00000001", True)


async def test_a_checkpoint_that_cannot_move_on_stays_as_it_was(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, client = Checkpoints(tmp_path), Learner()
    await step_to(ledger, 3, 4)
    await save_whole(checkpoints, client, ledger)
    await step_to(ledger, 3, 8)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", full)
        with pytest.raises(ResourceExhausted, match="step-00000003"):
            await save_whole(checkpoints, client, ledger)
    assert (await restored(checkpoints, tmp_path / "before")).next_order_number == 4
    await save_whole(checkpoints, client, ledger)
    assert (await restored(checkpoints, tmp_path / "after")).next_order_number == 8


async def long_step(ledger: Ledger, step: int) -> None:
    """Brings the group of a step, with 16 completions of 8,192 tokens each, to TRAINED, and the next one to SCORED."""
    tokens = np.arange(8192, dtype=np.int32)
    completions = [
        Completion(
            sample_index=index,
            token_ids=tokens,
            behavior_logprobs=-tokens.astype(np.float32),
            finish_reason=FinishReason.LENGTH,
            version_spans=(VersionSpan(WeightVersion(0, step), 0, len(tokens)),),
            seed=index,
            text="word " * len(tokens),
        )
        for index in range(16)
    ]
    prompt = Prompt("long:0", tokens[:8], "a question", ())
    await ledger.issued(step, step, f"group-{step}", prompt, "", step, "")
    await ledger.sampled(step, completions, step, "generator-0")
    await ledger.scored(step, [Score(each.sample_index, ScoreOutcome.SCORED, 1.0) for each in completions], step)
    if step:
        used = TrainedGroup(step - 1, 1, tuple(Rollout(each, 0.5, reward=1.0) for each in completions))
        await ledger.step_done(Progress(step, step, step * 16), trained=[used], dropped=())


async def test_a_checkpoint_of_long_completions_writes_no_more_late_in_a_run_than_early(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "SEGMENT_BYTES", 4 << 20)
    checkpoints, client = Checkpoints(tmp_path), Learner()
    written: list[int] = []
    num_token_bytes: list[int] = []
    for step in range(25):
        await long_step(ledger, step)
        saved, _ = await save_whole(checkpoints, client, ledger)
        written.append(sum(path.stat().st_size for path in (tmp_path / "checkpoints" / saved).iterdir()))
        num_token_bytes.append(sum(path.stat().st_size for path in (tmp_path / "segments").glob("tokens-*")))
    state = (tmp_path / "ledger.sqlite").stat().st_size
    await ledger.close()
    sampled = 25 * 16 * 8192 * (8 + len("word "))
    assert max(written) < sampled / 100, f"a checkpoint writes {max(written)} of the {sampled} bytes sampled"
    assert max(written[4:]) - min(written[4:]) <= 4096, f"the bytes of each checkpoint: {written}"
    assert state < sampled / 100, f"ledger.sqlite has {state} of the {sampled} bytes sampled"
    assert num_token_bytes[-1] <= num_token_bytes[8], f"the tokens on the disk grow: {num_token_bytes}"


async def test_a_restored_ledger_has_the_texts_of_its_checkpoint_and_the_abandoned_one_has_its_own(
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    checkpoints, client = Checkpoints(tmp_path), Learner()
    await long_step(ledger, 0)
    await save_whole(checkpoints, client, ledger)
    await long_step(ledger, 1)
    await ledger.close()  # Its process dies here.
    with (tmp_path / "segments" / "text-00000001.segment").open("ab") as file:
        file.write(b"half of a rec")
    checkpoints.restore_ledger(checkpoints.load_manifest("step-00000000"), tmp_path / "ledger.sqlite", attempt=1)
    resumed = Ledger(tmp_path / "ledger.sqlite", attempt=1)
    await resumed.open()
    assert (await resumed.issue_state()).assigned == {0: 0}, "a group after the checkpoint is still in the ledger"
    await long_step(resumed, 0)
    await long_step(resumed, 1)
    await save_whole(checkpoints, client, resumed, attempt=1, keep_last=2)
    await resumed.close()
    named = {segment.name for segment in checkpoints.load_manifest("step-00000001").segments}
    assert {name for name in named if name.startswith("text")} == {f"text-{index:08d}.segment" for index in (1, 3)}
    for name in ("ledger.sqlite", "ledger.attempt-0.sqlite"):
        folder = tmp_path / f"copy of {name}"
        folder.mkdir()
        (folder / "ledger.sqlite").write_bytes((tmp_path / name).read_bytes())
        (folder / "segments").symlink_to(tmp_path / "segments")
        texts = [group.rollouts[0].text[:9] for group in list_rollouts(folder, pb.ListRolloutsRequest()).groups]
        assert texts == ["word word"] * 2, f"{name} has {texts}"


async def test_the_best_checkpoint_stays_besides_the_last_ones(tmp_path: Path) -> None:
    run = await MirroredRun(tmp_path).open()
    left: list[list[int]] = []
    for step, best_step in ((1, 1), (2, 1), (3, 1), (4, 4), (5, 4), (6, 4)):
        await run.save(step, best_step, keep_last=1)
        left.append(run.checkpoints.steps())
    await run.ledger.close()
    assert left == [[1], [1, 2], [1, 3], [4], [4, 5], [4, 6]], left
    assert run.learner.kept == ["step-00000004", "step-00000005"], "the learner deletes what the coordinator keeps"


async def test_what_somebody_else_put_beside_the_checkpoints_is_passed_over(tmp_path: Path) -> None:
    checkpoints, ledger = Checkpoints(tmp_path), Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    await step_to(ledger, 1, 4)
    await save_whole(checkpoints, Learner(), ledger)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000001", folder / "step-00000001-copy")
    (folder / ".nfs000000000012").write_text("a file that NFS keeps for a process that has it open")
    (folder / "mine").mkdir()
    (folder / "mine" / "ledger.sqlite").write_text("mine")
    for step in (2, 3):
        await step_to(ledger, step, 4 * step)
        assert await save_whole(checkpoints, Learner(), ledger, keep_last=1) == (f"step-{step:08d}", True)
    assert checkpoints.committed() == ["step-00000003"] and checkpoints.steps() == [3]
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {
        ".nfs000000000012", "mine/ledger.sqlite", "step-00000001-copy/ledger.sqlite",
        "step-00000001-copy/manifest.json", "step-00000003/ledger.sqlite", "step-00000003/manifest.json",
    }  # fmt: skip


async def test_each_checkpoint_keeps_as_many_as_are_to_be_kept_then(tmp_path: Path) -> None:
    run = await MirroredRun(tmp_path).open()
    left: list[list[int]] = []
    for step, keep_last in ((1, 2), (2, 2), (3, 3), (4, 1)):
        await run.save(step, keep_last=keep_last)
        left.append(run.checkpoints.steps())
    await run.ledger.close()
    assert left == [[1], [1, 2], [1, 2, 3], [4]], left


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", "0"),
        ("policy_version", 1.5),
        ("policy_version", True),
        ("next_order_number", None),
        ("snapshot", "../../other/ledger.sqlite"),
        ("ledger_sha256", None),
        ("learner_files", {}),
        ("learner_files", [{"path": 3}]),
        ("segments", [{"name": "text"}]),
        ("checkpoint_id", "step-00000002"),
    ],
)
async def test_a_manifest_with_a_value_that_cannot_be_is_damaged(tmp_path: Path, field: str, value: object) -> None:
    checkpoints, ledger = Checkpoints(tmp_path), Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    checkpoint_id, _ = await save_whole(checkpoints, Learner(), ledger)
    await ledger.close()
    path = tmp_path / "checkpoints" / checkpoint_id / "manifest.json"
    values = json.loads(path.read_text())
    assert checkpoints.load_checked(checkpoint_id).snapshot
    path.write_text(json.dumps(values | {field: value}))
    with pytest.raises(DataLoss, match=r"manifest\.json cannot be read") as caught:
        checkpoints.load_manifest(checkpoint_id)
    assert caught.value.reason == "CHECKPOINT_DAMAGED"
    assert checkpoints.newest_age([checkpoint_id]) is None
