"""`berth recover`: shows the content of a new log, and builds it.

Building first stops all services: the old stream's metadata announces the recovery, and every
service's log check treats that as damage. Then nothing is stored during the read. An interrupted
run leaves the announcement, an unfinished stream, or neither. Another run continues from there.
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

STOPPED_S: Final = 3.0  # seconds from the announcement until every service has noticed it
MOST_REPLACED: Final = 200  # maximum number of replaced incarnations in a stream
STORY_BYTES: Final = 900_000  # limit of one archived message
NO_CLUSTERS: Final = "*"  # in place of the names of lost clusters: none is lost
PUT_LIMIT_S: Final = 10.0
CHANGE_LIMIT_S: Final = 10.0
Ask = Callable[[Set[str]], Awaitable[Answers]]


class Refused(Exception):
    """Nothing was changed. The text says why."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings, and the content of the new log."""

    damage: tuple[str, ...]  # from the high-water marks on the bus
    left: int  # number of messages left in the log
    from_backup: int
    asked: tuple[str, ...]  # clusters
    answered: tuple[str, ...]
    silent: tuple[str, ...]  # clusters that neither answered nor are named
    lines: tuple[core.Line, ...]
    carried: int
    tombstones: int
    first: int  # sequence
    kept_as: tuple[str, ...] = ()  # new names of the old streams
    settings: int = 0  # number of settings, if CONTROL is rebuilt
    built: bool = False


class _Found(NamedTuple):
    plan: Plan
    report: Report
    settings: dict[str, bytes] | None  # None: CONTROL stays
    incarnations: dict[str, set[str]]


class Recovery:
    def __init__(
        self,
        conn: Connection,
        ask: Ask,
        *,
        backup: Path | None = None,
        without: Set[str] = frozenset(),
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``ask`` returns what clusters hold (holdings.py). ``progress`` gets each step."""
        self._conn = conn
        self._ask = ask
        self._backup = backup
        self._without = without
        self._progress = progress

    async def show(self) -> Report:
        """Return the effect of a recovery, without changes.

        Raises Refused, BrokenBackup, NotReadable, OSError, BusError, TimeoutError.
        """
        return (await self._find()).report

    async def build(self, reason: str) -> Report:
        """Build the new log. Raises as ``show`` does, and NotCopied, NotProved."""
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
        """Return the stream with the remains, and its last sequence; "" = none.

        After an interrupted run, that is the copy, and the original stream is missing, unfinished,
        or by another client.
        """
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
        """Return all clusters in the fleet's facts or the log."""
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
        """Return the content of CONTROL, if CONTROL is damaged or lacks settings of the backup."""
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
        """Set or clear the announcement of a recovery; return whether the stream exists."""
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
        """Replace a stream by a new one, and return the names of the kept old streams."""
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
        for name in await self._old_names(stream):  # from an interrupted run
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
        """Store histories in the archive. Raises BusError."""
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
    """Return the messages of the new log.

    Jobs and parts come before ends, so that a job that waits for a part knows it before its end.
    Chains are first, so that each placement's chain is known.
    """
    return [
        *((subjects.decision(one.cell), encode(one)) for one in planned.decisions),
        *((event_subject(one), encode(one)) for one in planned.carried),
        *((event_subject(one), encode(one)) for one in planned.tombstones),
    ]


def _control(settings: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    return sorted(settings.items())
