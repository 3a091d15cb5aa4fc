"""What cores ask of their shells, and what shells answer: a core's whole contact with the log.

A core returns instructions; its shell carries each out and feeds the outcome back as one more event
with the instruction's ``ref``. A write that failed is thus never an exception inside a core: it was
stored, it was refused because somebody wrote first, or nobody knows, and each has its next step.
The simulation drives the same cores with the same words.
"""

import msgspec

from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import ApiReply
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.workload import WorkloadEvent


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Store one event, guarded by its aggregate at ``event.after``. Answer: Answered."""

    ref: str
    event: WorkloadEvent


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """Read one aggregate from the log. Answer: Reloaded. ``receipt``: of the placement whose pods
    the asker holds; if the log has lost that, it is brought back first."""

    ref: str
    tenant: str
    id: str
    receipt: str = ""


class PutControl(msgspec.Struct, frozen=True, kw_only=True):
    """Store an operator's setting durably. Answer: Answered."""

    ref: str
    fact: ControlFact


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer the request that came in under this ref. No answer."""

    ref: str
    reply: ApiReply


class Stored(msgspec.Struct, frozen=True):
    """It is in the log, under this sequence (of the last message of a batch)."""

    sequence: int


class Refused(msgspec.Struct, frozen=True):
    """Somebody wrote first; nothing of ours was stored. ``last``: the guard's sequence, if told."""

    last: int | None = None


class Unknown(msgspec.Struct, frozen=True):
    """The time limit passed without certainty: it may be stored now, later, or never."""

    why: str


Outcome = Stored | Refused | Unknown


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an Append or PutControl."""

    ref: str
    outcome: Outcome


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a Reload. None: the log has nothing of it. ``failed``: it was not readable."""

    ref: str
    workload: Workload | None
    failed: str = ""
    receipt: str = ""  # of its placement
    why: str = ""  # what the asker holds is not the log's
    now_s: float = 0.0  # the server's time when it was read, 0 = not told
