"""A backup's folder as a stranger may have made it: no file outside it, and no bomb inside it."""

import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.cli.backup import folder as files
from berthmaster.cli.backup.core import BrokenBackup, Record, written
from berthmaster.cli.backup.folder import KEPT, KeptStream, Manifest, Segment
from berthmaster.lib.nats.streams import CONTROL, REPUBLISH, WORKLOADS, stream_configs

RECORD = Record("s", 3, 4, b"data")
CONFIG: dict[str, Any] = {
    "name": CONTROL,
    "subjects": KEPT[CONTROL],
    "republish": REPUBLISH,
}


def _manifest(folder: Path, **changes: object) -> None:
    """Write a manifest of CONTROL with these members instead of right ones."""
    stream = {"created": "x", "config": CONFIG, "first": 1, "last": 9, "segments": []}
    raw = {"type": "backup.v1", "streams": {CONTROL: stream | changes}}
    (folder / files.MANIFEST).write_bytes(msgspec.json.encode(raw))


def _segment(folder: Path, packed: bytes, first: int = 3, last: int = 3) -> Segment:
    """Lay a segment of any bytes into the folder, with the right digest."""
    digest = hashlib.sha256(packed).hexdigest()
    segment = Segment(first=first, last=last, messages=1, sha256=digest)
    (folder / CONTROL).mkdir(exist_ok=True)
    (folder / CONTROL / files.segment_name(segment)).write_bytes(packed)
    return segment


def test_folder_reads_back_what_it_wrote(tmp_path: Path) -> None:
    segment = files.write_segment(tmp_path, CONTROL, written(RECORD), 3, 3, 1)
    kept = KeptStream(created="x", config=CONFIG, first=3, last=9, segments=[segment])
    files.save(tmp_path, Manifest(streams={CONTROL: kept}))
    assert files.load(tmp_path) == Manifest(streams={CONTROL: kept})
    assert list(files.read_segment(tmp_path, CONTROL, segment)) == [RECORD]
    assert sorted(path.name for path in (tmp_path / CONTROL).iterdir()) == [
        files.segment_name(segment)
    ]


def test_segment_that_was_changed_is_refused(tmp_path: Path) -> None:
    segment = files.write_segment(tmp_path, CONTROL, written(RECORD), 3, 3, 1)
    file = tmp_path / CONTROL / files.segment_name(segment)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(BrokenBackup, match="not what was written"):
        list(files.read_segment(tmp_path, CONTROL, segment))


def test_load_of_a_folder_without_a_manifest_is_none(tmp_path: Path) -> None:
    assert files.load(tmp_path) is None
    (tmp_path / files.MANIFEST).write_text("{")
    with pytest.raises(BrokenBackup, match="backup"):
        files.load(tmp_path)


@pytest.mark.parametrize("name", ["../../outside", "/outside", "..", "", ".", "WORKLOADS/../x"])
def test_manifest_with_a_strange_stream_is_refused(tmp_path: Path, name: str) -> None:
    raw = {"type": "backup.v1", "streams": {name: {"created": "x", "config": {}, "last": 9}}}
    (tmp_path / files.MANIFEST).write_bytes(msgspec.json.encode(raw))
    with pytest.raises(BrokenBackup, match="no backup has a stream"):
        files.load(tmp_path)


def test_file_names_of_a_manifest_name_no_file(tmp_path: Path) -> None:
    outside = tmp_path / "victim"
    outside.write_text("mine")
    folder = tmp_path / "backup"
    folder.mkdir()
    _manifest(folder, removed="../victim", segments=[])
    manifest = files.load(folder)
    assert manifest is not None
    files.save(folder, manifest)
    assert outside.read_text() == "mine"
    assert b"victim" not in (folder / files.MANIFEST).read_bytes()


@pytest.mark.parametrize(
    "pairs",
    [*([(1, 5), (1, 5)], [(1, 5), (5, 6)], [(4, 3)], [(0, 3)], [(8, 10)]), [(6, 7), (1, 2)]],
)
def test_manifest_with_segments_out_of_order_is_refused(
    tmp_path: Path, pairs: list[tuple[int, int]]
) -> None:
    segments = [{"first": a, "last": b, "messages": 1, "sha256": ""} for a, b in pairs]
    _manifest(tmp_path, segments=segments)
    with pytest.raises(BrokenBackup, match="segments in order"):
        files.load(tmp_path)


