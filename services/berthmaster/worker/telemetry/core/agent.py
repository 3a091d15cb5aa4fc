"""The agent between its source and the bus: when to read, what to publish, what to tell people.

One read at a time. A tick that finds the last read still under way is skipped, so that a slow
driver makes the agent slower and never later and later; a read past its limit is told as hung, and
what it brings in the end is thrown away, since it is old. Observations are never kept for later.

People are told of a change, not of every second in which it lasts. Pure: events in, instructions
out; `now_s` is a clock that never goes back, the wall clock comes with the event that needs it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, TypeAlias, assert_never

from berthmaster.lib.messages.telemetry import GpuHealth, GpuReading, NodeTelemetry, TelemetrySource
from berthmaster.worker.telemetry.core.plausible import plausible
from berthmaster.worker.telemetry.core.source import NodeReading

REFUSED: Final = "values that cannot be right"  # what a node's message lacks then
MAX_NAMED_CHARS: Final = 160
# A GPU whose health wavers is told of this often at most; one that is lost, always.
QUIET_S: Final = 60.0


# Events


@dataclass(frozen=True)
class Ticked:
    """A beat of the interval is due."""

    missed: int = 0  # beats before it that never came, as the machine was busy


@dataclass(frozen=True)
class ReadEnded:
    """The source has answered."""

    nodes: Sequence[NodeReading]
    observed_at_s: float  # wall clock


@dataclass(frozen=True)
class ReadFailed:
    """The source could not be read."""

    why: str


Event: TypeAlias = Ticked | ReadEnded | ReadFailed


# Instructions


@dataclass(frozen=True)
class StartRead:
    """Let the source read; exactly one ReadEnded or ReadFailed follows, if it ever returns."""


@dataclass(frozen=True)
class Publish:
    """Send it now or not at all."""

    message: NodeTelemetry


@dataclass(frozen=True)
class Ready:
    """Whether the source is in order, for whoever asks about readiness."""

    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Tell:
    """One line in the log."""

    level: Literal["info", "warning"]
    event: str
    fields: Mapping[str, object] = field(default_factory=dict)


class What(Enum):
    """What is counted; the values are names of metrics."""

    SKIPPED = "ticks_skipped"
    HUNG = "reads_hung"
    LATE = "reads_late"
    FAILED = "reads_failed"
    UNREAD = "lines_skipped"
    REFUSED = "values_refused"


@dataclass(frozen=True)
class Count:
    """Something happened that metrics show."""

    what: What
    times: int = 1


Instruction: TypeAlias = StartRead | Publish | Ready | Tell | Count


@dataclass
class _Told:
    """What people were last told of one GPU."""

    health: GpuHealth
    at_s: float


class Agent:
    def __init__(
        self,
        *,
        cluster: str,
        node: str,
        source: TelemetrySource,
        epoch: int,
        interval_s: float,
        read_limit_s: float,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._source: TelemetrySource = source
        self._epoch = epoch
        self._interval_s = interval_s
        self._read_limit_s = read_limit_s
        self._reading_since_s: float | None = None
        self._hung = False
        self._ok: bool | None = None  # None: nothing has been said yet
        self._why = ""
        self._counters: dict[str, int] = {}
        self._told: dict[tuple[str, str], _Told] = {}  # by node and GPU
        self._lacks: dict[str, tuple[tuple[str, ...], float]] = {}

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Take one event in; what to do about it comes out, in order."""
        match event:
            case Ticked():
                return self._on_ticked(event, now_s)
            case ReadEnded():
                return self._on_read_ended(event, now_s)
            case ReadFailed():
                return self._on_read_failed(event)
            case _:
                assert_never(event)

    def _on_ticked(self, event: Ticked, now_s: float) -> list[Instruction]:
        done: list[Instruction] = []
        skipped = event.missed
        if self._reading_since_s is None:
            self._reading_since_s = now_s
            done.append(StartRead())
        else:
            skipped += 1
            if not self._hung and now_s - self._reading_since_s > self._read_limit_s:
                self._hung = True
                done.append(Count(What.HUNG))
                done += self._unreadable(
                    f"a read has not come back for more than {self._read_limit_s:g} s"
                )
        if skipped:
            done.append(Count(What.SKIPPED, skipped))
        return done

    def _on_read_ended(self, event: ReadEnded, now_s: float) -> list[Instruction]:
        took_s = self._end_read(now_s)
        if took_s > self._read_limit_s:
            done: list[Instruction] = [Count(What.LATE)]
            return done + self._unreadable(f"a read took {took_s:.1f} s and was thrown away")
        done = self._readable()
        for node in event.nodes:
            name = node.node or self._node
            counter = self._counters.get(name, 0) + 1
            self._counters[name] = counter
            gpus, refused = _right(node)
            lacks = node.lacks
            if refused:
                count = len(refused)
                lacks += (f"{REFUSED}: {count}, the first: {refused[0][:MAX_NAMED_CHARS]}",)
                done.append(Count(What.REFUSED, count))
            if node.lines_skipped:
                done.append(Count(What.UNREAD, node.lines_skipped))
            message = NodeTelemetry(
                cluster=self._cluster,
                node=name,
                epoch=self._epoch,
                counter=counter,
                observed_at_s=event.observed_at_s,
                interval_s=self._interval_s,
                source=self._source,
                gpus=gpus,
                lacks=lacks,
            )
            done.append(Publish(message))
            self._watch_lacks(name, lacks, now_s, done)
            for gpu in gpus:
                self._watch_health(name, gpu, now_s, done)
        return done

    def _on_read_failed(self, event: ReadFailed) -> list[Instruction]:
        self._reading_since_s, self._hung = None, False
        done: list[Instruction] = [Count(What.FAILED)]
        return done + self._unreadable(event.why)

    def _end_read(self, now_s: float) -> float:
        since_s, self._reading_since_s, self._hung = self._reading_since_s, None, False
        return 0.0 if since_s is None else now_s - since_s

    # What people are told

    def _unreadable(self, why: str) -> list[Instruction]:
        """Not ready: the log hears it once, readiness always knows the newest reason."""
        done: list[Instruction] = []
        if self._ok is not False or why != self._why:
            done.append(Ready(False, why))
        if self._ok is not False:
            done.append(Tell("warning", "source_unreadable", {"source": self._source, "why": why}))
        self._ok, self._why = False, why
        return done

    def _readable(self) -> list[Instruction]:
        if self._ok:
            return []
        again = self._ok is False
        self._ok, self._why = True, ""
        done: list[Instruction] = [Ready(True)]
        if again:
            done.append(Tell("info", "source_readable", {"source": self._source}))
        return done

    def _watch_lacks(
        self, node: str, lacks: tuple[str, ...], now_s: float, done: list[Instruction]
    ) -> None:
        """Tell of what cannot be read when that begins and ends; wavering, a line a minute."""
        told, at_s = self._lacks.get(node, ((), float("-inf")))
        kinds = tuple(_kind_of_lack(lack) for lack in lacks)
        if kinds == told or now_s - at_s < QUIET_S:
            return
        self._lacks[node] = (kinds, now_s)
        level: Literal["info", "warning"] = "warning" if lacks else "info"
        done.append(
            Tell(
                level,
                "figures_lacking" if lacks else "figures_complete",
                {
                    "node": node,
                    "lacks": lacks,
                },
            )
        )

    def _watch_health(
        self, node: str, gpu: GpuReading, now_s: float, done: list[Instruction]
    ) -> None:
        """Tell of a GPU whose health has changed since we last told of it."""
        key = (node, gpu.uuid or f"#{gpu.index}")
        told = self._told.get(key)
        before: GpuHealth = told.health if told else "ok"
        if gpu.health == before:
            return
        grave = "lost" in (gpu.health, before)
        if told and not grave and now_s - told.at_s < QUIET_S:
            return
        self._told[key] = _Told(gpu.health, now_s)
        fields = {"node": node, "index": gpu.index, "uuid": gpu.uuid, "why": gpu.health_reason}
        done.append(Tell("info" if gpu.health == "ok" else "warning", f"gpu_{gpu.health}", fields))


def _right(node: NodeReading) -> tuple[tuple[GpuReading, ...], list[str]]:
    """The node's readings without what cannot be right, and what that was."""
    gpus: list[GpuReading] = []
    refused = list(node.refused)
    for gpu in node.gpus:
        right, wrong = plausible(gpu)
        gpus.append(right)
        refused += wrong
    return tuple(gpus), refused


def _kind_of_lack(lack: str) -> str:
    """What is lacking, without why: the reason may be worded anew each time."""
    return lack.partition(":")[0]
