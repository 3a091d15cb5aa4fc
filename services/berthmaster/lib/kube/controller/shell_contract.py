"""What a core asks of its shell beside its own writes, and the shell's answer to a write. Pure.

Five outcomes, by the core's next step:

========  ===================================================  ==================================
DONE      it is written, or nothing was left to write          go on
CONFLICT  another writer was first                             decide again, on ``found`` if set
DENIED    rights or a rule forbid it: repeating is in vain     wait for a change, and report it
GONE      the object, its namespace or its kind is not there   forget it, or wait for it
LATER     no answer, or "not now": it will pass                repeat, after ``pause_s`` if set
========  ===================================================  ==================================

A write that failed is an answer, never an exception into the core.
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
    """An Event on an object, for those who use kubectl. It has no answer."""

    resource: Resource
    metadata: Metadata
    warning: bool
    reason: str  # one word in CamelCase
    note: str


MAX_WHY_CHARS: Final = 500


class Outcome(Enum):
    """See the table above."""

    DONE = "done"
    CONFLICT = "conflict"
    DENIED = "denied"
    GONE = "gone"
    LATER = "later"


class Answer(NamedTuple):
    outcome: Outcome = Outcome.DONE
    reason: str = ""  # one word: the error's name, or a rule of the service's own
    why: str = ""  # for people
    pause_s: float | None = None  # before another try is worth it; None = as the core paces itself
    found: object = None  # the object as the server has it now, where that is known
    is_about_object: bool = False  # the object was refused for its own sake (lib/kube/denials.py)

    @property
    def done(self) -> bool:
        return self.outcome is Outcome.DONE

    @property
    def passes(self) -> bool:
        """Whether a failure is over by itself soon."""
        return self.outcome in (Outcome.CONFLICT, Outcome.LATER)


class Declined(Exception):
    """A rule of ours forbids the write, as the writer found out on the way."""

    outcome = Outcome.DENIED


def answer_to(error: KubernetesError | Declined) -> Answer:
    """What a failure means. Whether a ``Forbidden`` may pass is for ``Denials`` to say."""
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