@pytest.mark.parametrize("last", [2**40, 2**63, -1, "../x"])
def test_manifest_with_a_sequence_beyond_bounds_is_refused(tmp_path: Path, last: object) -> None:
    _manifest(tmp_path, last=last)
    with pytest.raises(BrokenBackup, match="last"):
        files.load(tmp_path)


@pytest.mark.parametrize(
    "route",
    [
        {"republish": {"src": "berth.control.>", "dest": "berth.assign.>"}},
        {"sources": [{"name": "FLEET"}]},
        {"mirror": {"name": "FLEET"}},
        {"subject_transform": {"src": ">", "dest": "berth.decision.all"}},
        {"subjects": [">"]},
    ],
)
def test_manifest_whose_stream_leads_messages_elsewhere_is_refused(
    tmp_path: Path, route: dict[str, Any]
) -> None:
    _manifest(tmp_path, config=CONFIG | route)
    with pytest.raises(BrokenBackup, match=f"lead messages elsewhere by {next(iter(route))}"):
        files.load(tmp_path)


def test_manifest_with_our_own_configurations_is_read(tmp_path: Path) -> None:
    configs = {each["name"]: each for each in stream_configs(replicas=1)}
    kept = {name: KeptStream(created="x", config=configs[name]) for name in KEPT}
    files.save(tmp_path, Manifest(streams=kept))
    found = files.load(tmp_path)
    assert found is not None
    assert found.streams[WORKLOADS].config["republish"]


def test_segment_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    packing = zlib.compressobj(9)
    block = bytes(1 << 24)
    packed = b"".join(packing.compress(block) for _ in range(8)) + packing.flush()
    segment = _segment(tmp_path, packed)
    with pytest.raises(BrokenBackup, match="unpacks to more than"):
        list(files.read_segment(tmp_path, CONTROL, segment))


@pytest.mark.parametrize(
    "packed",
    [b"", b"\x00", zlib.compress(written(RECORD))[:-4], zlib.compress(written(RECORD)) + b"x"],
)
def test_segment_that_is_no_whole_stream_is_refused(tmp_path: Path, packed: bytes) -> None:
    segment = _segment(tmp_path, packed)
    with pytest.raises(BrokenBackup):
        list(files.read_segment(tmp_path, CONTROL, segment))


@pytest.mark.parametrize("sequences", [[2], [4], [3, 3], [3, 2], [2**63]])
def test_segment_with_other_sequences_is_refused(tmp_path: Path, sequences: list[int]) -> None:
    raw = b"".join(written(RECORD._replace(sequence=one)) for one in sequences)
    segment = _segment(tmp_path, zlib.compress(raw))
    with pytest.raises(BrokenBackup, match="right is one behind"):
        list(files.read_segment(tmp_path, CONTROL, segment))


def test_links_in_a_backup_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("mine")
    folder = tmp_path / "backup"
    folder.mkdir()
    # In place of a stream's folder.
    (folder / CONTROL).symlink_to(outside)
    with pytest.raises(BrokenBackup, match="right is a folder"):
        files.write_segment(folder, CONTROL, b"", 3, 3, 1)
    (folder / CONTROL).unlink()
    # In place of the file that a run begins, and of the one that it replaces.
    for name in (files.MANIFEST, f"{files.MANIFEST}.new"):
        (folder / name).symlink_to(outside / "victim")
    with pytest.raises(BrokenBackup, match="is a link"):
        files.load(folder)
    files.save(folder, Manifest())
    assert files.load(folder) == Manifest()
    # In place of a segment.
    segment = files.write_segment(folder, CONTROL, written(RECORD), 3, 3, 1)
    file = folder / CONTROL / files.segment_name(segment)
    file.rename(outside / "segment")
    file.symlink_to(outside / "segment")
    with pytest.raises(BrokenBackup, match="is a link"):
        list(files.read_segment(folder, CONTROL, segment))
    assert sorted(path.name for path in outside.iterdir()) == ["segment", "victim"]
    assert (outside / "victim").read_text() == "mine"


def test_pipe_in_place_of_a_segment_is_refused_at_once(tmp_path: Path) -> None:
    segment = _segment(tmp_path, b"")
    file = tmp_path / CONTROL / files.segment_name(segment)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(BrokenBackup, match="is no file"):
        list(files.read_segment(tmp_path, CONTROL, segment))
