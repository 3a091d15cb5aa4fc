"""What the agent asks of a source of readings, whichever it is.

::

    SourceFault
    ├── SourceAbsent    this machine has no such source: choose another     exit code 3 at start
    └── SourceFailed    nothing could be read this time: try again at the next tick

A source that cannot read raises SourceFailed and the agent publishes nothing, since silence is
honest and zeros are not. One GPU that cannot be read is no failure: it is a reading with the health
"lost". Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from berthmaster.lib.messages.telemetry import GpuReading, TelemetrySource


class SourceFault(Exception):
    """The source cannot do what was asked; the text is for people."""


class SourceAbsent(SourceFault):
    """There is no such source on this machine."""


class SourceFailed(SourceFault):
    """The source was there and could not be read this time."""


class NodeReading(NamedTuple):
    """The GPUs of one node at one moment."""

    node: str  # "" = the node that the agent runs on
    gpus: tuple[GpuReading, ...]
    lacks: tuple[str, ...] = ()  # what could not be read and why, in words for people
    lines_skipped: int = 0  # of an exporter's page, since the last reading
    refused: tuple[str, ...] = ()  # values that the source left out since they cannot be right


class Source(Protocol):
    """Read from one thread only; may block, since that thread is its own."""

    @property
    def kind(self) -> TelemetrySource:
        """How messages name it."""
        ...

    def read(self, now_s: float) -> Sequence[NodeReading]:
        """All readings; raises SourceFailed. `now_s` never goes back."""
        ...

    def close(self) -> None:
        """Let go of whatever it holds; raises nothing."""
        ...


def percent(value: float) -> float | None:
    """A share as messages may carry it; drivers have been seen to report far beyond 100."""
    return value if 0 <= value <= 100 else None  # NaN compares false
