"""The page of job states, from the table of lib/lifecycle/states.py."""

from collections.abc import Mapping
from typing import Final

from berthmaster.lib.lifecycle.states import TRANSITIONS
from berthmaster.lib.messages.families import tag_of
from berthmaster.lib.messages.workload import State, WorkloadEvent
from scripts.reference.markdown import MADE_BY, table

HEAD: Final = """# Job states

{made_by}

`berth job JOB` shows state and events of a job. Only `succeeded`, `failed` and `cancelled` end a
job. [The event log](../concepts/event-log.md) explains events and attempts.
"""
MEANING: Final[Mapping[State, tuple[str, str]]] = {
    State.NEW: ("the id is unused", "submit"),
    State.QUEUED: ("the job waits for a place, a dependency, a release or a retry", "`berth why`"),
    State.PLACED: ("a cluster was chosen, and its executor has not claimed yet", "`berth top`"),
    State.CLAIMED: ("the executor creates the job; pods pull images and mount", "`berth job`"),
    State.ADMITTED: ("Kueue or Volcano admitted the job; pods start", "`berth job`"),
    State.RUNNING: ("all pods run", "`berth logs -f`"),
    State.DIVIDED: ("the parts of the job have states of their own", "`berth job`"),
    State.SUCCEEDED: ("all pods completed", "`berth report job`"),
    State.FAILED: ("the job failed, and no retry is left", "`berth job`, `berth logs`"),
    State.CANCELLED: (
        "a user, an operator or a dependency cancelled the job",
        "`berth job`",
    ),
}
EVENTS: Final = """## Events by state

An event outside this table is ignored and counted. Events that lead to the same state change
priority, holds, progress or the number of pods.
"""


def name_of(event: type[WorkloadEvent]) -> str:
    """Return the event's kind as subjects and `berth job` have it."""
    tag = tag_of(event)
    assert tag is not None, event
    return tag.split(".")[1]


def page() -> str:
    """Return the page."""
    states = table(
        ("state", "meaning", "look at"),
        ((f"`{state}`", meaning, look) for state, (meaning, look) in MEANING.items()),
    )
    moves = table(
        ("state", "event", "next state"),
        (
            (f"`{state}`", ", ".join(f"`{name}`" for name in names), f"`{after}`")
            for state, after, names in _moves()
        ),
    )
    return "\n".join([HEAD.format(made_by=MADE_BY), states, "", EVENTS, moves, ""])


def _moves() -> list[tuple[State, State, list[str]]]:
    """Return state, next state and the events that lead there, changes first."""
    found: list[tuple[State, State, list[str]]] = []
    for state, row in TRANSITIONS.items():
        ends = dict.fromkeys(sorted(row.values(), key=lambda after: after is state))
        found += [
            (state, end, [name_of(event) for event, after in row.items() if after is end])
            for end in ends
        ]
    return found
