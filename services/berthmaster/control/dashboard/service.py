"""The dashboard: fold facts, events and samples of the bus, and send changes to the browsers.

Pages are served from the start, also without the bus, and then show the missing connection.
"""

from typing import Any, Final

import msgspec

from berthmaster.control.dashboard.asking import Asker
from berthmaster.control.dashboard.core.access import (
    Doorkeeper,
    People,
    PeopleError,
    is_loopback,
    read_people,
)
from berthmaster.control.dashboard.core.dashboard import Dashboard
from berthmaster.control.dashboard.core.seen import PING_S
from berthmaster.control.dashboard.hands import Hands
from berthmaster.control.dashboard.metrics import DashboardMetrics
from berthmaster.control.dashboard.routes import LOOPBACK_NAMES, Routes
from berthmaster.control.dashboard.settings import DashboardSettings
from berthmaster.control.dashboard.static_files import read_all
from berthmaster.control.dashboard.streaming import Streams
from berthmaster.control.dashboard.web import Site, new_life
from berthmaster.lib.event_log.marks import all_damage
from berthmaster.lib.messages.families import DEAD_LETTERS, QUALITY, TELEMETRY, UNREADABLE
from berthmaster.lib.messages.families import LEASES as LEASE_RECORDS
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, StreamReplaced
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.message_subjects import ControlReader, decode_event
from berthmaster.lib.nats.nats_py import Msg
from berthmaster.lib.nats.stream_connection import stream_connection
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import CONTROL, DEAD, FLEET, LEASES, WORKLOADS
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "dashboard"
TICK_S: Final = 0.2
MAX_VIEWERS: Final = 500  # pages with live updates
LOGS_S: Final = 5.0  # between two checks of the logs for damage
ANSWERS_SUBJECT: Final = "$SRV.PING"


class _Pong(msgspec.Struct):
    name: str
    id: str


_PONGS: Final = msgspec.json.Decoder(_Pong)


