"""Input and output of an executor's core.

Input: hints of the log, time, the cluster's events, and results of its writes and reads. Output:
writes, reads, orders to the cluster, and acknowledgements of hints.
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

# The last two are written by others.
Hint = Placed | CancelRequested | EvictionRequested | ResizeRequested | Committed | Evicted | Failed


class HintSeen(NamedTuple):
    """A hint: one stored event. Later events of the workload may exist."""

    hint: int  # number for Acted
    event: Hint
    sequence: int
    receipt: str = ""  # of a placement


class Tick(NamedTuple):
    """Time has passed: ``next_due_s`` is over."""


class ClusterReached(NamedTuple):
    """Whether the cluster answers; ``away`` says why not, "" = it does."""

    away: str


class Listed(NamedTuple):
    """Everything open in the cluster at a sequence of the log."""

    open: frozenset[Key]
    sequence: int
    unheld: frozenset[Key] = frozenset()  # placed and unclaimed
    renewed: bool = False  # of another log, so known sequences are meaningless


Event = HintSeen | Listed | Tick | ClusterReached | Answered | Reloaded | PodEvent


# Requests to the shell


class Acknowledge(NamedTuple):
    """The subject of the hint is handled durably, so acknowledge the hint."""

    hint: int


class Freeze(NamedTuple):
    """The workload's story cannot be read: nothing is done about it until a person looks."""

    tenant: str
    id: str
    why: str


Instruction = Append | Reload | ClusterInstruction | Acknowledge | Freeze
