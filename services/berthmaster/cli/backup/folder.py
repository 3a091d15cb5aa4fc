"""A backup's folder: `backup.json` lists its contents, and segments hold each stream's messages.

A segment is written once and never changed. Segments count only after the run replaces
`backup.json`, its last step. The next run overwrites leftovers of an interrupted run.

The folder may come from another machine, so a reader trusts none of its bytes. File names follow
from a stream's name and from sequences, never from `backup.json`. No link in the folder is
followed. Every file has a maximum size, packed and unpacked. Example: a stream called `../../etc`
is refused as BrokenBackup before any file is opened.
"""

import errno
import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from berthmaster.cli.backup.core import BrokenBackup, Record, records
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.nats.streams import ARCHIVE, CONTROL, DEAD, FOLLOWED, REPUBLISH, WORKLOADS

MANIFEST: Final = "backup.json"
KEPT: Final = {  # stream -> subjects
    stream: list(FOLLOWED[stream]) for stream in (WORKLOADS, CONTROL, DEAD, ARCHIVE)
}
ROUTES: Final = ("subjects", "republish", "mirror", "sources", "subject_transform")
SEGMENT_BYTES: Final = 16 * 1024 * 1024  # size from which a writer begins the next segment
# with a message of maximum size at the end
MAX_SEGMENT_BYTES: Final = SEGMENT_BYTES + 65 * 1024 * 1024
MAX_SEQUENCE: Final = 1 << 32
MAX_MANIFEST_BYTES: Final = 256 * 1024 * 1024
Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]


class Segment(msgspec.Struct, kw_only=True):
    """One compressed file of messages."""

    first: Sequence
    last: Sequence
    messages: Sequence
    sha256: str


class KeptStream(msgspec.Struct, kw_only=True):
    """The contents of one stream in a backup."""

    created: str  # incarnation of the stream
    config: dict[str, Any]
    first: Sequence = 0  # first sequence of the stream at the last read
    last: Sequence = 0
    segments: list[Segment] = []


class Manifest(msgspec.Struct, kw_only=True, tag="backup.v1"):
    taken_at_s: float = 0.0
    streams: dict[str, KeptStream] = {}


_MANIFEST: Final = msgspec.json.Decoder(Manifest)


def segment_name(segment: Segment) -> str:
    """Return the file name of a segment in its stream's folder."""
    return f"{segment.first:020d}-{segment.last:020d}.seg"


def load(folder: Path) -> Manifest | None:
    """Return the manifest; None = no backup. Raises BrokenBackup."""
    file = folder / MANIFEST
    try:
        manifest = _MANIFEST.decode(_read(folder, "", MANIFEST, MAX_MANIFEST_BYTES))
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise BrokenBackup(f"{file}: {error}") from error
    for name, kept in manifest.streams.items():
        if name not in KEPT:
            right = ", ".join(KEPT)
            raise BrokenBackup(f"{file}: no backup has a stream {name[:64]!r}; right is {right}")
        if routes := _routes(name, kept.config):
            raise BrokenBackup(f"{file}: {name} would lead messages elsewhere by {routes}")
        before = 0
        for segment in kept.segments:
            if not before < segment.first <= segment.last <= kept.last:
                which = f"{name} from {segment.first} to {segment.last}"
                right = f"segments in order, behind {before} and up to {kept.last}"
                raise BrokenBackup(f"{file}: segment {which}; right is {right}")
            before = segment.last
    return manifest


def _routes(name: str, config: dict[str, Any]) -> str:
    """Return the settings through which a restored stream would take or send other messages.

    "" = none.
    """
    own = {"subjects": KEPT[name], "republish": REPUBLISH}
    wrong = [each for each in ROUTES if (config.get(each) or None) != own.get(each)]
    return ", ".join(wrong)


def save(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, and thereby commit the segments."""
    raw = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    _put(folder, "", MANIFEST, raw)


def write_segment(folder: Path, stream: str, raw: bytes, first: int, last: int, n: int) -> Segment:
    """Write a segment with the bytes of some records."""
    packed = zlib.compress(raw, 1)
    digest = hashlib.sha256(packed).hexdigest()
    segment = Segment(first=first, last=last, messages=n, sha256=digest)
    _put(folder, stream, segment_name(segment), packed)
    return segment


def read_segment(folder: Path, stream: str, segment: Segment) -> Iterator[Record]:
    """Yield a segment's records, with rising sequences. Raises BrokenBackup, OSError."""
    name = segment_name(segment)
    file = folder / stream / name
    packed = _read(folder, stream, name, MAX_SEGMENT_BYTES)
    if hashlib.sha256(packed).hexdigest() != segment.sha256:
        raise BrokenBackup(f"{file} is not what was written")
    before = segment.first - 1
    for record in records(_unpacked(file, packed, MAX_SEGMENT_BYTES)):
        if not before < record.sequence <= segment.last:
            where = f"behind {before} and up to {segment.last}"
            raise BrokenBackup(f"{file}: sequence {record.sequence}; right is one {where}")
        before = record.sequence
        yield record


def _unpacked(file: Path, packed: bytes, most: int) -> bytes:
    """Return the unpacked bytes, at most ``most``. Raises BrokenBackup, also above the limit."""
    unpacking = zlib.decompressobj()
    try:
        raw = unpacking.decompress(packed, most)
        if unpacking.unconsumed_tail and unpacking.decompress(unpacking.unconsumed_tail, 1):
            raise BrokenBackup(f"{file} unpacks to more than {most:,} bytes; right is at most that")
    except zlib.error as error:
        raise BrokenBackup(f"{file}: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise BrokenBackup(f"{file} is cut off, or has bytes behind its end")
    return raw


@contextmanager
def _opened(folder: Path, stream: str) -> Iterator[int]:
    """Open the folder of a stream ("" = the backup's own) as a descriptor.

    A link in its place would lead out of the backup. Raises BrokenBackup, OSError.
    """
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if stream:
            outer, at = at, _inner(folder, stream, at)
            os.close(outer)
        yield at
    finally:
        os.close(at)


def _inner(folder: Path, stream: str, outer: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(stream, flags, dir_fd=outer)
    except NotADirectoryError:
        where = folder / stream
        raise BrokenBackup(f"{where} is a link or a file; right is a folder") from None


def _read(folder: Path, stream: str, name: str, most: int) -> bytes:
    """Return a file of at most ``most`` bytes. Raises BrokenBackup, OSError."""
    file = folder / stream / name
    with _opened(folder, stream) as at:
        try:
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise BrokenBackup(f"{file} is a link; right is a file") from None
    with os.fdopen(opened, "rb") as source:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            what = f"{status.st_size:,} bytes" if stat.S_ISREG(status.st_mode) else "no file"
            raise BrokenBackup(f"{file} is {what}; right is a file of at most {most:,} bytes")
        return source.read(most)


def _put(folder: Path, stream: str, name: str, raw: bytes) -> None:
    """Write a file atomically. Raises BrokenBackup, OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = f"{name}.new"
    if stream:
        with _opened(folder, "") as at:
            try:
                os.mkdir(stream, 0o700, dir_fd=at)
            except FileExistsError:
                pass
    with _opened(folder, stream) as at:
        try:  # an interrupted run may have left a file, or an attacker a link
            os.unlink(beside, dir_fd=at)
        except FileNotFoundError:
            pass
        made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=at)
        with os.fdopen(made, "wb") as out:
            os.fchmod(out.fileno(), 0o600)
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, name, src_dir_fd=at, dst_dir_fd=at)
