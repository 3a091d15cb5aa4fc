"""Who may pass a check, by the state of the Workload."""

import pytest

from berthmaster.hub.admission.core.gate import CheckVerdict, NewState, listed, new_state
from berthmaster.lib.kueue.workloads import Workload
from tests.unit.hub.admission.hub_objects import CHECK, RESERVED, condition, workload

OPEN = CheckVerdict(True, "Placement t4 selects a")
SHUT = CheckVerdict(False, "NoClustersAvailable: nobody")
READY = NewState("Ready", "Placement t4 selects a")
WAIT = NewState("Pending", "NoClustersAvailable: nobody")
EVICTED, FINISHED = condition("Evicted"), condition("Finished")


@pytest.mark.parametrize(
    ("why", "thing", "standing", "expected"),
    [
        ("it waits, and may pass", workload(), OPEN, READY),
        ("it waits, and is told why", workload(), SHUT, WAIT),
        ("it was told already", workload(message=SHUT.message), SHUT, None),
        ("held for a moment", workload(), OPEN._replace(held=True), None),
        ("without quota it is not its turn", workload(conditions=()), OPEN, None),
        ("evicted", workload(conditions=(RESERVED, EVICTED)), OPEN, None),
        ("finished", workload(conditions=(RESERVED, FINISHED)), OPEN, None),
        ("deleted", workload(deleted="2026-01-01T00:00:00Z"), OPEN, None),
        ("ready is never called back", workload(state="Ready"), SHUT, None),
        ("Retry is not ours to change", workload(state="Retry"), OPEN, None),
        ("Rejected neither", workload(state="Rejected"), OPEN, None),
        ("another check's Workload", workload(checks=("other",)), OPEN, None),
        ("without any status", Workload(), OPEN, None),
    ],
)
def test_new_state(
    why: str, thing: Workload, standing: CheckVerdict, expected: NewState | None
) -> None:
    assert new_state(thing, CHECK, standing) == expected, why


def test_each_attempt_passes_anew() -> None:
    assert new_state(workload(state="Ready"), CHECK, OPEN) is None
    evicted = workload(state="Pending", conditions=(EVICTED,), message="Reset to Pending")
    assert new_state(evicted, CHECK, OPEN) is None
    assert new_state(workload(state="Pending", message="Reset to Pending"), CHECK, OPEN) == READY


def test_a_message_is_as_long_as_the_api_takes() -> None:
    told = new_state(workload(), CHECK, CheckVerdict(False, "x" * 100_000))
    assert told is not None
    assert len(told.message) == 2000


def test_of_many_names_some_are_named() -> None:
    assert listed(("a", "b")) == "a, b"
    names = tuple(f"c{number}" for number in range(81))
    assert listed(names).endswith("c19 and 61 more")