class Shell:
    def __init__(self, ctx: Context[DashboardSettings]) -> None:
        self._settings = ControlReader()
        settings = ctx.settings
        self._ctx = ctx
        self._core = Dashboard(new_life())
        self._conn: Connection | None = None
        self._asker: Asker | None = None
        self._people_stamp: Any = None
        self._doorkeeper = self._new_doorkeeper()
        self._streams = Streams(self._core.board, MAX_VIEWERS, self._now, ctx.stopping)
        self._routes = Routes(
            self._core,
            self._streams,
            read_all(),
            asker=lambda: self._asker,
            hands=Hands(settings, settings.hands_dir, ctx.log),
            doorkeeper=lambda: self._doorkeeper,
            names=_names(settings),
            identity_header=settings.identity_header,
            now=self._now,
            log=ctx.log,
        )
        self._site = Site(self._routes.answer, settings.most_connections, ctx.log)
        self._figures = DashboardMetrics(ctx.metrics)

    def _now(self) -> float:
        return self._conn.now() if self._conn is not None else self._ctx.now()

    async def serve(self) -> None:
        """Serve pages, with or without the bus. Raises CannotStart."""
        settings = self._ctx.settings
        port = await self._site.listen(settings.page_host, settings.page_port)
        host = f"[{settings.page_host}]" if ":" in settings.page_host else settings.page_host
        self._ctx.log.info("dashboard started", url=f"http://{host}:{port}/")
        self._ctx.spawn(self._tick(), name="tick")
        self._ctx.spawn(self._keep_people(), name="people")

    async def follow(self, conn: Connection) -> None:
        """Follow the bus until the service stops."""
        ctx = self._ctx
        self._conn, self._asker = conn, Asker(conn)
        ctx.health.ready("fleet", False, "the facts have not been read")
        ctx.health.ready("log", False, "the log has not been read to its end")
        mirror = FactMirror(
            conn, NAME, [subjects.ALL_FLEET], on_fact=self._on_fact, on_gone=self._core.on_gone
        )
        told = lambda: ctx.health.ready("fleet", True)  # noqa: E731 # one line, used once
        ctx.spawn(mirror.run(caught_up=told), name="mirror facts")
        ctx.spawn(self._follow_control(conn), name="follow control")
        ctx.spawn(self._follow_leases(conn), name="follow leases")
        ctx.spawn(self._follow_log(conn), name="follow log")
        await conn.subscribe(subjects.telemetry_of(), self._on_reading)
        await conn.subscribe(subjects.quality_of_all(), self._on_quality)
        ctx.spawn(self._ping(conn), name="ping services")
        ctx.spawn(self._look_at_logs(conn), name="look at the logs")
        ctx.spawn(self._follow_letters(conn), name="follow dead letters")
        async for _ in beats(1.0, ctx.stopping):
            ctx.health.ready("bus", conn.connected, "no connection to NATS")

    async def close(self) -> None:
        """End all streams and close the site."""
        self._streams.stop()
        await self._site.close()

    # Messages of the bus

    def _on_fact(self, seen: Seen) -> None:
        self._core.on_fact(seen.fact, seen.stored_at_s)

    def _on_reading(self, _: str, data: bytes) -> None:
        try:
            self._core.on_reading(TELEMETRY.decode(data), self._now())
        except UNREADABLE:
            self._core.unknown_readings += 1

    def _on_quality(self, _: str, data: bytes) -> None:
        try:
            self._core.on_quality(QUALITY.decode(data), self._now())
        except UNREADABLE:
            self._core.unknown_readings += 1

    async def _follow_control(self, conn: Connection) -> None:
        filters = [subjects.ALL_CONTROL]
        await Follower(conn, CONTROL, filters, start="last-per-subject").run(
            self._on_control, relisting=self._on_relisting
        )

    def _on_relisting(self, replaced: bool) -> None:
        if replaced:
            self._settings.forget()

    def _on_control(self, recorded: Recorded) -> None:
        try:
            self._core.on_control(recorded.subject, self._settings.read(recorded))
        except UNREADABLE as error:
            self._ctx.log.warning("unreadable setting", subject=recorded.subject, why=str(error))

    async def _follow_leases(self, conn: Connection) -> None:
        filters = [subjects.ALL_LEASES]
        await Follower(conn, LEASES, filters, start="last-per-subject").run(self._on_lease)

    def _on_lease(self, recorded: Recorded) -> None:
        if recorded.subject.startswith(subjects.ALL_LOG_MARKS.removesuffix(">")):
            return
        try:
            lease = LEASE_RECORDS.decode(recorded.data)
        except UNREADABLE:
            return
        self._core.services.on_lease(lease, recorded.stored_at_s)

    async def _follow_log(self, conn: Connection) -> None:
        while True:
            follower = Follower(conn, WORKLOADS, [subjects.ALL_WORKLOADS])
            told = lambda: self._ctx.health.ready("log", True)  # noqa: E731 # as above
            try:
                await follower.run(self._on_event, caught_up=told)
            except StreamReplaced as error:
                self._ctx.log.warning("log replaced, reading again", why=str(error))
                self._core.on_log_replaced()

    def _on_event(self, recorded: Recorded) -> None:
        try:
            event, is_astray = decode_event(recorded.subject, recorded.data)
        except subjects.SubjectError:
            return
        except UNREADABLE as error:
            where = subjects.parse_workload_event(recorded.subject)
            self._core.jobs.freeze(where.tenant, where.id, str(error))
            return
        self._core.on_event(event, recorded.sequence, recorded.stored_at_s, is_astray=is_astray)

    async def _ping(self, conn: Connection) -> None:
        inbox = conn.nc.new_inbox()

        async def heard(msg: Msg) -> None:
            try:
                pong = _PONGS.decode(msg.data)
            except UNREADABLE:
                return
            self._core.services.on_answer(pong.name, pong.id, self._now())

        await conn.subscribe_raw(inbox, heard)
        async for _ in beats(PING_S, self._ctx.stopping):
            try:
                await conn.publish(ANSWERS_SUBJECT, b"", reply=inbox)
            except BusError as error:
                self._ctx.log.warning("services not queried", why=str(error))

    async def _look_at_logs(self, conn: Connection) -> None:
        """Check the logs as deciders do. The last result stays visible while the bus is
        unreachable.
        """
        async for _ in beats(LOGS_S, self._ctx.stopping):
            try:
                found = await all_damage(conn)
            except (BusError, TimeoutError) as error:
                conn.log.info("log check failed", why=str(error))
                continue
            self._core.damage = tuple(found)

    async def _follow_letters(self, conn: Connection) -> None:
        """Follow the newest dead letter of each service. Its existence is the important fact."""
        filters = [subjects.ALL_DEAD]
        await Follower(conn, DEAD, filters, start="last-per-subject").run(self._on_letter)

    def _on_letter(self, recorded: Recorded) -> None:
        try:
            letter = DEAD_LETTERS.decode(recorded.data)
        except UNREADABLE:
            return
        if subjects.dead(letter.service) == recorded.subject:
            self._core.letters[letter.service] = (recorded.stored_at_s, letter.reason)

    # Periodic work

    async def _tick(self) -> None:
        async for _ in beats(TICK_S, self._ctx.stopping):
            if self._core.tick(self._now()):
                self._streams.turned()
            self._figures.show(self._core, self._streams, self._site)

    # Access

    def _new_doorkeeper(self) -> Doorkeeper:
        settings = self._ctx.settings
        local = is_loopback(settings.page_host)
        people = People()
        if settings.people_file is not None:
            self._people_stamp = _stamp(settings)
            try:
                people = read_people(settings.people_file.read_bytes())
            except (OSError, PeopleError) as error:
                raise CannotStart(f"--people-file {settings.people_file}: {error}") from error
        elif not local and not settings.anybody_may_look:
            raise CannotStart(
                f"--page-host {settings.page_host} is reached from elsewhere: say who may look "
                "with --people-file, or let anybody with --anybody-may-look"
            )
        anybody = settings.anybody_may_look or (local and settings.people_file is None)
        return Doorkeeper(people, proxies=settings.proxies, anybody=anybody)

    async def _keep_people(self) -> None:
        """Load the users file after each change. An invalid file leaves the users as they are."""
        settings = self._ctx.settings
        if settings.people_file is None:
            return
        async for _ in beats(2.0, self._ctx.stopping):
            if _stamp(settings) == self._people_stamp:
                continue
            try:
                self._doorkeeper = self._new_doorkeeper()
                self._ctx.log.info("users file loaded", file=str(settings.people_file))
                self._ctx.health.ready("people", True)
            except CannotStart as error:
                self._ctx.log.error("users file unreadable", why=str(error))
                self._ctx.health.ready("people", False, str(error))


def _stamp(settings: DashboardSettings) -> Any:
    assert settings.people_file is not None
    try:
        found = settings.people_file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _names(settings: DashboardSettings) -> frozenset[str] | None:
    if settings.page_names:
        return LOOPBACK_NAMES | {name.lower() for name in settings.page_names}
    return LOOPBACK_NAMES if is_loopback(settings.page_host) else None


async def main(ctx: Context[DashboardSettings]) -> None:
    shell = Shell(ctx)
    await shell.serve()
    try:
        async with stream_connection(
            ctx, FLEET, WORKLOADS, CONTROL, LEASES, round_s=TICK_S / 2
        ) as conn:
            if conn is not None:
                await shell.follow(conn)
    finally:
        await shell.close()


SERVICE = Service(NAME, DashboardSettings, main)
