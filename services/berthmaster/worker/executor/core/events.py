"""What an executor's core hears, and what it asks of its shell.

It hears hints of the log, time, the cluster's events, and what became of its own writes and reads.
It asks for writes, reads, orders to the cluster, and the end of a hint.
"""

from typing import NamedTuple

from berthmaster.lib.lifecycle.instructions import Answered, Append, Reload, Reloaded
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.workload import (
    CancelRequested,
    Committed,
    Evicted,
    EvictionRequested,
    Failed,
    Placed,
    ResizeRequested,
)
from berthmaster.worker.executor.core.cluster_protocol import ClusterInstruction, PodEvent

# The last two: by somebody else.
Hint = Placed | CancelRequested | EvictionRequested | ResizeRequested | Committed | Evicted | Failed


class HintSeen(NamedTuple):
    """A hint: one stored event, which need not be the aggregate's last any more."""

    hint: int  # Acted names it
    event: Hint
    sequence: int
    receipt: str = ""  # of a placement


class Tick(NamedTuple):
    """Time has passed: ``next_due_s`` is over."""


class ClusterReached(NamedTuple):
    """Whether the cluster answers; ``away`` says why not, "" = it does."""

    away: str


class Listed(NamedTuple):
    """What is open in the cluster as of a sequence of the log, and nothing else is."""

    open: frozenset[Key]
    sequence: int
    unheld: frozenset[Key] = frozenset()  # placed, and claimed by nobody
    renewed: bool = False  # of another log than before, whose numbers say nothing of what we know


Event = HintSeen | Listed | Tick | ClusterReached | Answered | Reloaded | PodEvent


# What the core asks of its shell


class Acknowledge(NamedTuple):
    """What the hint was about is in hand and survives us: it may be acknowledged."""

    hint: int


class Freeze(NamedTuple):
    """The workload's story cannot be read: nothing is done about it until a person looks."""

    tenant: str
    id: str
    why: str


Instruction = Append | Reload | ClusterInstruction | Acknowledge | Freeze
