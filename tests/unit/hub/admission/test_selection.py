"""What a Placement selects, row by row of the table that opens selection.py."""

import pytest

from berthmaster.hub.admission.core.objects import OCM_GROUP, Placement, PlacementDecision
from berthmaster.hub.admission.core.selection import Ocm, Reason, Selection, in_order, named, select
from berthmaster.lib.kueue.multikueue import Parameters
from tests.unit.hub.admission.hub_objects import (
    NAMESPACE,
    NO_PARAMETERS,
    PLACEMENT,
    check,
    condition,
    page,
    placement,
)

RIGHT = f"{{apiGroup: {OCM_GROUP}, kind: Placement, name: …}}"
WHERE = f"Placement {NAMESPACE}/{PLACEMENT}"


def ocm(
    *pages: PlacementDecision,
    there: Placement | None = None,
    absent: str = "",
    bad_placements: dict[str, str] | None = None,
    bad_pages: dict[str, str] | None = None,
) -> Ocm:
    kept = {one.metadata.name: one for one in pages}
    placements = {PLACEMENT: there or placement()}
    return Ocm(
        NAMESPACE, placements, {PLACEMENT: kept}, bad_placements or {}, bad_pages or {}, absent
    )


def test_its_clusters_are_those_of_its_decisions_in_their_order() -> None:
    assert select(check(), ocm(page("b", "a"))) == Selection(Reason.ACTIVE, WHERE, ("b", "a"))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (NO_PARAMETERS, f"spec.parameters is missing, right is {RIGHT}"),
        (
            Parameters(api_group=OCM_GROUP, kind="PlacementDecision", name="t4"),
            f"spec.parameters names a {OCM_GROUP}/PlacementDecision, right is {RIGHT}",
        ),
        (
            Parameters(api_group="core", kind="Secret", name="t4"),
            f"spec.parameters names a core/Secret, right is {RIGHT}",
        ),
        (
            Parameters(kind="Placement", name="t4"),
            f"spec.parameters names a core/Placement, right is {RIGHT}",
        ),
    ],
)
def test_parameters_must_name_a_placement(parameters: Parameters, words: str) -> None:
    found = select(check(parameters=parameters), ocm(page("a")))
    assert found == Selection(Reason.PLACEMENT_ERROR, words, None)


def test_a_placement_that_is_not_there_is_told_with_where_it_was_looked_for() -> None:
    found = select(
        check(parameters=Parameters(api_group=OCM_GROUP, kind="Placement", name="x")), ocm()
    )
    assert found.reason is Reason.PLACEMENT_NOT_FOUND
    assert found.message == (
        f"there is no Placement {NAMESPACE}/x; Placements of checks are looked for in namespace "
        f"{NAMESPACE} only"
    )
    assert found.clusters is None


def test_a_hub_without_placements_is_told_so() -> None:
    found = select(check(), ocm(page("a"), absent="they are not served"))
    assert found == Selection(Reason.PLACEMENT_ERROR, f"{WHERE}: they are not served")


def test_a_placement_that_cannot_be_read_selects_nobody_knows_whom() -> None:
    found = select(check(), ocm(page("a"), bad_placements={PLACEMENT: "status is a list"}))
    words = f"{WHERE} cannot be read: status is a list"
    assert found == Selection(Reason.PLACEMENT_ERROR, words)


def test_a_misconfigured_placement_does_not_say_nobody_though_its_decisions_do() -> None:
    bad = condition("PlacementMisconfigured", True, "Misconfigured", "unknown prioritizer")
    found = select(check(), ocm(page(), there=placement(PLACEMENT, bad)))
    words = f"{WHERE} is misconfigured: unknown prioritizer"
    assert found == Selection(Reason.PLACEMENT_ERROR, words)
    well = condition("PlacementMisconfigured", False)
    found = select(check(), ocm(page("a"), there=placement(PLACEMENT, well)))
    assert found.clusters == ("a",)


@pytest.mark.parametrize("bad", [f"{PLACEMENT}-decision-2", f"{PLACEMENT}-decision-1"])
def test_one_page_that_cannot_be_read_makes_all_of_it_unknown(bad: str) -> None:
    found = select(check(), ocm(page("a"), bad_pages={bad: "no list"}))
    words = f"PlacementDecision {NAMESPACE}/{bad} cannot be read: no list"
    assert found == Selection(Reason.PLACEMENT_DECISION_ERROR, words)


def test_a_page_of_another_placement_that_cannot_be_read_changes_nothing() -> None:
    found = select(check(), ocm(page("a"), bad_pages={"other-decision-1": "x", "odd": "y"}))
    assert found.clusters == ("a",)


def test_without_any_decision_nobody_has_looked_yet() -> None:
    found = select(check(), ocm())
    words = f"{WHERE} has no PlacementDecision: no controller has evaluated it yet"
    assert found == Selection(Reason.PLACEMENT_DECISION_ERROR, words)


def test_decisions_that_name_nobody_mean_nobody_in_the_words_of_its_scheduler() -> None:
    told = condition("PlacementSatisfied", False, "NoManagedClusterMatched", "none has the label")
    found = select(check(), ocm(page(), there=placement(PLACEMENT, told)))
    words = f"{WHERE} selects no cluster (NoManagedClusterMatched: none has the label)"
    assert found == Selection(Reason.NO_CLUSTERS, words, ())
    assert select(check(), ocm(page())).message == f"{WHERE} selects no cluster"


def test_pages_stand_by_group_and_by_number_and_not_as_text() -> None:
    pages = [
        page("k", number=10),
        page("z", number=3, group=1),
        page("b", number=2),
        page("a", number=1),
        page("x", number=7, group=None),
    ]
    assert [one.clusters[0] for one in in_order(pages)] == ["a", "b", "x", "k", "z"]


def test_a_hundred_and_one_clusters_come_in_two_pages_and_twice_named_is_once() -> None:
    names = [f"c{number:03}" for number in range(101)]
    pages = ocm(page(*names[100:], "c000", number=2), page(*names[:100], number=1))
    assert select(check(), pages).clusters == tuple(names)


def test_the_placement_that_a_check_names() -> None:
    assert named(check()) == (PLACEMENT, "")
