"""The streams of a decider: the log, facts of the fleet, operators' settings, and the log's guard.

The three deciders (resolver, MultiKueue reconciler, Karmada) share this class. A decider may decide
while ``whole`` is True: the log is undamaged, and all three streams have been read to the end.
"""

from collections.abc import Callable, Sequence
from typing import Any

from berthmaster.lib.event_log.decider_input import Decider, DeciderInput
from berthmaster.lib.event_log.guard import LogGuard
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.facts import FactMirror
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import CONTROL, FOLLOWED, WORKLOADS
from berthmaster.lib.runtime.service import Context


class Feed:
    """Feeds one decider core. ``wake`` is called when the core may have work."""

    def __init__(
        self,
        ctx: Context[Any],
        conn: Connection,
        core: Decider,
        wake: Callable[[], None],
        *,
        name: str,
        mark: str = "",
        on_gone: Callable[[str], None],
        on_ready: Callable[[str], None] = lambda _: None,
        follows: Sequence[str] = FOLLOWED[WORKLOADS],
    ) -> None:
        """``name``: of the service. ``mark``: the name of the high-water mark, if different.
        ``on_gone``: called with the subject of a fact missing in a new listing. ``on_ready``:
        called with "log", "fleet" or "control" once the stream has been read to the end.
        """
        self._ctx = ctx
        self._conn = conn
        self._wake = wake
        self._on_ready = on_ready
        self._follows = follows
        self.caught_up = {"log": False, "fleet": False, "control": False}
        self._input = DeciderInput(ctx, core, wake)
        self._input.conn = conn
        self._guard = LogGuard(
            ctx, conn, mark or name, folder=ctx.settings.memory_dir, on_change=lambda _: wake()
        )
        self.fleet = FactMirror(
            conn, name, [subjects.ALL_FLEET], on_fact=self._input.on_fact, on_gone=on_gone
        )
        self.log: Follower | None = None

    @property
    def whole(self) -> bool:
        """Return whether the decider may decide on the state read so far."""
        return self._guard.sound and all(self.caught_up.values())

    @property
    def has_read(self) -> bool:
        """Return whether all three streams have been read to the end."""
        return all(self.caught_up.values())

    async def begin(self) -> bool:
        """Wait until the log is undamaged. Return False if the service is stopped before."""
        for part in self.caught_up:
            self._ctx.health.ready(part, False, "catching up")
        return await self._guard.begin()

    def start(self, start: int = 1) -> None:
        """Follow the three streams, the log from sequence ``start`` on."""
        ctx, feed = self._ctx, self._input
        self.log = Follower(self._conn, WORKLOADS, self._follows, start=start)
        control = Follower(self._conn, CONTROL, [subjects.ALL_CONTROL])
        ctx.spawn(
            self.log.run(self._on_recorded, caught_up=self._ready("log")), name="follow the log"
        )
        ctx.spawn(self._guard.run(), name="guard the log")
        ctx.spawn(self.fleet.run(caught_up=self._ready("fleet")), name="mirror the fleet")
        ctx.spawn(
            control.run(feed.on_control, caught_up=self._ready("control")), name="follow control"
        )

    async def close(self) -> None:
        """Wait for dead letters in flight, within a time limit."""
        await self._input.close()

    def _on_recorded(self, recorded: Recorded) -> None:
        self._guard.saw(recorded)
        self._input.on_recorded(recorded)

    def _ready(self, part: str) -> Callable[[], None]:
        def caught_up() -> None:
            self.caught_up[part] = True
            self._on_ready(part)
            self._ctx.health.ready(part, True)
            self._wake()

        return caught_up
