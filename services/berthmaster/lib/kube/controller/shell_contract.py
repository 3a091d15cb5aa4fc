"""The shell's answers to a core's writes, and the Events that a core may publish. Pure.

Five outcomes, by the core's next step:

========  ===================================================  ==================================
DONE      written, or nothing left to write                    go on
CONFLICT  another writer was first                             decide again, on ``found`` if set
DENIED    rights or a rule forbid the write: do not retry      report, and wait for a change
GONE      the object, its namespace or its kind is not there   forget the object, or wait
LATER     no answer, or "not now": a temporary error           repeat, after ``pause_s`` if set
========  ===================================================  ==================================

A failed write is an answer, never an exception in the core.
"""

from enum import Enum
from typing import Final, NamedTuple

from berthmaster.lib.kube.denials import is_about_object
from berthmaster.lib.kube.errors import (
    NO_ANSWER,
    AlreadyExists,
    ApiError,
    Conflict,
    KubernetesError,
    NotFound,
    TooManyRequests,
)
from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.kube.resources import Resource


class KubeEvent(NamedTuple):
    """An Event on an object, for users of kubectl, without an answer."""

    resource: Resource
    metadata: Metadata
    warning: bool
    reason: str  # one word in CamelCase
    note: str


MAX_WHY_CHARS: Final = 500


class Outcome(Enum):
    """The result of a write. See the table above."""

    DONE = "done"
    CONFLICT = "conflict"
    DENIED = "denied"
    GONE = "gone"
    LATER = "later"


class Answer(NamedTuple):
    outcome: Outcome = Outcome.DONE
    reason: str = ""  # one word: the error's name, or a rule of the service
    why: str = ""  # message for operators
    pause_s: float | None = None  # pause before the next try in seconds; None = the core's own pace
    found: object = None  # the object as the server has it now, where known
    is_about_object: bool = False  # the object was refused for its own sake (lib/kube/denials.py)

    @property
    def done(self) -> bool:
        return self.outcome is Outcome.DONE

    @property
    def passes(self) -> bool:
        """Whether the failure is expected to end soon without help."""
        return self.outcome in (Outcome.CONFLICT, Outcome.LATER)


class Declined(Exception):
    """A write forbidden by a rule of the service, found while writing."""

    outcome = Outcome.DENIED


def answer_to(error: KubernetesError | Declined) -> Answer:
    """Return the answer for an error. ``Denials`` decides whether a ``Forbidden`` is retried."""
    outcome = error.outcome if isinstance(error, Declined) else _outcome(error)
    server_pause_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
    pause_s = server_pause_s if server_pause_s and outcome is Outcome.LATER else None
    why = str(error)[:MAX_WHY_CHARS]
    of_object = isinstance(error, ApiError) and is_about_object(error)
    return Answer(outcome, type(error).__name__, why, pause_s, is_about_object=of_object)


def _outcome(error: KubernetesError) -> Outcome:
    if isinstance(error, Conflict | AlreadyExists):
        return Outcome.CONFLICT
    if isinstance(error, NotFound):
        return Outcome.GONE
    if isinstance(error, (TooManyRequests, *NO_ANSWER)):
        return Outcome.LATER
    return Outcome.DENIED
