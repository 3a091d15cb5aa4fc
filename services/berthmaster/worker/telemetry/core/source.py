"""The protocol between the agent and a source of samples. Pure.

::

    SourceFault
    ├── SourceAbsent    no such source on this machine: exit code 3 at the start
    └── SourceFailed    nothing could be read: retry at the next tick

After SourceFailed the agent publishes nothing, because zeros would be wrong. A single unreadable
GPU is a sample with health "lost".
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from berthmaster.lib.messages.telemetry import GpuReading, PodUsage, TelemetrySource


class SourceFault(Exception):
    """The source cannot do what was asked; the text is for people."""


class SourceAbsent(SourceFault):
    pass


class SourceFailed(SourceFault):
    """The source was there and could not be read this time."""


class NodeReading(NamedTuple):
    """GPUs of one node at one time."""

    node: str  # "" = the agent's own node
    gpus: tuple[GpuReading, ...]
    lacks: tuple[str, ...] = ()  # unreadable values and the reasons
    lines_skipped: int = 0  # of an exporter's page, since the last reading
    refused: tuple[str, ...] = ()  # impossible values left out
    pods: tuple[PodUsage, ...] = ()  # usage of the node by pod, as often as it is sampled


class Source(Protocol):
    """A source, used from one thread of its own. Calls may block."""

    @property
    def kind(self) -> TelemetrySource:
        """Return its name in messages."""
        ...

    def read(self, now_s: float) -> Sequence[NodeReading]:
        """All readings; raises SourceFailed. `now_s` never goes back."""
        ...

    def close(self) -> None:
        """Release everything. Never raises."""
        ...


def percent(value: float) -> float | None:
    """A share as messages may carry it; drivers have been seen to report far beyond 100."""
    return value if 0 <= value <= 100 else None  # NaN compares false
