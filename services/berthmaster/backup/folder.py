"""A backup's folder: `backup.json` says what belongs to it, segments of each stream hold messages.

A segment is written once and never again. What a run adds counts from the moment when `backup.json`
is replaced, the last thing that it does; what a run that was cut short left behind is overwritten.
"""

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from berthmaster.backup.core import BrokenBackup, Record, records
from berthmaster.messages.families import UNREADABLE

MANIFEST: Final = "backup.json"


class Segment(msgspec.Struct, kw_only=True):
    """One file of messages, compressed."""

    file: str
    first: int
    last: int
    messages: int
    sha256: str


class KeptStream(msgspec.Struct, kw_only=True):
    """What a backup has of one stream."""

    created: str  # which making of it
    config: dict[str, Any]
    first: int = 0  # that the stream had still, when it was read last
    last: int = 0
    removed: str = ""  # file of the numbers that it had no more then; bits, compressed
    segments: list[Segment] = []


class Manifest(msgspec.Struct, kw_only=True, tag="backup.v1"):
    """The whole of it."""

    taken_at_s: float = 0.0
    streams: dict[str, KeptStream] = {}


_MANIFEST: Final = msgspec.json.Decoder(Manifest)


def load(folder: Path) -> Manifest | None:
    """What is there; None = no backup. Raises BrokenBackup."""
    file = folder / MANIFEST
    if not file.exists():
        return None
    try:
        return _MANIFEST.decode(file.read_bytes())
    except UNREADABLE as error:
        raise BrokenBackup(f"{file}: {error}") from error


def save(folder: Path, manifest: Manifest) -> None:
    """Make it count."""
    raw = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    _put(folder / MANIFEST, raw)


def write_segment(folder: Path, stream: str, raw: bytes, first: int, last: int, n: int) -> Segment:
    """Keep the bytes of some records."""
    name = f"{stream}/{first:020d}-{last:020d}.seg"
    packed = zlib.compress(raw, 1)
    _put(folder / name, packed)
    digest = hashlib.sha256(packed).hexdigest()
    return Segment(file=name, first=first, last=last, messages=n, sha256=digest)


def write_bits(folder: Path, stream: str, bits: bytes, last: int) -> str:
    """Keep a set of numbers."""
    name = f"{stream}/removed-{last:020d}.bits"
    _put(folder / name, zlib.compress(bits, 1))
    return name


def read_bits(folder: Path, name: str) -> bytes:
    """Such a set again. Raises BrokenBackup."""
    return _unpacked(folder / name, (folder / name).read_bytes()) if name else b""


def read_segment(folder: Path, segment: Segment) -> Iterator[Record]:
    """Its records. Raises BrokenBackup, OSError."""
    file = folder / segment.file
    packed = file.read_bytes()
    if hashlib.sha256(packed).hexdigest() != segment.sha256:
        raise BrokenBackup(f"{file} is not what was written")
    yield from records(_unpacked(file, packed))


def drop(folder: Path, names: Iterable[str]) -> None:
    """Delete files that belong to it no more."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _unpacked(file: Path, packed: bytes) -> bytes:
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise BrokenBackup(f"{file}: {error}") from error


def _put(file: Path, raw: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = file.with_name(f"{file.name}.new")
    with beside.open("wb") as out:
        os.fchmod(out.fileno(), 0o600)
        out.write(raw)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(file)
