"""What an executor's core hears beside the log's answers and the cluster's events, and what it
says beside writes, reads and orders to the cluster."""

from typing import NamedTuple

from berthmaster.executor.words import ClusterInstruction, PodEvent
from berthmaster.lifecycle.instructions import Answered, Append, Reload, Reloaded
from berthmaster.messages.workload import CancelRequested, Evicted, Failed, Placed

Hint = Placed | CancelRequested | Evicted | Failed  # the last two: by somebody else


class Told(NamedTuple):
    """A hint: one stored event, which need not be the aggregate's last any more."""

    hint: int  # Acted names it
    event: Hint
    sequence: int


class Tick(NamedTuple):
    """Time has passed: ``next_due_s`` is over."""


class Reach(NamedTuple):
    """Whether the cluster answers; ``away`` says why not, "" = it does."""

    away: str


Stimulus = Told | Tick | Reach | Answered | Reloaded | PodEvent


class Acted(NamedTuple):
    """What the hint was about is in hand and survives us: it may be acknowledged."""

    hint: int


class Freeze(NamedTuple):
    """The workload's story cannot be read: nothing is done about it until a person looks."""

    tenant: str
    id: str
    why: str


Instruction = Append | Reload | ClusterInstruction | Acted | Freeze
