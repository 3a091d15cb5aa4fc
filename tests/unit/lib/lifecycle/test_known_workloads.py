"""What one reader of the log keeps, and when it lets a workload be."""

from collections.abc import Callable

import msgspec
import pytest

from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.hub.karmada.core.known import Known
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.lib.lifecycle.fold import LOST, OpenWorkloads, Verdict, frozen_summary
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.placement import HUB_CELL
from berthmaster.lib.messages.workload import (
    Cancelled,
    Carried,
    Claimed,
    HubObject,
    Placed,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from tests.support.lives import ID, TENANT, fitting, lived, new

NAME = key(TENANT, ID)


def followed(
    *kinds: type[WorkloadEvent], begins: Callable[[Submitted | Carried], bool] = lambda _: True
) -> OpenWorkloads:
    """A reader after these events, stored under 10, 20, 30 …"""
    reader = OpenWorkloads(begins)
    for number, kind in enumerate(kinds, 1):
        event = fitting(kind, lived(*kinds[: number - 1]))
        reader.apply(event, 10 * number, float(number))
    return reader


def test_workload_is_kept_from_beginning_to_ending() -> None:
    reader = followed(Submitted, Placed, Claimed)
    assert reader.open == {NAME: lived(Submitted, Placed, Claimed)}
    ending = fitting(Succeeded, reader.open[NAME])
    applied = reader.apply(ending, 40, 4.0)
    assert applied is not None
    assert (applied.verdict, applied.workload.state, applied.is_new) == (
        Verdict.COUNTED,
        State.SUCCEEDED,
        False,
    )
    assert not reader.open


@pytest.mark.parametrize("kind", [Submitted, Carried])
def test_reader_keeps_those_that_begin_for_it(kind: type[Submitted | Carried]) -> None:
    for begins in (True, False):
        reader = followed(kind, begins={True: lambda _: True, False: lambda _: False}[begins])
        assert bool(reader.open) is begins


def test_what_is_left_of_an_ended_workload_is_ignored_up_to_its_tombstone() -> None:
    reader = OpenWorkloads()
    running = lived(Submitted, Placed, Claimed, Running)
    assert reader.apply(fitting(Running, running), 50, 5.0) is None
    applied = reader.apply(fitting(Succeeded, running, after=50), 60, 6.0)
    assert applied is not None
    assert (applied.verdict, applied.is_new) == (Verdict.COUNTED, True)
    assert not reader.open
    assert not reader.frozen


def test_event_ahead_freezes_until_the_ending() -> None:
    reader = followed(Submitted, Placed)
    claimed = lived(Submitted, Placed, Claimed)
    applied = reader.apply(fitting(Running, claimed), 50, 5.0)  # 30 is missing
    assert applied is not None
    assert applied.verdict is Verdict.AHEAD
    assert reader.frozen == {NAME: LOST}
    assert reader.apply(fitting(Running, claimed, after=50), 60, 6.0) is None
    assert reader.open == {NAME: lived(Submitted, Placed)}
    ending = reader.apply(fitting(Succeeded, claimed, after=60), 70, 7.0)
    assert ending is not None
    assert ending.verdict is Verdict.COUNTED
    assert not reader.frozen
    assert not reader.open


def test_stale_or_foreign_ending_does_not_thaw() -> None:
    """Under 40 is an event that this reader cannot decode, and 50 names it."""
    reader = followed(Submitted, Placed, Claimed)
    claimed = lived(Submitted, Placed, Claimed)
    reader.freeze(TENANT, ID, 40, "unknown tag")
    assert reader.apply(fitting(Running, claimed, after=40), 50, 5.0) is None
    for at, ending in (
        (60, fitting(Cancelled, claimed, after=30)),  # lost its race to 40
        (61, fitting(Cancelled, claimed, after=40)),  # and this one to 50
        (62, fitting(Cancelled, claimed, after=61, cluster="nowhere")),
    ):
        applied = reader.apply(ending, at, 6.0)
        assert applied is None or applied.verdict is Verdict.VOID
        assert reader.frozen == {NAME: "unknown tag"}
        assert reader.open[NAME].state is State.CLAIMED
    assert reader.apply(fitting(Succeeded, claimed, after=62), 70, 7.0, void=True) is None
    applied = reader.apply(fitting(Succeeded, claimed, after=70), 80, 8.0)
    assert applied is not None
    assert applied.workload.state is State.SUCCEEDED
    assert not reader.frozen
    assert not reader.open


def test_first_reason_is_kept() -> None:
    reader = OpenWorkloads()
    reader.freeze(TENANT, ID, 40, "unknown tag")
    reader.freeze(TENANT, ID, 50, LOST)
    assert reader.frozen == {NAME: "unknown tag"}
    assert "berth job team-a/train-1 --raw" in frozen_summary("unknown tag", NAME)
    assert "berth recover" in frozen_summary(LOST, NAME)


Reader = Knowledge | BusState | Known


@pytest.mark.parametrize(
    "begin",
    [lambda: Knowledge(HUB_CELL), BusState, lambda: Known({})],
    ids=["resolver", "multikueue", "karmada"],
)
def test_decider_lets_a_frozen_workload_be_until_its_ending(begin: Callable[[], Reader]) -> None:
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
    verdicts = [reader.take_event(event, sequence, 1.0) for sequence, event in story]
    assert verdicts == [Verdict.COUNTED] * 3 + [Verdict.AHEAD]
    assert reader.frozen == {NAME: LOST}
    assert reader.take_event(fitting(Running, claimed, after=50), 60, 1.0) is None
    assert reader.open[NAME].state is State.CLAIMED
    assert reader.take_event(fitting(Succeeded, claimed, after=60), 70, 1.0) is Verdict.COUNTED
    assert not reader.frozen
    assert not reader.open


@pytest.mark.parametrize("begin", [BusState, lambda: Known({})], ids=["multikueue", "karmada"])
def test_void_tombstone_ends_nothing(begin: Callable[[], BusState | Known]) -> None:
    """Its content is another workload's."""
    reader = begin()
    ending = fitting(Cancelled, lived(Submitted, Placed), after=20)
    assert reader.take_event(ending, 30, 1.0, void=True) is None
    assert NAME not in reader.ended
    assert reader.take_event(ending, 40, 1.0) is None
    assert reader.ended[NAME] is State.CANCELLED
