"""Takes a backup of a running bus: of each stream, the messages that the folder lacks.

WORKLOADS is first and ARCHIVE last: messages that leave the log meanwhile are in the archive by
then. Before adding, the run compares the newest thousand messages of the folder with the stream. A
log that lost its end and reused its numbers is another log, and needs its own folder.
"""

from pathlib import Path
from typing import Final

import msgspec

from berthmaster.cli.backup import folder as files
from berthmaster.cli.backup.core import Record, nanoseconds, written
from berthmaster.cli.backup.folder import KEPT, SEGMENT_BYTES, KeptStream, Manifest
from berthmaster.lib.event_log.marks import all_damage, read_stream_state
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import read_all
from berthmaster.lib.nats.streams import stream_info

COMPARED: Final = 1024
INFO_LIMIT_S: Final = 60.0
READ_LIMIT_S: Final = 6 * 3600.0


class Added(msgspec.Struct, kw_only=True):
    """The result of one run for one stream."""

    stream: str
    added: int  # number of messages
    messages: int  # number of messages in the backup
    last: int


class NotTheSame(Exception):
    """The folder holds a backup of another bus. The text names the difference and the next step."""


async def take(conn: Connection, folder: Path) -> list[Added]:
    """Add the new messages. Raises NotTheSame, BrokenBackup, OSError, BusError, TimeoutError."""
    manifest = files.load(folder) or Manifest()
    for why in await all_damage(conn):
        raise NotTheSame(f"{why}; {folder} stays as it is")
    for stream, kept in manifest.streams.items():
        seen = await read_stream_state(conn, stream)
        if seen is not None and seen.incarnation != kept.created:
            raise NotTheSame(f"{stream} was made anew since; take its backup in another folder")
    manifest.taken_at_s = conn.now()
    done = [await _take_stream(conn, folder, manifest, stream) for stream in KEPT]
    files.save(folder, manifest)
    return done


async def _take_stream(conn: Connection, folder: Path, manifest: Manifest, stream: str) -> Added:
    info = await stream_info(conn, stream, timeout_s=INFO_LIMIT_S)
    kept = manifest.streams.setdefault(stream, KeptStream(created=info.making, config=info.config))
    if info.state.last_seq < kept.last:
        raise NotTheSame(f"{stream} ends at {info.state.last_seq}, its backup at {kept.last}")
    writer = _Writer(folder, stream, kept, info.state.last_seq)
    start = max(1, kept.last + 1 - COMPARED)
    await read_all(conn, stream, KEPT[stream], writer.take, start=start, limit_s=READ_LIMIT_S)
    writer.flush()
    kept.config, kept.first, kept.last = info.config, info.state.first_seq, info.state.last_seq
    messages = sum(segment.messages for segment in kept.segments)
    return Added(stream=stream, added=writer.added, messages=messages, last=kept.last)


class _Writer:
    """Writes messages into segments."""

    def __init__(self, folder: Path, stream: str, kept: KeptStream, last: int) -> None:
        self.added = 0
        self._folder = folder
        self._stream = stream
        self._kept = kept
        self._before = kept.last
        self._last = last
        self._known = _newest(folder, stream, kept)
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._first = 0
        self._newest = 0

    def take(self, recorded: Recorded) -> None:
        """Take the next message."""
        if recorded.sequence > self._last:
            return  # stored after this run began: left to the next run
        record = Record(
            recorded.subject, recorded.sequence, nanoseconds(recorded.stored_at_s), recorded.data
        )
        if recorded.sequence <= self._before:
            known = self._known.get(recorded.sequence)
            if known is not None and (known.subject, known.data) != (record.subject, record.data):
                what = f"{self._stream} has another message {recorded.sequence} than its backup"
                raise NotTheSame(f"{what}; take its backup in another folder")
            return
        raw = written(record)
        self._first = self._first or record.sequence
        self._newest = record.sequence
        self._waiting.append(raw)
        self._bytes += len(raw)
        self.added += 1
        if self._bytes >= SEGMENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered messages."""
        if not self._waiting:
            return
        raw = b"".join(self._waiting)
        self._kept.segments.append(
            files.write_segment(
                self._folder, self._stream, raw, self._first, self._newest, len(self._waiting)
            )
        )
        self._waiting, self._bytes, self._first = [], 0, 0


def _newest(folder: Path, stream: str, kept: KeptStream) -> dict[int, Record]:
    """Return the newest records in the folder."""
    found: dict[int, Record] = {}
    for segment in reversed(kept.segments):
        if segment.last <= kept.last - COMPARED:
            break
        for record in files.read_segment(folder, stream, segment):
            if record.sequence > kept.last - COMPARED:
                found[record.sequence] = record
    return found
