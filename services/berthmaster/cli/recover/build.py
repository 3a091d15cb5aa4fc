"""`berth recover`: shows what a new log would hold, and builds it.

Building stops everybody first: the old stream's metadata says that it is being recovered, which
every service's guard takes for damage. Then nothing is stored any more while it is read. A run that
is cut short leaves that mark, an unfinished stream, or none; another run goes on from what is left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.cli.recover import core
from berthmaster.cli.recover.copies import (
    Backup,
    read_archive,
    read_backup,
    read_settings,
    read_stream,
    take_setting,
)
from berthmaster.cli.recover.core import Plan, plan
from berthmaster.cli.recover.holdings import Answers
from berthmaster.cli.recover.streams import keep_old, replace
from berthmaster.lib.event_log.damage import by_service
from berthmaster.lib.event_log.marks import all_damage, read_marks
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.families import FLEET_FACTS, UNREADABLE, encode
from berthmaster.lib.messages.records import ArchivedStory
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import read_all
from berthmaster.lib.nats.streams import (
    ARCHIVE,
    CONTROL,
    FIRST,
    FLEET,
    MAKING,
    RECOVERING,
    REPLACES,
    WORKLOADS,
    find_stream,
    new_making,
    stream_configs,
)

STOPPED_S: Final = 3.0  # from the mark to when every service's guard has seen it
MOST_REPLACED: Final = 200  # incarnations that a stream remembers to have replaced
STORY_BYTES: Final = 900_000  # of one archived message
NO_CLUSTERS: Final = "*"  # in place of the names of clusters that are gone: there is none
PUT_LIMIT_S: Final = 10.0
CHANGE_LIMIT_S: Final = 10.0
Ask = Callable[[Set[str]], Awaitable[Answers]]


class Refused(Exception):
    """Nothing was changed; the text says why."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and what the new log has or would have."""

    damage: tuple[str, ...]  # as marks on the bus tell
    left: int  # messages of the log that are there
    from_backup: int
    asked: tuple[str, ...]  # clusters
    answered: tuple[str, ...]
    silent: tuple[str, ...]  # that neither answered nor are named
    lines: tuple[core.Line, ...]
    carried: int
    tombstones: int
    first: int  # sequence
    kept_as: tuple[str, ...] = ()  # names under which the old streams are kept
    settings: int = 0  # of CONTROL, if that is built anew
    built: bool = False


class _Found(NamedTuple):
    plan: Plan
    report: Report
    settings: dict[str, bytes] | None  # None: CONTROL stays as it is
    incarnations: dict[str, set[str]]


