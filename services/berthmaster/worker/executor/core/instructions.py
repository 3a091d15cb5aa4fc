"""What an executor's core asks of its shell: writes, reads, orders to the cluster, and the end of a
hint."""

from typing import NamedTuple

from berthmaster.lib.lifecycle.instructions import Append, Reload
from berthmaster.worker.executor.core.cluster_protocol import ClusterInstruction


class Acknowledge(NamedTuple):
    """What the hint was about is in hand and survives us: it may be acknowledged."""

    hint: int


class Freeze(NamedTuple):
    """The workload's story cannot be read: nothing is done about it until a person looks."""

    tenant: str
    id: str
    why: str


Instruction = Append | Reload | ClusterInstruction | Acknowledge | Freeze
