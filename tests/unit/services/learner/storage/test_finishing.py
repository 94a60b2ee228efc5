"""The second half of a checkpoint on ranks that are threads, with a real store between them."""

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage import finishing as module
from services.learner.storage.atomic_folder import sha256_of, start_folder, sync
from services.learner.storage.checkpoints import FileDigest
from services.learner.storage.finishing import CheckpointFinisher
from shoal.errors import FailedPrecondition, Internal, ResourceExhausted
from shoal.paths import step_name
from tests.support.waiting import PATIENCE_S, block_until

Files = list[FileDigest]


def finishers(size: int) -> list[CheckpointFinisher]:
    """The finishers of some ranks, whose process groups have no collectives."""
    store = dist.HashStore()
    ranks = []
    for rank in range(size):
        group = ProcessGroup.__new__(ProcessGroup)
        group.rank, group.size, group._store = rank, size, store
        ranks.append(CheckpointFinisher(group))
    return ranks


def write(checkpoints: Path, name: str, size: int) -> list[Path]:
    """Writes a file for each rank into the partial folder of a checkpoint."""
    partial = start_folder(checkpoints / name / "learner")
    for rank in range(size):
        (partial / f"shard-{rank}").write_text(f"{name} of rank {rank}")
    return sorted(partial.iterdir())


def begin(
    ranks: list[CheckpointFinisher], checkpoints: Path, name: str, keep: tuple[str, ...] = ()
) -> "list[Future[Files]]":
    ranks[0].wait()  # As a command does before it writes.
    shards = write(checkpoints, name, len(ranks))
    return [rank.begin(checkpoints, name, [shard], keep=keep) for rank, shard in zip(ranks, shards, strict=True)]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no niceness of its own")
def test_the_thread_that_digests_files_gives_way_to_train_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    niceness: list[int] = []

    def noting(path: Path) -> None:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    monkeypatch.setattr(module, "sync", noting)
    (future,) = begin(finishers(1), tmp_path, step_name(1))
    assert future.result(PATIENCE_S)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert niceness == [min(19, own + 10)], f"the thread has {niceness}, and this one {own}"


def failing_at(shard: str, error: Exception) -> Callable[[Path], None]:
    def fail(path: Path) -> None:
        if path.name == shard:
            raise error
        sync(path)

    return fail


def test_a_checkpoint_gets_its_name_with_the_digests_of_all_ranks_once_all_have_synced_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()

    def held(path: Path) -> None:
        if path.name == "shard-1":
            assert may_sync.wait(PATIENCE_S)
        sync(path)

    monkeypatch.setattr(module, "sync", held)
    saving, _ = begin(finishers(2), tmp_path, step_name(1))
    folder = tmp_path / step_name(1) / "learner"
    assert not saving.done() and not folder.exists(), "it has its name before all files are on disk"
    may_sync.set()
    found = saving.result(PATIENCE_S)
    assert [file.path for file in found] == ["shard-0", "shard-1"]
    assert [file.sha256 for file in found] == [sha256_of(folder / file.path) for file in found]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ResourceExhausted),
        (OSError(errno.EACCES, "Permission denied"), FailedPrecondition),
        (ValueError("a defect"), Internal),
    ],
)
def test_what_fails_on_one_rank_leaves_nothing_of_the_checkpoint_and_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, error: Exception, kind: type[Exception]
) -> None:
    ranks = finishers(2)
    with monkeypatch.context() as patch:
        patch.setattr(module, "sync", failing_at(f"shard-{rank}", error))
        saving, _ = begin(ranks, tmp_path, step_name(1))
        with pytest.raises(kind, match=f"rank {rank}: "):
            saving.result(PATIENCE_S)
    block_until(lambda: not list(tmp_path.iterdir()), "the partial folder is deleted")
    saving, _ = begin(ranks, tmp_path, step_name(2))
    assert len(saving.result(PATIENCE_S)) == 2
    assert [path.name for path in tmp_path.iterdir()] == [step_name(2)]


def test_a_rank_that_dies_leaves_the_checkpoint_without_its_name(tmp_path: Path) -> None:
    ranks = finishers(2)
    shards = write(tmp_path, step_name(1), 2)
    saving = ranks[0].begin(tmp_path, step_name(1), shards[:1], keep=())
    with pytest.raises(TimeoutError):
        saving.result(0.2)
    assert [path.name for path in (tmp_path / step_name(1)).iterdir()] == ["learner.partial"]


def test_the_next_checkpoint_waits_for_the_one_before_and_deletes_what_others_left(tmp_path: Path) -> None:
    ranks = finishers(2)
    write(tmp_path, step_name(0), 2)
    copy = shutil.copytree(tmp_path / step_name(0), tmp_path / "keep_this")
    for name, keep in (
        (step_name(1), ()),
        (step_name(2), (step_name(1),)),
        (step_name(3), (step_name(2),)),
    ):
        saving, _ = begin(ranks, tmp_path, name, keep)
    saving.result(PATIENCE_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keep_this", step_name(2), step_name(3)]
    assert len([path for path in copy.rglob("*") if path.is_file()]) == 2, "somebody's copy lost its shards"
