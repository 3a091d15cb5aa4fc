"""Instructions of cores to their shells, and the answers: a core's whole contact with the log.

A core returns instructions. Its shell carries out each instruction and passes the result to the
core as an event with the same ``ref``. Example: ``Append(ref=7, …)`` leads to ``Answered(ref=7,
outcome=Stored(931))``, ``Refused`` after a lost race, or ``Unknown`` after a timeout. A failed
write is thus a result for the core, never an exception. The simulation drives the same cores with
the same types.
"""

import msgspec

from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import ApiReply
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.workload import WorkloadEvent


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Store one event, guarded by ``event.after``. Answer: Answered."""

    ref: str
    event: WorkloadEvent


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """Read one workload from the log. Answer: Reloaded.

    ``receipt`` is the receipt of the placement whose pods the sender holds. A placement that the
    log has lost is restored first.
    """

    ref: str
    tenant: str
    id: str
    receipt: str = ""


class PutControl(msgspec.Struct, frozen=True, kw_only=True):
    """Store an operator's setting durably. Answer: Answered."""

    ref: str
    fact: ControlFact


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer the request with this ref. No answer."""

    ref: str
    reply: ApiReply


class Stored(msgspec.Struct, frozen=True):
    """Stored under this sequence, or the sequence of the last message of a batch."""

    sequence: int


class Refused(msgspec.Struct, frozen=True):
    """Another writer was first, and nothing was stored. ``last``: the workload's last sequence, if
    known.
    """

    last: int | None = None


class Unknown(msgspec.Struct, frozen=True):
    """The time limit passed without a result: stored now, later, or never."""

    why: str


Outcome = Stored | Refused | Unknown


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an Append or PutControl."""

    ref: str
    outcome: Outcome


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a Reload; None if the log has no such workload. ``failed``: why the events are
    unreadable.
    """

    ref: str
    workload: Workload | None
    failed: str = ""
    receipt: str = ""  # receipt of the placement
    why: str = ""  # why the sender's attempt is not the log's
    now_s: float = 0.0  # server's time of the read; 0 = unknown
