"""How clusters have done: what counts, how it fades, and that order and snapshots do not matter."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.engine.scoring.track_record import HOUR_S, HOURS, TrackRecord, TrackRecordState
from berthmaster.messages.workload import Evicted, Fault

NOW_S = 500_000 * HOUR_S + 60


def after(*notes: tuple[str, float, bool]) -> TrackRecord:
    """``notes``: cluster, hours ago, whether it went well."""
    record = TrackRecord()
    for cluster, hours, well in notes:
        record.note(cluster, NOW_S - hours * HOUR_S, went_well=well)
    return record


def test_a_cluster_without_history_is_not_known_and_one_with_trouble_is_the_worst() -> None:
    assert TrackRecord().steadiness(NOW_S) == {}
    record = after(("good", 0, True), ("bad", 0, False))
    assert record.steadiness(NOW_S) == {"good": 50.0, "bad": 0.0}


def test_trouble_fades_by_half_in_six_hours_and_is_forgotten_after_a_day() -> None:
    work = [("c1", 0.0, True)] * 19
    assert after(*work).steadiness(NOW_S) == {"c1": 95.0}
    assert after(*work, ("c1", 0, False)).steadiness(NOW_S) == {"c1": 79.1667}
    assert after(*work, ("c1", 6, False)).steadiness(NOW_S) == {"c1": 86.3636}
    assert after(*work, ("c1", 24, False)).steadiness(NOW_S) == {"c1": 95.0}
    assert after(("c1", 24, False)).steadiness(NOW_S) == {}
    one = after(*work)
    later = [one.steadiness(NOW_S + hours * HOUR_S) for hours in (0, 6, 12, 24)]
    assert later == [{"c1": 95.0}, {"c1": 90.4762}, {"c1": 82.6087}, {}]  # and so does work


def test_times_that_cannot_be_and_clusters_without_a_name_are_passed_over() -> None:
    record = TrackRecord()
    for at_s in (float("nan"), float("inf"), float("-inf"), -1.0, 1e15):
        record.note("c1", at_s, went_well=True)
    record.note("", NOW_S, went_well=True)
    assert record.state() == TrackRecordState()
    assert after(("c1", 0, True)).steadiness(float("nan")) == {"c1": 50.0}  # of an hour to come


def test_a_cluster_takes_no_more_room_than_a_day() -> None:
    record = after(*(("c1", float(hours), True) for hours in range(200, -1, -1)))
    [hours] = record.state().hours.values()
    assert len(hours) == HOURS


def test_a_cluster_answers_for_its_own_faults_and_for_none_of_the_job() -> None:
    faults: tuple[Fault, ...] = ("exit", "out_of_memory", "node_lost", "not_started", "")
    for fault in faults:
        record = after(*[("c1", 0.0, True)] * 19)
        evicted = Evicted(
            tenant="acme", id="a", after=1, at_s=0.0, by="executor/c1", cluster="c1", attempt=1,
            reason="r", fault=fault,
        )  # fmt: skip
        record.take(evicted, "c1", NOW_S)
        own = fault in ("exit", "out_of_memory")
        assert record.steadiness(NOW_S) == {"c1": 95.0 if own else 79.1667}


notes = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 30), st.booleans()), max_size=40
)


@settings(deadline=None)
@given(notes, st.randoms(use_true_random=False), st.integers(0, 40))
def test_neither_order_nor_a_snapshot_between_makes_a_difference(
    told: list[tuple[str, int, bool]], random: object, cut: int
) -> None:
    whole = after(*told)
    shuffled = list(told)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first = after(*shuffled[:cut])
    packed = msgspec.msgpack.encode(first.state())
    second = TrackRecord(msgspec.msgpack.decode(packed, type=TrackRecordState))
    for cluster, hours, well in shuffled[cut:]:
        second.note(cluster, NOW_S - hours * HOUR_S, went_well=well)
    assert second.steadiness(NOW_S) == whole.steadiness(NOW_S)
    assert all(0 <= part <= 100 for part in whole.steadiness(NOW_S).values())
