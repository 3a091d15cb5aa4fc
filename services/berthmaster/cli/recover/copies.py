"""Reads the copies of the log: a stream of the bus, and a backup's folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from berthmaster.cli.backup import folder as files
from berthmaster.cli.backup.core import BrokenBackup
from berthmaster.cli.recover.core import Copy
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.families import ARCHIVED_STORIES, DECISIONS, UNREADABLE
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.message_subjects import decode_event, read_control
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import read_all
from berthmaster.lib.nats.streams import ARCHIVE, CONTROL, FOLLOWED, WORKLOADS

READ_LIMIT_S: Final = 3600.0


class NotReadable(Exception):
    """A message has a newer version: that version must recover the log."""


class CopyReader:
    """Takes the messages of one copy of WORKLOADS, in order."""

    def __init__(self) -> None:
        self._events: list[RecordedEvent] = []
        self._decisions: list[tuple[int, Decision]] = []
        self.last = 0

    def take(self, subject: str, sequence: int, stored_at_s: float, data: bytes) -> None:
        """Take one message. Raises NotReadable."""
        self.last = max(self.last, sequence)
        try:
            if subjects.is_decision(subject):
                self._decisions.append((sequence, DECISIONS.decode(data)))
                return
            event, is_astray = decode_event(subject, data)
        except (*UNREADABLE, subjects.SubjectError) as error:
            raise NotReadable(f"message {sequence} ({subject}) cannot be read: {error}") from error
        self._events.append(
            RecordedEvent(sequence=sequence, stored_at_s=stored_at_s, event=event, void=is_astray)
        )

    def copy(self, last: int = 0) -> Copy:
        return Copy(self._events, self._decisions, max(self.last, last))


async def read_stream(conn: Connection, stream: str, last: int) -> Copy:
    """Return a stream's copy of the log, up to sequence ``last``.

    Raises NotReadable, BusError, TimeoutError.
    """
    reader = CopyReader()

    def take(recorded: Recorded) -> None:
        reader.take(recorded.subject, recorded.sequence, recorded.stored_at_s, recorded.data)

    await read_all(conn, stream, FOLLOWED[WORKLOADS], take, limit_s=READ_LIMIT_S)
    return reader.copy(last)


async def read_archive(conn: Connection) -> list[RecordedEvent]:
    """Return the events of all histories in the archive.

    An unreadable history is skipped, because it stays in the archive. Raises BusError,
    TimeoutError.
    """
    found: list[RecordedEvent] = []

    def take(recorded: Recorded) -> None:
        found.extend(_archived(recorded.subject, recorded.data))

    await read_all(conn, ARCHIVE, [subjects.ALL_ARCHIVE], take, limit_s=READ_LIMIT_S)
    return found


def _archived(subject: str, data: bytes) -> Iterable[RecordedEvent]:
    if not subjects.is_archived_story(subject):
        return ()
    try:
        return ARCHIVED_STORIES.decode(data).events
    except UNREADABLE:
        return ()


class Setting(NamedTuple):
    """The newest setting under one subject of CONTROL."""

    set_at_s: float
    data: bytes


class Backup(NamedTuple):
    """The contents of a backup."""

    log: Copy
    archived: list[RecordedEvent]
    settings: dict[str, Setting]
    incarnations: dict[str, str]  # by stream


def read_backup(folder: Path) -> Backup:
    """Return a backup. Raises BrokenBackup, NotReadable, OSError."""
    manifest = files.load(folder)
    if manifest is None:
        raise BrokenBackup(f"{folder} holds no backup: there is no {files.MANIFEST}")
    reader = CopyReader()
    archived: list[RecordedEvent] = []
    settings: dict[str, Setting] = {}
    for name, kept in manifest.streams.items():
        for segment in kept.segments:
            for record in files.read_segment(folder, name, segment):
                if name == WORKLOADS:
                    at_s = record.stored_ns / 1e9
                    reader.take(record.subject, record.sequence, at_s, record.data)
                elif name == ARCHIVE:
                    archived.extend(_archived(record.subject, record.data))
                elif name == CONTROL:
                    take_setting(settings, record.subject, record.data)
    log = manifest.streams.get(WORKLOADS)
    return Backup(
        reader.copy(log.last if log is not None else 0),
        archived,
        settings,
        {name: kept.created for name, kept in manifest.streams.items()},
    )


async def read_settings(conn: Connection, stream: str) -> dict[str, Setting]:
    """Return the newest settings in CONTROL or a copy. Raises BusError, TimeoutError."""
    found: dict[str, Setting] = {}

    def take(recorded: Recorded) -> None:
        take_setting(found, recorded.subject, recorded.data)

    await read_all(conn, stream, [subjects.ALL_CONTROL], take, limit_s=READ_LIMIT_S)
    return found


def take_setting(into: dict[str, Setting], subject: str, data: bytes) -> None:
    """Store a setting if newer than the known one."""
    try:
        setting = Setting(read_control(subject, data).set_at_s, data)
    except UNREADABLE:
        return
    known = into.get(subject)
    if known is None or known.set_at_s <= setting.set_at_s:
        into[subject] = setting
