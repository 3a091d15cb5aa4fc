"""Whoever decides lets a frozen workload be until its story is told again."""

from collections.abc import Callable

import msgspec
import pytest

from berthmaster.karmada.known import Known
from berthmaster.lifecycle.fold import Verdict, judged_story
from berthmaster.lifecycle.workload import key
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.placement import HUB_CELL
from berthmaster.messages.workload import Claimed, HubObject, Placed, Recovered, Running, Submitted
from berthmaster.multikueue.known.bus_state import BusState
from berthmaster.resolver.known.knowledge import Knowledge
from tests.support.lives import ID, TENANT, fitting, lived, new

Reader = Knowledge | BusState | Known


@pytest.mark.parametrize(
    "begin",
    [lambda: Knowledge(HUB_CELL), BusState, lambda: Known({})],
    ids=["resolver", "multikueue", "karmada"],
)
def test_void_event_keeps_frozen_gap(begin: Callable[[], Reader]) -> None:
    """A lie that names what is to come is void at once; what follows on it follows on the gap."""
    reader = begin()
    origin = HubObject(system="karmada", namespace="ns", name="train", uid="u")
    submitted = fitting(Submitted, new())
    assert isinstance(submitted, Submitted)
    claimed = lived(Submitted, Placed, Claimed)
    story = [
        (10, msgspec.structs.replace(submitted, cell=HUB_CELL, origin=origin)),
        (20, fitting(Placed, lived(Submitted))),
        (30, fitting(Claimed, lived(Submitted, Placed))),
        (50, fitting(Running, claimed, after=40)),  # on what is lost
    ]
    verdict: Verdict | None = None
    for sequence, event in story:
        verdict = reader.take_event(event, sequence, 1.0, None)
    assert verdict is Verdict.MISSED
    if isinstance(reader, Known):
        reader.frozen[key(TENANT, ID)] = "lost"
    else:
        reader.freeze(TENANT, ID, 50, "lost")
    lie = (60, fitting(Running, claimed, after=1_000_000))
    back = (70, fitting(Recovered, new(), attempt=1, after=60))
    assert reader.take_event(lie[1], lie[0], 1.0, None) is None
    assert reader.take_event(back[1], back[0], 1.0, None) is Verdict.MISSED
    assert not reader.frozen
    told = [
        RecordedEvent(sequence=sequence, stored_at_s=1.0, event=event)
        for sequence, event in (*story, lie, back)
    ]
    work, verdicts = judged_story(TENANT, ID, told, (40).__eq__)
    for one, judged in zip(told, verdicts, strict=True):
        reader.take_event(one.event, one.sequence, one.stored_at_s, judged)
    assert reader.open[key(TENANT, ID)] == work
