"""Segments that a restore finds damaged or missing."""

from pathlib import Path

import pytest

from services.coordinator.remote import segment_check as module
from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.remote.segment_check import SegmentCheck
from services.coordinator.store.events import EventLog
from services.coordinator.store.segments.segment import SegmentDigest
from tests.support.mirrored_run import MirroredRun

Reports = list[tuple[str, str, str]]


class Checked:
    """A run with a checkpoint, and the check of its segments."""

    def __init__(self, run: MirroredRun, url: str) -> None:
        self.folder = run.folder / "segments"
        self.segments = run.checkpoints.load_manifest("step-00000001").segments
        self.events = EventLog(run.folder / "events.jsonl")
        self.mirroring = Mirroring(url, run.places, self.events)
        self.reports: Reports = []
        self.check = SegmentCheck(run.folder, self.mirroring, lambda *report: self.reports.append(report))

    def path(self, series: str) -> Path:
        (path,) = self.folder.glob(f"{series}-*")
        return path


async def checked(folder: Path, url: str = "") -> Checked:
    run = await MirroredRun(folder).open()
    await run.save(1)
    await run.ledger.close()
    case = Checked(run, url)
    case.mirroring.offer(run.checkpoints.contents("step-00000001"), keep_last=2)
    await case.mirroring.finish()
    return case


async def test_what_is_missing_cut_off_or_changed_is_reported_and_what_is_longer_is_whole(tmp_path: Path) -> None:
    case = await checked(tmp_path)
    with case.path("text").open("ab") as file:
        file.write(b"what an abandoned attempt wrote")
    await case.check.run(case.segments)
    assert not case.reports
    content = case.path("text").read_bytes()
    damages = {"SHA-256": b"x" + content[1:], "has 3 of": content[:3], "No such file": None}
    for reason, damage in damages.items():
        if damage is None:
            case.path("text").unlink()
        else:
            case.path("text").write_bytes(damage)
        case.check = SegmentCheck(tmp_path / "sums", case.mirroring, lambda *report: case.reports.append(report))
        await case.check.run(case.segments)
        ((name, why, source),) = case.reports
        assert (name, source) == ("text-00000001.segment", "") and reason in why, why
        case.reports.clear()


async def test_a_segment_that_the_mirror_has_is_taken_from_there(tmp_path: Path) -> None:
    url = str(tmp_path / "mirror")
    case = await checked(tmp_path / "here", url)
    whole = {series: case.path(series).read_bytes() for series in ("text", "groups")}
    case.path("text").write_bytes(b"x" + whole["text"][1:])
    groups = case.path("groups")
    groups.unlink()
    await case.check.run(case.segments)
    assert [(name, source) for name, _, source in case.reports] == [(groups.name, url), ("text-00000001.segment", url)]
    assert {series: case.path(series).read_bytes() for series in whole} == whole
    assert not list(case.folder.glob(".*")), "a part of the transfer is left"


async def test_a_segment_that_was_whole_is_not_read_again_until_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = await checked(tmp_path)
    await case.check.run(case.segments)
    read: list[str] = []
    monkeypatch.setattr(module, "_wrong_content", lambda path, segment: read.append(path.name) or "")
    (text,) = [each for each in case.segments if each.name.startswith("text")]
    with case.path("text").open("ab") as file:
        file.write(b"more")
    await case.check.run([*case.segments, SegmentDigest(text.name, text.num_bytes + 4, "")])
    assert read == [text.name], read
