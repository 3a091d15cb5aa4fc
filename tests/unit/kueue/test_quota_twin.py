"""Our arithmetic of Kueue's quota against the stand-in's, which is another's: on the table, and on
clusters that nobody has thought of. What both say the same is right, or both misread Kueue: for
that there is tests/bed/test_kueue_quota.py."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.kubernetes.quantity import parse_quantity
from tests.controlplane.kueue.cohorts import Place, Room
from tests.controlplane.kueue.quota import Assignment, assign, total, usage_of
from tests.controlplane.kueue.rows import (
    GPU,
    NEVER,
    ROWS,
    WAITS,
    Cohort,
    Documents,
    Flavor,
    Json,
    Pods,
    Queue,
    Row,
    quota,
)
from tests.unit.kueue.test_quota import answer_to, outcome, reports_of

TAINT = {"key": "dear", "value": "yes", "effect": "NoSchedule"}


def as_the_stand_in_says(row: Row) -> Assignment:
    documents = Documents(row)
    flavors = {one["metadata"]["name"]: one for one in documents.flavors()}
    queues = {one["metadata"]["name"]: one for one in documents.queues()}
    used: dict[str, dict[Place, Fraction]] = {
        name: {
            (flavor, resource): parse_quantity(amount)
            for flavor, amounts in queue.used.items()
            for resource, amount in amounts.items()
        }
        for name, queue in row.queues.items()
    }
    room = Room(queues.values(), documents.cohorts(), used)
    for workload in documents.coming():
        name = workload["spec"]["queueName"]
        found = assign(workload, queues[name], flavors, room)
        if found.admission is not None:
            taken = usage_of({"status": {"admission": found.admission}})
            used[name] = total([used[name], taken])
            room = room.with_used(name, used[name])
    return assign(documents.asked(), queues[row.queue], flavors, room)


def outcome_of(found: Assignment) -> str | list[Mapping[str, str]]:
    if found.admission is not None:
        sets: Sequence[Json] = found.admission["podSetAssignments"]
        return [one["flavors"] for one in sets]
    return WAITS if "insufficient unused quota" in found.message else NEVER


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_stand_in_follows_the_table(row: Row) -> None:
    assert outcome_of(as_the_stand_in_says(row)) == row.then


# Any cluster

FLAVORS = ("a", "b", "c")
COHORTS = ("north", "south", "all")
FEW = st.integers(0, 6)


@st.composite
def groups(draw: st.DrawFn, *, limits: bool) -> list[dict[str, dict[str, str | Json]]]:
    names = draw(st.lists(st.sampled_from(FLAVORS), min_size=1, max_size=3, unique=True))
    limit = st.none() | FEW.map(str) if limits else st.none()

    def one() -> Json:
        return quota(str(draw(FEW)), borrow=draw(limit), lend=draw(limit))

    split = len(names) > 1 and draw(st.booleans())
    if not split:
        return [{name: {"cpu": one(), GPU: one()} for name in names}]
    return [{names[0]: {"cpu": one()}}, {name: {GPU: one()} for name in names[1:]}]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    parents = {"north": draw(st.sampled_from(("", "all"))), "south": "all", "all": ""}
    made = draw(st.lists(st.sampled_from(COHORTS), unique=True))
    cohorts = {
        name: Cohort(
            parent=parents[name],
            groups=draw(groups(limits=bool(parents[name]))) if draw(st.booleans()) else (),
        )
        for name in made
    }
    queues: dict[str, Queue] = {}
    for number in range(draw(st.integers(1, 4))):
        cohort = draw(st.sampled_from(("", *COHORTS)))
        granted = draw(groups(limits=bool(cohort)))
        used = {
            flavor: {name: str(draw(st.integers(0, 4))) for name in resources}
            for group in granted
            for flavor, resources in group.items()
        }
        queues[f"q{number}"] = Queue(
            granted, cohort=cohort, prefers_own=draw(st.booleans()), used=used
        )

    def pods() -> Pods:
        asked = {GPU: str(draw(st.integers(1, 5)))}
        if draw(st.booleans()):
            asked["cpu"] = str(draw(st.integers(1, 5)))
        zone = {"zone": draw(st.sampled_from(FLAVORS))} if draw(st.booleans()) else {}
        return Pods(asked, count=draw(st.integers(1, 2)), labels=zone)

    flavors = {
        name: Flavor(
            labels={"zone": name} if draw(st.booleans()) else {},
            taints=[TAINT] if draw(st.integers(0, 5)) == 0 else [],
        )
        for name in FLAVORS
    }
    return Row(
        what="",
        queues=queues,
        asks=[pods() for _ in range(draw(st.integers(1, 3)))],
        then="",
        flavors=flavors,
        cohorts=cohorts,
        coming=[
            (name, pods()) for name in draw(st.lists(st.sampled_from(list(queues)), max_size=2))
        ],
    )


@settings(max_examples=100, deadline=None)
@given(row=rows())
def test_of_any_cluster_both_say_the_same(row: Row) -> None:
    ours, theirs = outcome(answer_to(row, reports_of(row))), outcome_of(as_the_stand_in_says(row))
    if isinstance(ours, str):
        # The stand-in tells apart what waits and what never fits flavor by flavor, as Kueue's
        # words do; we tell by whether all of it would fit if nothing ran.
        assert isinstance(theirs, str)
    else:
        assert ours == theirs
