import hashlib
from pathlib import Path

import pytest

from services.coordinator.store.segments import series
from services.coordinator.store.segments.segment import read_record
from services.coordinator.store.segments.series import SegmentWriter, Series, segment_name


def test_segments_end_at_their_size_and_their_digests_are_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "SEGMENT_BYTES", 100)
    writer = SegmentWriter(tmp_path)
    records = [bytes([index]) * 30 for index in range(8)]
    places = [writer.append(Series.TEXT, record) for record in records]
    assert [place.segment for place in places] == [1, 1, 1, 2, 2, 2, 3, 3]
    for place, record in zip(places, records, strict=True):
        path = tmp_path / segment_name(Series.TEXT, place.segment)
        assert read_record(path, place.offset, place.num_bytes) == record
    for digest in writer.digests():
        content = (tmp_path / digest.name).read_bytes()
        assert (digest.num_bytes, digest.sha256) == (len(content), hashlib.sha256(content).hexdigest()), digest
    writer.sync(writer.digests())
    writer.close()


def test_a_later_process_leaves_a_torn_tail_where_it_is(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    place = writer.append(Series.TEXT, b"whole")
    writer.close()
    torn = tmp_path / segment_name(Series.TEXT, place.segment)
    torn.write_bytes(torn.read_bytes() + b"\x09\x00")
    later = SegmentWriter(tmp_path)
    assert later.append(Series.TEXT, b"more").segment == 2, "it wrote into the segment of an earlier process"
    assert read_record(torn, place.offset, place.num_bytes) == b"whole"
    later.close()


def test_tokens_that_nobody_needs_go_and_texts_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "SEGMENT_BYTES", 1)
    writer = SegmentWriter(tmp_path)
    for kind in (Series.TEXT, Series.TOKENS, Series.TOKENS):
        writer.append(kind, b"x")
    writer.delete_tokens({segment_name(Series.TOKENS, 3)})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {segment_name(Series.TEXT, 1), segment_name(Series.TOKENS, 3)}, left
    assert {digest.name for digest in writer.digests()} == left
    writer.close()


def test_what_a_failed_transaction_appended_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "SEGMENT_BYTES", 1000)
    writer = SegmentWriter(tmp_path)
    kept = writer.append(Series.TEXT, b"kept" * 20)
    before = writer.digests()
    for _ in range(500):
        with pytest.raises(RuntimeError), writer.transaction():
            writer.append(Series.TEXT, b"lost" * 50)
            writer.append(Series.TOKENS, b"lost" * 50)
            raise RuntimeError
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {segment_name(Series.TEXT, 1): before[0].num_bytes, segment_name(Series.TOKENS, 2): 0}, sizes
    assert writer.digests()[0] == before[0]
    with writer.transaction():
        more = writer.append(Series.TEXT, b"more")
    path = tmp_path / segment_name(Series.TEXT, 1)
    assert read_record(path, kept.offset, kept.num_bytes) == b"kept" * 20
    assert read_record(path, more.offset, more.num_bytes) == b"more"
    assert writer.digests()[0].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    writer.close()


def test_a_segment_that_ends_in_a_failed_transaction_is_followed_by_one_that_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "SEGMENT_BYTES", 100)
    writer = SegmentWriter(tmp_path)
    writer.append(Series.TEXT, b"kept")
    for _ in range(50):
        with pytest.raises(RuntimeError), writer.transaction():
            writer.append(Series.TEXT, b"x" * 60)
            writer.append(Series.TEXT, b"x" * 20)
            raise RuntimeError
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert total < 300, f"{total} bytes are left of 50 transactions that failed"
    place = writer.append(Series.TEXT, b"more")
    assert read_record(tmp_path / segment_name(Series.TEXT, place.segment), place.offset, place.num_bytes) == b"more"
    writer.close()
