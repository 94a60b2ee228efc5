"""The mirror of a run, in a folder and on a real S3 server."""

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from services.coordinator.remote import mirroring as module
from services.coordinator.remote import parts
from services.coordinator.remote.fetching import fetch_run, take_from_mirror
from services.coordinator.remote.mirror_folder import MirrorFolder, RunPlaces
from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.store.events import EventLog, read_events
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.rollouts import list_rollouts
from shoal.errors import DataLoss, FailedPrecondition, NotFound, Unavailable
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cutting_proxy import CuttingProxy
from tests.support.mirrored_run import MirroredRun
from tests.support.s3_server import s3_by_proxy, s3_server
from tests.support.watched_events import watched


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        urlopen(Request(f"http://127.0.0.1:{port}/backups", method="PUT")).close()
        yield port


@pytest.fixture
def s3(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """The way to the S3 server, which may be cut."""
    with s3_by_proxy(s3_port, monkeypatch) as proxy:
        yield proxy


async def mirrored(
    run: MirroredRun, url: str, checkpoint_id: str, *, keep_last: int = 2, best: tuple[str, ...] = ()
) -> list[str]:
    """Mirrors a checkpoint, as at the end of a run; returns the kinds of the run's events, `progress` aside."""
    events = EventLog(run.folder / "events.jsonl")
    mirroring = Mirroring(url, run.places, events)
    mirroring.offer(run.checkpoints.contents(checkpoint_id), keep_last, best)
    await mirroring.finish()
    events.close()
    kinds = [event.kind for event in read_events(run.folder / "events.jsonl")]
    return [kind for kind in kinds if kind != "progress"]  # A busy machine takes long.


async def mirrored_steps(folder: Path, *steps: int) -> tuple[MirroredRun, str]:
    """Mirrors a checkpoint of each step; returns the run, which has ended, and the mirror."""
    run, url = await MirroredRun(folder / "here").open(), str(folder / "mirror")
    for step in steps:
        await mirrored(run, url, await run.save(step))
    await run.ledger.close()
    return run, url


async def last_step(data_dir: Path) -> int:
    """The step of the checkpoint in a fetched run, whose ledger and files are read as a resume reads them."""
    step, texts = await last_step_and_texts(data_dir)
    assert texts == [f"question {number}" for number in range(1, len(texts) + 1)]
    return step


async def last_step_and_texts(data_dir: Path) -> tuple[int, list[str]]:
    """The same, and the texts of the prompts in the ledger."""
    folder = data_dir / "sums"
    checkpoints = Checkpoints(folder)
    (checkpoint_id,) = checkpoints.committed()
    manifest = checkpoints.load_manifest(checkpoint_id)
    checkpoints.restore_ledger(manifest, folder / "ledger.sqlite", attempt=1)
    ledger = Ledger(folder / "ledger.sqlite", attempt=1)
    progress = await ledger.open()
    await ledger.close()
    shard = folder / "checkpoints" / checkpoint_id / "learner" / "zero" / "rank_0.pt"
    assert shard.read_bytes().startswith(checkpoint_id.encode()) and shard.stat().st_size == 300_000
    groups = list_rollouts(folder, pb.ListRolloutsRequest()).groups
    return progress.policy_version, [group.prompt_text for group in groups]


async def test_of_a_copy_that_was_cut_off_half_way_the_one_before_is_taken(tmp_path: Path, s3: CuttingProxy) -> None:
    run, url = await MirroredRun(tmp_path / "here").open(), "s3://backups/cut"
    await mirrored(run, url, await run.save(1))
    s3.max_bytes = s3.num_bytes + 150_000
    assert (await mirrored(run, url, await run.save(2)))[-1] == "mirror_failed"
    s3.max_bytes = None
    fetch_run(url, "sums", tmp_path / "there", tmp_path / "there")
    assert await last_step(tmp_path / "there") == 1
    assert (await mirrored(run, url, "step-00000002"))[-1] == "checkpoint_mirrored", "a repeat does not complete it"
    fetch_run(url, "sums", tmp_path / "later", tmp_path / "later")
    assert await last_step(tmp_path / "later") == 2
    await run.ledger.close()


TEXT_BYTES = 300_000


def lengths(texts: list[str]) -> list[tuple[str, int]]:
    """The beginning of each text, with its length: a difference between the texts would take minutes to describe."""
    return [(text[:4], len(text)) for text in texts]


async def test_each_checkpoint_uploads_what_was_appended_however_long_the_run_is(
    tmp_path: Path, s3: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_MIN_BYTES", TEXT_BYTES // 2)
    run, url = await MirroredRun(tmp_path / "here").open(), "s3://backups/growing"
    uploads, texts = list[int](), [f"{step} ".ljust(TEXT_BYTES, "?") for step in range(1, 5)]
    for step, text in enumerate(texts, start=1):
        before = s3.num_bytes
        assert (await mirrored(run, url, await run.save(step, text=text)))[-1] == "checkpoint_mirrored"
        uploads.append(s3.num_bytes - before)
    assert min(uploads) > 300_000 + TEXT_BYTES, f"a checkpoint is not whole: {uploads}"
    assert max(uploads) < min(uploads) + TEXT_BYTES // 2, f"bytes of each checkpoint: {uploads}"
    await run.ledger.close()
    fetch_run(url, "sums", tmp_path / "there", tmp_path / "there")
    step, found = await last_step_and_texts(tmp_path / "there")
    assert (step, lengths(found)) == (len(texts), lengths(texts))
    whole = MirrorFolder(url, "sums").whole()
    (text_file,) = [file for file in whole[-1].files if file.path.startswith("segments/text")]
    assert len(text_file.parts) == len(texts), "each checkpoint adds a part"


async def test_of_a_part_that_was_cut_off_the_checkpoint_before_is_taken_and_a_repeat_completes_it(
    tmp_path: Path, s3: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_MIN_BYTES", 1)
    run, url = await MirroredRun(tmp_path / "here").open(), "s3://backups/part"
    texts = [str(step) * TEXT_BYTES for step in (1, 2)]
    await mirrored(run, url, await run.save(1, text=texts[0]))
    second = await run.save(2, text=texts[1])
    # The part is more than half of what follows, and the shards come before it.
    s3.max_bytes = s3.num_bytes + 300_000 + TEXT_BYTES // 2
    assert (await mirrored(run, url, second))[-1] == "mirror_failed"
    s3.max_bytes = None
    for folder, last in (("there", 1), ("later", 2)):
        fetch_run(url, "sums", tmp_path / folder, tmp_path / folder)
        step, found = await last_step_and_texts(tmp_path / folder)
        assert (step, lengths(found)) == (last, lengths(texts[:last]))
        await mirrored(run, url, second)
    await run.ledger.close()


async def test_small_parts_grow_and_those_that_no_checkpoint_has_any_more_are_deleted(tmp_path: Path) -> None:
    run, url = await MirroredRun(tmp_path / "here").open(), str(tmp_path / "mirror")
    for step in range(1, 7):
        await mirrored(run, url, await run.save(step), keep_last=1)
    await run.ledger.close()
    left = [path.relative_to(tmp_path / "mirror/sums") for path in (tmp_path / "mirror/sums").rglob("*.*-*.*")]
    (only,) = [path for path in left if path.name.startswith("text-")]
    size = (run.folder / "segments" / only.name.partition(".segment")[0]).with_suffix(".segment").stat().st_size
    assert only.name.split(".")[2] == f"0-{size}", f"it is not one part of all {size} bytes: {only}"
    (events,) = [path for path in left if path.name.startswith("events.jsonl")]
    assert events.name.split(".")[2].startswith("0-"), left


async def test_a_file_that_was_written_anew_shares_nothing_with_its_former_self(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_MIN_BYTES", 1)
    run, url = await MirroredRun(tmp_path / "here").open(), str(tmp_path / "mirror")
    metrics = run.folder / "metrics.jsonl"
    for step, text in ((1, "a\n"), (2, "a\nb\n"), (3, "a\nc\nd\n")):
        metrics.write_text(text)
        await mirrored(run, url, await run.save(step))
    await run.ledger.close()
    places = RunPlaces(tmp_path / "there", tmp_path / "there")
    folder = MirrorFolder(url, "sums")
    for checkpoint, text in zip(folder.whole(), ("a\nb\n", "a\nc\nd\n"), strict=True):
        folder.get(checkpoint, places)
        assert (tmp_path / "there" / "metrics.jsonl").read_text() == text


async def test_a_damaged_part_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_MIN_BYTES", 1)
    _, url = await mirrored_steps(tmp_path, 1, 2)
    last = max((tmp_path / "mirror/sums/segments").glob("text-*"), key=lambda path: path.stat().st_mtime_ns)
    assert ".0-" not in last.name
    last.write_bytes(b"x" * last.stat().st_size)
    fetch_run(url, "sums", tmp_path / "there", tmp_path / "there")
    assert await last_step(tmp_path / "there") == 1
    told = read_events(tmp_path / "there" / "sums" / "events.jsonl")[-1].message
    assert last.name in told and "step-00000002 there is damaged" in told, told


async def test_a_learner_with_storage_of_its_own_is_mirrored_and_fetched(tmp_path: Path) -> None:
    run, url = await MirroredRun(tmp_path / "here", tmp_path / "learner").open(), str(tmp_path / "mirror")
    assert (await mirrored(run, url, await run.save(1)))[-1] == "checkpoint_mirrored"
    await run.ledger.close()
    assert not (tmp_path / "here/sums/checkpoints/step-00000001/learner").exists()
    shutil.rmtree(tmp_path / "here")  # The learner's storage outlives it.
    take_from_mirror(tmp_path / "here", "sums", {"checkpoint": {"mirror": url}}, tmp_path / "learner")
    fetched = [path.name for path in (tmp_path / "learner/sums/checkpoints/step-00000001/learner/zero").iterdir()]
    assert fetched == ["rank_0.pt"] and (tmp_path / "here/sums/run.json").exists()
    left = {path.name for name in ("here", "learner") for path in (tmp_path / name).iterdir()}
    assert left == {"sums"}, f"parts of the transfer are left: {left}"


async def test_a_learners_storage_that_the_coordinator_does_not_see_is_told_with_the_cure(tmp_path: Path) -> None:
    run = await MirroredRun(tmp_path / "here", tmp_path / "learner").open()
    run.places = RunPlaces(run.folder, run.folder)
    assert (await mirrored(run, str(tmp_path / "mirror"), await run.save(1)))[-1] == "mirror_failed"
    await run.ledger.close()
    told = read_events(run.folder / "events.jsonl")[-1].message
    assert str(run.folder / "checkpoints/step-00000001/learner") in told and "bucket" not in told, told


async def test_a_damaged_copy_is_told_and_the_one_before_is_taken(tmp_path: Path) -> None:
    _, url = await mirrored_steps(tmp_path, 1, 2)
    (shard,) = (tmp_path / "mirror").glob("sums/checkpoints/step-00000002.*/learner/zero/rank_0.pt")
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    fetch_run(url, "sums", tmp_path / "there", tmp_path / "there")
    assert await last_step(tmp_path / "there") == 1
    told = read_events(tmp_path / "there" / "sums" / "events.jsonl")[-1].message
    assert "step-00000002 there is damaged" in told and "rank_0.pt" in told, told
    (tmp_path / "mirror").rename(tmp_path / "mirror.gone")
    with pytest.raises(NotFound, match="'sums'"):
        fetch_run(url, "sums", tmp_path / "elsewhere", tmp_path / "elsewhere")


async def test_where_no_copy_is_whole_nothing_is_fetched(tmp_path: Path) -> None:
    _, url = await mirrored_steps(tmp_path, 1)
    next((tmp_path / "mirror").glob("sums/checkpoints/*/config.json")).unlink()
    with pytest.raises(DataLoss, match=r"sums .*config\.json"):
        fetch_run(url, "sums", tmp_path / "there", tmp_path / "there")
    assert not list((tmp_path / "there").iterdir()), "it left something behind"


async def test_the_mirror_keeps_the_last_ones_and_the_best_and_each_segment_once(tmp_path: Path) -> None:
    run, url = await MirroredRun(tmp_path / "here").open(), str(tmp_path / "mirror")
    for step in (1, 2, 3, 4, 5):
        await mirrored(run, url, await run.save(step), keep_last=2, best=("step-00000002",))
    await run.ledger.close()
    left = sorted(path.name for path in (tmp_path / "mirror/sums/checkpoints").iterdir())
    assert left == ["step-00000002.0.3", "step-00000004.0.5", "step-00000005.0.6"], left
    segments = sorted(path.name for path in (tmp_path / "mirror/sums/segments").iterdir())
    series = [name.partition("-")[0] for name in segments]
    assert series == ["groups"] * 3 + ["text"] * 3, f"three checkpoints name two segments at three lengths: {segments}"


async def test_the_newest_checkpoint_goes_before_those_in_between_and_what_is_copied_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on, put = asyncio.Event(), threading.Event(), MirrorFolder.put
    loop = asyncio.get_running_loop()

    def held_put(*arguments: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_go_on.wait(60), "the test did not let the copy go on"
        put(*arguments)

    monkeypatch.setattr(MirrorFolder, "put", held_put)
    run = await MirroredRun(tmp_path / "here").open()
    events = EventLog(run.folder / "events.jsonl")
    mirroring = Mirroring(str(tmp_path / "mirror"), run.places, events)
    run.checkpoints = Checkpoints(run.folder, mirroring)
    await run.save(1, keep_last=1)
    await begun.wait()
    for step in (2, 3, 4):
        await run.save(step, keep_last=1)
    assert mirroring.held == {"step-00000001", "step-00000004"}
    assert run.checkpoints.committed()[0] == "step-00000001", "the checkpoint that is being copied was deleted"
    may_go_on.set()
    await mirroring.finish()
    events.close()
    await run.ledger.close()
    names = [event.attributes["checkpoint_id"] for event in read_events(run.folder / "events.jsonl")]
    assert names == ["step-00000001", "step-00000004"], names


async def test_a_mirror_that_fails_is_an_event_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.0)
    run = await MirroredRun(tmp_path / "here").open()
    (tmp_path / "mirror").write_text("no folder")
    events = EventLog(run.folder / "events.jsonl")
    mirroring = Mirroring(str(tmp_path / "mirror"), run.places, events)
    mirroring.offer(run.checkpoints.contents(await run.save(1)), keep_last=2)
    async for event in watched(events):
        if event.kind == "mirror_failed":
            (tmp_path / "mirror").unlink(missing_ok=True)
        if event.kind == "checkpoint_mirrored":
            break
    await mirroring.finish()
    events.close()
    await run.ledger.close()
    fetch_run(str(tmp_path / "mirror"), "sums", tmp_path / "there", tmp_path / "there")
    assert await last_step(tmp_path / "there") == 1


async def test_a_mirror_that_does_not_answer_is_named(tmp_path: Path, s3: CuttingProxy) -> None:
    s3.max_bytes = 0
    with pytest.raises(Unavailable, match=r"checkpoint\.mirror: .* s3://backups/away: "):
        fetch_run("s3://backups/away", "sums", tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())


async def test_a_folder_that_is_behind_its_mirror_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    run, url = await mirrored_steps(tmp_path, 1, 2)
    take_from_mirror(tmp_path / "here", "sums", {"checkpoint": {"mirror": url}})
    shutil.rmtree(run.folder / "checkpoints" / "step-00000002")
    with pytest.raises(FailedPrecondition, match=r"step 1, .*step-00000002") as caught:
        take_from_mirror(tmp_path / "here", "sums", {"checkpoint": {"mirror": url}})
    assert caught.value.reason == "MIRROR_IS_AHEAD" and run.checkpoints.steps() == [1]
    take_from_mirror(tmp_path / "here", "sums", {"checkpoint": {"mirror": ""}})


def test_a_run_that_the_folder_has_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / "run.json").write_text("{}")
    take_from_mirror(tmp_path, "sums", {"checkpoint": {"mirror": str(tmp_path / "nowhere")}})
    take_from_mirror(tmp_path, "other", {"checkpoint": {"mirror": ""}})


async def test_a_checkpoint_that_is_taken_back_replaces_the_damaged_one_and_nothing_else(tmp_path: Path) -> None:
    run, url = await MirroredRun(tmp_path / "here", tmp_path / "learner").open(), str(tmp_path / "mirror")
    for step in (1, 2):
        await mirrored(run, url, await run.save(step))
    await run.save(3)
    await run.ledger.close()
    before = {name: (run.folder / name).read_bytes() for name in ("run.json", "ledger.sqlite", "events.jsonl")}
    for folder in (run.folder, run.places.learner_folder):
        for path in [path for path in (folder / "checkpoints").rglob("*") if path.is_file()]:
            path.write_bytes(b"damaged")
    events = EventLog(run.folder / "taken.jsonl")
    assert await Mirroring(url, run.places, events).take_back() == "step-00000002"
    events.close()
    assert run.checkpoints.load_checked("step-00000002").policy_version == 2
    shard = run.places.learner_folder / "checkpoints/step-00000002/learner/zero/rank_0.pt"
    assert shard.read_bytes().startswith(b"step-00000002")
    assert [event.kind for event in read_events(run.folder / "taken.jsonl")] == ["fetched"]
    assert {name: (run.folder / name).read_bytes() for name in before} == before
    left = {path.name for name in ("here", "learner") for path in (tmp_path / name).iterdir()}
    assert left == {"sums"}, f"parts of the transfer are left: {left}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint_id": "../../../other", "files": []},
        {"checkpoint_id": "..", "files": []},
        {"attempt": "9"},
        {"next_order_number": None},
    ],
    ids=str,
)
async def test_a_mirrored_checkpoint_of_another_name_or_form_is_none_and_the_one_before_is_taken(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    run, url = await mirrored_steps(tmp_path, 1, 2)
    other = tmp_path / "other" / "learner"
    other.mkdir(parents=True)
    (newest,) = Path(url).glob("sums/checkpoints/step-00000002.*/mirror.json")
    newest.write_text(json.dumps(json.loads(newest.read_text()) | {"attempt": 9} | wrong))
    for path in run.folder.glob("checkpoints/*/manifest.json"):
        path.write_bytes(b"damaged")
    events = EventLog(run.folder / "taken.jsonl")
    assert await Mirroring(url, run.places, events).take_back() == "step-00000001"
    events.close()
    assert other.is_dir() and (run.folder / "run.json").is_file(), "what lies elsewhere was deleted"


async def test_only_a_checkpoint_that_is_newer_than_a_given_one_is_taken_back(tmp_path: Path) -> None:
    run, url = await mirrored_steps(tmp_path, 1, 2)
    first, second = (run.checkpoints.newest_age([f"step-0000000{step}"]) for step in (1, 2))
    events = EventLog(run.folder / "taken.jsonl")
    mirroring = Mirroring(url, run.places, events)
    assert [await mirroring.take_back(age) for age in (second, first)] == ["", "step-00000002"]
    events.close()
    assert [event.kind for event in read_events(run.folder / "taken.jsonl")] == ["fetched"], "nothing has failed"
    assert run.checkpoints.newest_age([]) is None


async def test_a_mirror_that_has_nothing_whole_is_told_and_gives_nothing_back(tmp_path: Path) -> None:
    run = await MirroredRun(tmp_path / "here").open()
    await run.save(1)
    await run.ledger.close()
    events = EventLog(run.folder / "events.jsonl")
    assert await Mirroring("", run.places, events).take_back() == ""
    assert await Mirroring(str(tmp_path / "mirror"), run.places, events).take_back() == ""
    events.close()
    (event,) = read_events(run.folder / "events.jsonl")
    assert event.kind == "mirror_failed" and "'sums'" in event.message
    assert run.checkpoints.load_checked("step-00000001").policy_version == 1