class Recovery:
    """One run."""

    def __init__(
        self,
        conn: Connection,
        ask: Ask,
        *,
        backup: Path | None = None,
        without: Set[str] = frozenset(),
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``ask``: what clusters hold (holdings.py). ``progress``: called with each step."""
        self._conn = conn
        self._ask = ask
        self._backup = backup
        self._without = without
        self._progress = progress

    async def show(self) -> Report:
        """What would be done. Raises Refused, BrokenBackup, NotReadable, OSError, BusError,
        TimeoutError."""
        return (await self._find()).report

    async def build(self, reason: str) -> Report:
        """Do it. Raises as ``show`` does, and NotCopied, NotProved."""
        self._conn.log.warning("building a new log", reason=reason)
        damage = tuple(await all_damage(self._conn))
        await self._stop_everybody()
        found = await self._find()
        live = await find_stream(self._conn, WORKLOADS)
        before = max(found.plan.first - core.UNUSED, 0)
        if live is not None and not live.unfinished and live.state.last_seq > before:
            raise Refused("WORKLOADS is still written to: stop the services and run it again")
        if not found.report.asked and NO_CLUSTERS not in self._without:
            await self._mark(recovering=False)
            raise Refused(
                "no cluster has reported to this bus: wait until its agents are connected, or say "
                f"--without '{NO_CLUSTERS}' if there is none"
            )
        if found.report.silent:
            await self._mark(recovering=False)
            silent = ", ".join(found.report.silent)
            raise Refused(
                f"{silent} does not answer: start its agent, or name it by --without if it is gone "
                "for good; what runs there, also what the log has lost, would run a second time"
            )
        self._progress("keeping histories in the archive")
        await self._archive(found.plan.histories)
        kept: list[str] = []
        if found.settings is not None:
            kept += await self._replace(CONTROL, _control(found.settings), 0, found)
        kept += await self._replace(WORKLOADS, _log(found.plan), found.plan.first, found)
        return msgspec.structs.replace(found.report, damage=damage, kept_as=tuple(kept), built=True)

    # Finding

    async def _find(self) -> _Found:
        conn = self._conn
        self._progress("reading what is left")
        damage = await all_damage(conn)
        marks = by_service(await read_marks(conn))
        backup = await asyncio.to_thread(read_backup, self._backup) if self._backup else None
        source, last = await self._source(WORKLOADS)
        left = await read_stream(conn, source, last) if source else core.Copy()
        copies = [left, *([backup.log] if backup is not None else [])]
        archived = await read_archive(conn) if await find_stream(conn, ARCHIVE) is not None else []
        archived += backup.archived if backup is not None else []
        clusters = await self._clusters(copies)
        self._progress(f"asking {len(clusters)} clusters what they hold")
        answers = await self._ask(clusters - self._without)
        made = plan(
            copies,
            archived,
            answers.held,
            answered=answers.answered,
            asked=clusters,
            without=self._without,
            seen=max((mark.sequence for mark, _ in marks if mark.stream == WORKLOADS), default=0),
            now_s=conn.now(),
        )
        settings = await self._settings(damage, backup)
        incarnations: dict[str, set[str]] = {}
        for mark, _ in marks:
            incarnations.setdefault(mark.stream, set()).add(mark.incarnation)
        for name, one in (backup.incarnations if backup is not None else {}).items():
            incarnations.setdefault(name, set()).add(one)
        report = Report(
            damage=tuple(damage),
            left=len(left.events) + len(left.decisions),
            from_backup=len(backup.log.events) if backup is not None else 0,
            asked=tuple(sorted(clusters)),
            answered=tuple(sorted(answers.answered)),
            silent=made.silent,
            lines=made.lines,
            carried=len(made.carried),
            tombstones=len(made.tombstones),
            first=made.first,
            settings=len(settings) if settings is not None else 0,
        )
        return _Found(made, report, settings, incarnations)

    async def _source(self, stream: str) -> tuple[str, int]:
        """The stream that has what is left, and its last sequence; "" = there is none. After a run
        that was cut short that is the copy, and the stream is missing, unfinished, or was made by
        somebody."""
        live = await find_stream(self._conn, stream)
        if live is not None and live.state.last_seq > 0 and not live.unfinished:
            return stream, live.state.last_seq
        newest: tuple[str, int] = ("", 0)
        for name in await self._old_names(stream):
            copy = await find_stream(self._conn, name)
            if copy is not None and copy.state.last_seq > newest[1]:
                newest = (name, copy.state.last_seq)
        return newest

    async def _old_names(self, stream: str) -> list[str]:
        raw = await self._conn.api("STREAM.NAMES", {"offset": 0})
        names = msgspec.json.decode(raw, type=_Names).streams or []
        return [name for name in names if name.startswith(f"{stream}-OLD-")]

    async def _clusters(self, copies: Sequence[core.Copy]) -> frozenset[str]:
        """All that the fleet's facts or the log name."""
        found: set[str] = set()

        def take(recorded: Recorded) -> None:
            with suppress(*UNREADABLE):
                found.add(FLEET_FACTS.decode(recorded.data).cluster)

        if await find_stream(self._conn, FLEET) is not None:
            await read_all(self._conn, FLEET, [subjects.ALL_FLEET], take)
        for copy in copies:
            for one in copy.events:
                if cluster := getattr(one.event, "cluster", ""):
                    found.add(cluster)
        return frozenset(found)

    async def _settings(
        self, damage: Sequence[str], backup: Backup | None
    ) -> dict[str, bytes] | None:
        """What CONTROL shall hold, if it is damaged or lacks what the backup has."""
        source, _ = await self._source(CONTROL)
        live = await find_stream(self._conn, CONTROL)
        is_there = live is not None and not live.unfinished
        known = await read_settings(self._conn, source) if source else {}
        all_known = dict(known)
        for subject, setting in (backup.settings if backup is not None else {}).items():
            take_setting(all_known, subject, setting.data)
        if is_there and all_known == known and not any(why.startswith(CONTROL) for why in damage):
            return None
        return {subject: setting.data for subject, setting in all_known.items()}

    # Building

    async def _stop_everybody(self) -> None:
        if await self._mark(recovering=True):
            self._progress("stopping all services")
            await asyncio.sleep(STOPPED_S)

    async def _mark(self, *, recovering: bool) -> bool:
        """Say on the stream that it is being recovered, or not any more; whether there is one."""
        live = await find_stream(self._conn, WORKLOADS)
        if live is None or live.unfinished:
            return False
        metadata = dict(live.metadata)
        metadata.pop(RECOVERING, None)
        if recovering:
            metadata[RECOVERING] = "yes"
        metadata[MAKING] = live.making
        config = live.config | {"metadata": metadata}
        await self._conn.api(f"STREAM.UPDATE.{WORKLOADS}", config, timeout_s=CHANGE_LIMIT_S)
        return True

    async def _replace(
        self, stream: str, messages: Sequence[tuple[str, bytes]], first: int, found: _Found
    ) -> list[str]:
        """Put a new stream in the place of this one; the name under which that is kept."""
        live = await find_stream(self._conn, stream)
        kept: list[str] = []
        replaced = set(found.incarnations.get(stream, ()))
        config: dict[str, Any] = next(c for c in stream_configs() if c["name"] == stream)
        if live is not None:
            replaced |= {live.making}
            replaced |= set(live.metadata.get(REPLACES, "").split())
            config = (config if live.unfinished else {}) | live.config
            if live.state.messages and not live.unfinished:
                self._progress(f"keeping the old {stream}")
                kept.append(await keep_old(self._conn, stream))
        for name in await self._old_names(stream):  # of a run that was cut short
            copy = await find_stream(self._conn, name)
            if copy is not None:
                replaced |= {copy.making}
                if live is None:
                    config |= {each: copy.config[each] for each in ("storage", "num_replicas")}
        first = first or (live.state.last_seq if live is not None else 0) + core.UNUSED
        new = {
            MAKING: new_making(),
            REPLACES: " ".join(sorted(replaced)[-MOST_REPLACED:]),
            FIRST: str(first),
        }
        self._progress(f"building {stream}: {len(messages):,} messages from {first:,} on")
        await replace(self._conn, stream, config | {"metadata": new}, messages, first)
        return kept

    async def _archive(self, histories: Sequence[ArchivedStory]) -> None:
        """Raises BusError."""
        for history in histories:
            subject = subjects.archive(history.tenant, history.id)
            for part in _parts(history.events):
                story = msgspec.structs.replace(history, events=tuple(part))
                await self._conn.store(subject, encode(story), timeout_s=PUT_LIMIT_S)


class _Names(msgspec.Struct):
    streams: list[str] | None = None


def _parts(events: Sequence[RecordedEvent]) -> list[list[RecordedEvent]]:
    parts: list[list[RecordedEvent]] = [[]]
    size = 0
    for one in events:
        size += len(encode(one)) + 1
        if parts[-1] and size > STORY_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(one)
    return parts


def _log(planned: Plan) -> list[tuple[str, bytes]]:
    """The messages of the new log. Jobs and parts before endings, so that whoever waits for a part
    knows it before it has ended; chains first, so that each placement's is known."""
    return [
        *((subjects.decision(one.cell), encode(one)) for one in planned.decisions),
        *((event_subject(one), encode(one)) for one in planned.carried),
        *((event_subject(one), encode(one)) for one in planned.tombstones),
    ]


def _control(settings: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    return sorted(settings.items())
