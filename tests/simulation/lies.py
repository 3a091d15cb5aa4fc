"""Somebody with every right to write, who says of others' jobs what is not so.

Without guards, under names of clusters that do not hold the attempt, with an ``after`` that is old,
right, or of the future. Nobody may believe a word: the judge folds the log as a whole, and every
reader must come to the same. One that names a number between the workload's last and its own would
look as if events before it were lost; to store it takes the keys of our own services.
"""

import random
from typing import Any, Final

from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Claimed,
    Evicted,
    Failed,
    Running,
    Succeeded,
    WorkloadEvent,
)

LIAR: Final = "liar"
NAMES: Final = ("evil", "cancel", "lost", "submitted", "nowhere.at-all")  # of no cluster
ENDINGS: Final = (Succeeded, Failed, Cancelled)
HOLDERS: Final = (Claimed, Admitted, Running, Evicted, CancelRequested)
FUTURE: Final = 10**9


def lie(dice: random.Random, work: Workload, next_sequence: int) -> WorkloadEvent:
    """One about an open workload, that will be stored under this sequence."""
    kind: Any = dice.choice((*ENDINGS, *HOLDERS))
    guesses = (0, work.sequence, next_sequence, FUTURE)
    after = dice.choice((*guesses, dice.randint(0, work.sequence)))
    told: dict[str, Any] = {
        "tenant": work.tenant,
        "id": work.id,
        "after": after,
        "at_s": 0.0,
        "by": LIAR,
        "cluster": dice.choice(NAMES),
    }
    if kind is CancelRequested:
        return CancelRequested(**told)
    told["attempt"] = max(1, work.attempt)
    if kind in ENDINGS:
        told |= {"digest": work.digest, "submitted_at_s": work.submitted_at_s}
    elif kind is Running:
        told["pods"] = ()
    elif kind is Claimed:
        told["executor"] = LIAR
    elif kind is Evicted:
        told["reason"] = "a lie"
    event: WorkloadEvent = kind(**told)
    return event
