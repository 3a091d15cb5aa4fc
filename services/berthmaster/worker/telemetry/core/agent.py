"""The agent between source and bus: when to read, what to publish, what to log.

One read at a time. A tick during a read is skipped, so a slow driver slows the agent without a
growing delay. A read past its limit is reported as hung, and its late result is dropped.
Observations are never queued.

Changes are logged, not every second of a condition. Example: a GPU is lost for an hour, and the log
has two lines. Pure: events in, instructions out. ``now_s`` never goes back, and events carry the
wall clock where needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, TypeAlias, assert_never

from berthmaster.lib.messages.telemetry import GpuHealth, GpuReading, NodeTelemetry, TelemetrySource
from berthmaster.worker.telemetry.core.plausible import plausible
from berthmaster.worker.telemetry.core.source import NodeReading

REFUSED: Final = "values that cannot be right"  # entry in ``lacks`` for refused values
MAX_NAMED_CHARS: Final = 160
# Log interval for a GPU with a fluctuating health; a lost GPU is always logged.
QUIET_S: Final = 60.0


# Events


@dataclass(frozen=True)
class Ticked:
    """A beat of the interval is due."""

    missed: int = 0  # earlier ticks missed on a busy machine


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
    """Start a read. Exactly one ReadEnded or ReadFailed follows, if the source ever returns."""


@dataclass(frozen=True)
class Publish:
    """Send now or not at all."""

    message: NodeTelemetry


@dataclass(frozen=True)
class Ready:
    """Readiness of the source."""

    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Tell:
    """One line in the log."""

    level: Literal["info", "warning"]
    event: str
    fields: Mapping[str, object] = field(default_factory=dict)


class What(Enum):
    """Counted events, by metric name."""

    SKIPPED = "ticks_skipped"
    HUNG = "reads_hung"
    LATE = "reads_late"
    FAILED = "reads_failed"
    UNREAD = "lines_skipped"
    REFUSED = "values_refused"


@dataclass(frozen=True)
class Count:
    what: What
    times: int = 1


Instruction: TypeAlias = StartRead | Publish | Ready | Tell | Count


@dataclass
class _Told:
    """Last logged state of one GPU."""

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
        """Apply one event and return the instructions in order."""
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
                pods=node.pods,
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

    # Log lines

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
        """Log the begin and end of missing values, at most a line a minute."""
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
        """Log a GPU whose health changed since the last line."""
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
    """Return the node's samples without impossible values, and those values."""
    gpus: list[GpuReading] = []
    refused = list(node.refused)
    for gpu in node.gpus:
        right, wrong = plausible(gpu)
        gpus.append(right)
        refused += wrong
    return tuple(gpus), refused


def _kind_of_lack(lack: str) -> str:
    """Return the part of a text before the reason, which may vary."""
    return lack.partition(":")[0]
