"""The evaluator: from what changes on a hub to what it writes, as stories."""

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.hub.placement.core.evaluator import Thing
from berthmaster.hub.placement.core.instructions import DropPage, PutPage, PutStatus, Write
from berthmaster.hub.placement.core.objects import HYSTERESIS, RANKING, REQUEST, CandidateCluster
from berthmaster.hub.placement.core.scheduling.plugin import Snapshot
from berthmaster.hub.placement.core.scheduling.request import Request
from berthmaster.hub.placement.core.scheduling.scheduler import ScheduleResult, schedule
from tests.unit.hub.placement.hub import Hub, joined
from tests.unit.hub.placement.objects import (
    NAMESPACE,
    NOW_S,
    UNHURRIED,
    binding,
    cluster,
    cluster_set,
    exactly,
    language,
    named,
    page,
    placement,
    score,
    taint,
    where,
)

KEY = (NAMESPACE, "p")
WRITTEN = ["write p-decision-1", "note p-decision-1"]
BY_DEMO = exactly(("AddOn/demo/demo", 1))
BAD: dict[str, Any] = {"predicates": [where(cel=["managedCluster.("])]}


def test_a_placement_of_ours_is_decided_and_its_status_told() -> None:
    hub = Hub(*named("a", "b"), placement())
    assert hub.settle() == ["create p-decision-1", "status p"]
    assert hub.pages() == ["a,b"]
    decision = hub.decisions[NAMESPACE, "p-decision-1"]
    assert decision.metadata.owner_references[0].uid == "uid-p"
    assert json.loads(decision.metadata.annotations[RANKING])["ranked"] == [["a", 100], ["b", 100]]
    status = hub.placements[KEY].status
    assert status.number_of_selected_clusters == 2
    assert [one.decisions for one in status.decision_groups or ()] == [("p-decision-1",)]
    assert hub.condition("PlacementSatisfied") == ("True", "AllDecisionsScheduled")
    assert hub.condition("PlacementMisconfigured") == ("False", "Succeedconfigured")
    assert hub.told("DecisionUpdate") == ["+a, b; best first: a 100, b 100"]


def test_what_is_not_ours_is_left_alone_however_it_looks() -> None:
    theirs = placement(ours=False, **BAD)
    other = placement("q", ours=False, annotations={"berthmaster.io/placement-hysteresis": "x"})
    hub = Hub(*named("a"), theirs, other, page("p", 1, ["a"]))
    assert hub.settle() == []
    # It becomes ours, and then OCM's again: what was decided stays for whoever decides next.
    hub.edit(placement())
    assert "status p" in hub.settle()
    assert hub.pages() == ["a"]
    hub.edit(placement(ours=False, numberOfClusters=0))
    hub.set(cluster("b"))
    assert hub.settle() == ["note p-decision-1"]  # our notes go
    hub.drop(cluster("b"))
    assert hub.settle() == []
    assert hub.pages() == ["a"]


def test_nothing_is_decided_before_everything_was_listed_or_while_a_mirror_is_behind() -> None:
    hub = Hub(placement(), page("p", 1, ["a"]), ready=False)
    assert hub.settle() == []
    assert hub.core.wake_at_s() == float("inf")
    hub.core.complete, hub.core.behind = True, True
    assert hub.settle() == []
    hub.core.behind = False
    hub.set(cluster("a"))
    hub.settle()
    assert hub.pages() == ["a"]


def test_in_a_steady_state_nothing_is_written() -> None:
    hub = Hub(*named("a", "b"), score("a", 5), placement())
    hub.settle()
    told_again: tuple[Thing, ...] = (*named("a", "b"), score("a", 5), cluster_set(), binding())
    written = []
    for _ in range(5):
        hub.now_s += 61
        for thing in told_again:
            hub.set(thing)
        written.append(hub.settle())
    # Those decided have by now a Steady score of 100: that is written once, and then nothing.
    assert written == [["write p-decision-1", "note p-decision-1"], [], [], [], []]


def test_a_heartbeat_of_a_cluster_is_no_reason_to_look() -> None:
    hub = Hub(*named("a"), placement())
    hub.settle()
    beat = {"type": "Available", "status": "True", "reason": "r", "message": "1"}
    hub.set(cluster("a", conditions=[beat]))
    assert hub.core.due(hub.now_s) == [KEY]
    hub.settle()
    hub.set(cluster("a", conditions=[beat | {"message": "2", "lastTransitionTime": "x"}]))
    assert hub.core.due(hub.now_s) == []
    # Nor is a cluster of a set that it is not bound to, and a score that it does not ask for.
    hub.set(cluster("elsewhere", in_set="other"))
    hub.set(score("a", 1))
    assert hub.core.due(hub.now_s) == []


def test_expressions_over_many_clusters_are_asked_in_slices_before_any_decision() -> None:
    clusters = [cluster(f"c{n:04}", claims={"id": "yes"}) for n in range(1_200)]
    cel = "managedCluster.status.clusterClaims.all(c, c.value == 'yes')"
    hub = Hub(*clusters, placement(predicates=[where(cel=[cel])]))
    assert hub.core.act(hub.now_s) == []
    assert hub.core.due(hub.now_s) == []  # it rests until the expressions have answered
    hub.settle()
    assert hub.questions == 0  # nothing is due, since the first question is not answered
    for asked in (500, 500, 200):
        pending = hub.core.pending(KEY)
        assert pending is not None
        assert len(pending.clusters) == asked
        hub.core.settle(KEY, pending, language().answer(pending.question), hub.now_s)
        hub.look(KEY) if asked == 200 else hub.core.evaluate(KEY, hub.now_s)
    assert hub.core.pending(KEY) is None
    assert len(hub.core.index.decided(KEY)) == 1_200


def test_settle_without_an_answer_asks_again_after_a_pause() -> None:
    hub = Hub(*named("a"), placement(predicates=[where(cel=["true"])]))
    hub.answers = False
    assert hub.settle() == []
    assert (hub.questions, hub.core.due(hub.now_s)) == (1, [])
    hub.answers = True
    hub.now_s = hub.core.wake_at_s()
    assert NOW_S < hub.now_s < NOW_S + 1
    hub.settle()
    assert hub.pages() == ["a"]


def test_settle_ignores_the_answer_to_a_placement_that_was_made_anew() -> None:
    hub = Hub(*named("a"), placement(predicates=[where(cel=["true"])]))
    hub.core.act(hub.now_s)
    pending = hub.core.pending(KEY)
    assert pending is not None
    hub.drop(hub.placements[KEY])
    hub.set(placement(uid="2", predicates=[where(cel=["false"])]))
    hub.core.settle(KEY, pending, language().answer(pending.question), hub.now_s)
    hub.settle()
    assert hub.pages() == [""]


def test_a_changed_score_changes_the_decision_at_once() -> None:
    wanted = placement(numberOfClusters=1, prioritizerPolicy=BY_DEMO)
    hub = Hub(*named("a", "b"), score("a", 10), score("b", 20), wanted)
    hub.settle()
    assert hub.pages() == ["b"]
    hub.set(score("a", 30))
    assert hub.settle() == WRITTEN
    assert hub.pages() == ["a"]
    assert hub.told("DecisionUpdate")[-1] == "+a -b; best first: a 30, b 20"


def annotates(write: Write) -> bool:
    return isinstance(write, PutPage) and write.status is None


def test_who_is_chosen_is_written_before_annotations_and_told_when_it_stands() -> None:
    wanted = placement(numberOfClusters=1, prioritizerPolicy=BY_DEMO)
    hub = Hub(*named("a", "b", "c"), score("a", 10), score("b", 20), wanted)
    hub.settle()
    hub.events.clear()
    hub.set(score("a", 30))
    first = hub.look(KEY)
    assert first is not None
    assert [type(one) for one in first.writes] == [PutPage]
    assert hub.events == []
    # The next change comes while that is on its way: it goes before the annotations of the first.
    hub.set(score("c", 40))
    hub.carry_out(first)
    assert hub.writes[-1] == "write p-decision-1"
    assert hub.told("DecisionUpdate") == ["+a -b; best first: a 30, b 20, c 0"]
    assert hub.settle() == WRITTEN
    assert hub.pages() == ["c"]
    [there] = hub.decisions.values()
    assert json.loads(there.metadata.annotations[RANKING])["ranked"][0] == ["c", 40]
    # Annotations that are refused are written anew.
    hub.set(score("b", 50))
    hub.refuse = lambda write: "conflict" if annotates(write) else ""
    assert hub.settle() == ["write p-decision-1"]
    hub.refuse = lambda write: ""
    hub.now_s += 1
    assert hub.settle() == ["note p-decision-1"]
    # One that fails tells nobody that anything came or went.
    hub.events.clear()
    hub.refuse = lambda write: "conflict"
    hub.set(score("a", 90))
    hub.step()
    assert hub.events == []


def test_scores_that_change_nobodys_place_are_written_once_a_minute() -> None:
    wanted = placement(numberOfClusters=1, prioritizerPolicy=BY_DEMO)
    hub = Hub(*named("a", "b"), score("a", 10), score("b", 20), wanted)
    hub.settle()
    hub.set(score("b", 25))
    assert hub.settle() == []
    assert hub.core.wake_at_s() == NOW_S + 60
    hub.now_s += 60
    assert hub.settle() == WRITTEN
    [decision] = hub.decisions[NAMESPACE, "p-decision-1"].status.decisions  # type: ignore[union-attr,misc]
    assert decision.reason == "score 25: AddOn/demo/demo 1*25"
    # An edit is not held up by that.
    hub.set(score("b", 26))
    hub.edit(placement(numberOfClusters=1, prioritizerPolicy=BY_DEMO, scoreRateLimit="0s"))
    assert hub.settle() == WRITTEN


def test_ordered_by_score_another_order_alone_is_no_more_urgent_than_a_score() -> None:
    wanted = placement(sortBy="Score", prioritizerPolicy=BY_DEMO, scoreRateLimit="30s")
    hub = Hub(*named("a", "b"), score("a", 10), score("b", 20), wanted)
    hub.settle()
    assert hub.pages() == ["b,a"]
    hub.set(score("a", 30))
    assert hub.settle() == []
    hub.now_s += 30
    hub.settle()
    assert hub.pages() == ["a,b"]


def test_an_expired_score_is_noticed_without_any_change() -> None:
    wanted = placement(numberOfClusters=1, prioritizerPolicy=BY_DEMO)
    hub = Hub(*named("a", "b"), score("a", 50, valid_s=100), score("b", 20, valid_s=1000), wanted)
    hub.settle()
    assert hub.pages() == ["a"]
    assert hub.core.wake_at_s() == pytest.approx(NOW_S + 100, abs=0.01)
    hub.now_s = hub.core.wake_at_s()
    hub.settle()
    assert hub.pages() == ["b"]
    assert hub.told("ScoresExpired") == ["AddOnPlacementScores demo expired of a"]


def test_a_toleration_that_ends_is_noticed_without_any_change() -> None:
    tolerate = [{"key": "gone", "operator": "Exists", "tolerationSeconds": 10}]
    hub = Hub(cluster("a", taints=[taint(age_s=4)]), cluster("b"), placement(tolerations=tolerate))
    hub.settle()
    assert hub.pages() == ["a,b"]
    assert hub.core.wake_at_s() == NOW_S + 6
    hub.now_s += 6
    hub.settle()
    assert hub.pages() == ["b"]
    assert hub.core.wake_at_s() == float("inf")


# ---- wrong edits


@pytest.mark.parametrize(
    "wrong",
    [
        BAD,
        {"predicates": [where(cel=["managedCluster.metadata.name + 1 == 2"])]},
        {"predicates": [where(label={"matchLabels": {"-": "x"}})]},
        {"prioritizerPolicy": exactly(("Steady", 1_000_000))},
        {"prioritizerPolicy": exactly(("Unheard", 1))},
        {"tolerations": [{"value": "x"}]},
        {"decisionStrategy": {"groupStrategy": {"clustersPerDecisionGroup": "x%"}}},
        {"numberOfClusters": -3},
    ],
)
def test_a_wrong_edit_is_answered_by_the_request_before_it(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"prioritizerPolicy": BY_DEMO, "numberOfClusters": 2}
    hub = Hub(
        *named("a", "b", "c"), *(score(name, 50) for name in "ab"), placement(**good),
        score("c", 10),
    )  # fmt: skip
    hub.settle()
    assert hub.pages() == ["a,b"]
    hub.edit(placement(generation=2, **good | wrong))
    assert hub.settle() == ["status p"]
    assert hub.pages() == ["a,b"]
    status = hub.placements[KEY].status
    assert (status.number_of_selected_clusters, len(status.decision_groups or ())) == (2, 1)
    assert hub.condition("PlacementMisconfigured") == ("True", "Misconfigured")
    assert hub.condition("PlacementSatisfied") == ("True", "AllDecisionsScheduled")
    [told] = hub.told("Misconfigured")
    assert told.endswith("; until that is mended, the request of generation 1 is followed")
    assert hub.core.misconfigured == 1

    # Tainted, better scored, deleted: as before. Nobody is told twice what is wrong.
    hub.set(cluster("a", taints=[taint()]))
    hub.settle()
    assert hub.pages() == ["b,c"]
    hub.set(cluster("a"))
    hub.set(score("a", 30))
    hub.settle()
    assert hub.pages() == ["a,b"]
    hub.drop(cluster("a"))
    hub.settle()
    assert hub.pages() == ["b,c"]
    assert hub.settle() == []
    assert len(hub.told("Misconfigured")) == 1

    # A matter of rights.
    hub.drop(binding())
    hub.settle()
    assert hub.pages() == [""]
    assert hub.condition("PlacementSatisfied") == ("False", "NoManagedClusterSetBindings")
    hub.set(binding())
    hub.settle()
    assert hub.pages() == ["b,c"]

    # It is mended.
    hub.edit(placement(generation=3, **good | {"numberOfClusters": 1}))
    hub.settle()
    assert hub.pages() == ["b"]
    assert hub.condition("PlacementMisconfigured") == ("False", "Succeedconfigured")


@pytest.mark.parametrize("size", [1, 90])
def test_who_takes_over_after_a_wrong_edit_follows_the_request_before_it_too(size: int) -> None:
    labels = {"zone": {"matchExpressions": [{"key": "z", "operator": "In", "values": []}]}}
    wanted = {"key": "zone", "operator": "In", "values": [f"zone-{n:03}" for n in range(size * 9)]}
    labels["zone"]["matchExpressions"] = [wanted]
    good = placement(predicates=[where(label=labels["zone"])], generation=7)
    found = [cluster(name, labels={"zone": f"zone-{n:03}"}) for n, name in enumerate("ab")]
    hub = Hub(*found, cluster("c"), good)
    hub.settle()
    assert hub.pages() == ["a,b"]
    hub.edit(placement(generation=8, **BAD))
    hub.settle()
    [text] = {page.metadata.annotations[REQUEST] for page in hub.decisions.values()}
    assert len(text) < 4096

    late = Hub(*found, cluster("c"))
    for page_there in hub.decisions.values():
        late.set(page_there)
    late.set(hub.placements[KEY])
    late.settle()
    assert late.pages() == ["a,b"]
    late.set(cluster("a", labels={"zone": "elsewhere"}))
    late.settle()
    assert late.pages() == ["b"]
    assert late.told("Misconfigured")[0].endswith("the request of generation 7 is followed")


@pytest.mark.parametrize(
    "text", ["", "{", "z:@", "z:AAAA", '{"generation":1,"spec":{"sortBy":"x"}}']
)
def test_without_a_request_to_follow_only_who_is_gone_or_not_bound_any_more_goes(text: str) -> None:
    hub = Hub(*named("a", "b", "c"), placement())
    hub.settle()
    [there] = hub.decisions.values()
    notes = {**there.metadata.annotations, REQUEST: text}
    there = msgspec.structs.replace(
        there, metadata=msgspec.structs.replace(there.metadata, annotations=notes)
    )
    hub.edit(placement(generation=2, **BAD))
    late = Hub(*named("a", "b", "c", "d"), there, hub.placements[KEY])
    assert late.settle() == ["status p"]
    assert late.pages() == ["a,b,c"]
    assert late.told("Misconfigured")[0].endswith("; the decisions made before stay")
    late.set(cluster("a", taints=[taint()]))
    assert late.settle() == []
    late.drop(cluster("b"))
    assert late.settle() == ["write p-decision-1", "status p"]
    assert late.pages() == ["a,c"]
    assert late.condition("PlacementSatisfied") == ("False", "NotAllDecisionsScheduled")
    [group] = late.placements[KEY].status.decision_groups or ()
    assert group.cluster_count == 2
    late.drop(binding())
    late.settle()
    assert late.pages() == [""]
    assert late.placements[KEY].status.number_of_selected_clusters == 0


def test_a_former_placement_of_that_name_leaves_no_request_to_follow() -> None:
    hub = Hub(*named("a"), placement())
    hub.settle()
    late = Hub(*named("a"), *hub.decisions.values(), placement(uid="another", **BAD))
    late.settle()
    assert late.told("Misconfigured")[0].endswith("; the decisions made before stay")


def test_wrong_from_the_beginning_means_an_empty_page() -> None:
    hub = Hub(*named("a"), placement(**BAD))
    assert hub.settle() == ["create p-decision-1", "status p"]
    assert hub.pages() == [""]
    assert hub.condition("PlacementSatisfied") == ("False", "NotAllDecisionsScheduled")
    [group] = hub.placements[KEY].status.decision_groups or ()
    assert (group.decisions, group.cluster_count) == (("p-decision-1",), 0)
    hub.set(cluster("b"))
    assert hub.settle() == []
    hub.edit(placement(generation=2))
    hub.settle()
    assert hub.pages() == ["a,b"]


def test_a_set_that_becomes_unreadable_in_sense_keeps_the_decisions_too() -> None:
    hub = Hub(*named("a"), placement())
    hub.settle()
    hub.set(cluster_set("all", selectorType="Odd"))
    assert hub.settle() == ["status p"]
    assert hub.pages() == ["a"]
    hub.set(cluster_set("all"))
    assert hub.settle() == ["status p"]


# ---- back to Open Cluster Management


def test_a_placement_that_goes_back_to_ocm_keeps_its_pages_and_none_of_our_notes() -> None:
    hub = Hub(*named("a", "b"), placement())
    hub.settle()
    [there] = hub.decisions.values()
    assert {RANKING, REQUEST} <= there.metadata.annotations.keys()
    hub.edit(placement(ours=False))
    fails = ["", "conflict"]
    hub.refuse = lambda write: fails.pop()
    hub.step()
    assert hub.core.wake_at_s() == hub.now_s + 0.05
    hub.now_s += 0.05
    assert hub.settle() == ["note p-decision-1"]
    assert hub.pages() == ["a,b"]
    [there] = hub.decisions.values()
    assert there.metadata.annotations == {}
    assert hub.core.wake_at_s() == float("inf")
    # Ours again: the notes are back.
    hub.refuse = lambda write: ""
    hub.edit(placement())
    hub.settle()
    [there] = hub.decisions.values()
    assert {RANKING, REQUEST} <= there.metadata.annotations.keys()


def test_notes_on_pages_of_ocms_placements_go_also_if_nobody_was_there_when_it_went_back() -> None:
    hub = Hub(*named("a"), placement())
    hub.settle()
    [there] = hub.decisions.values()
    for things in ((there, placement(ours=False)), (placement(ours=False), there)):
        late = Hub(*named("a"), *things, ready=False)
        assert late.settle() == []
        late.core.complete = True
        assert late.settle() == ["note p-decision-1"]


def test_an_unbound_set_is_no_mistake_and_takes_its_clusters_away() -> None:
    hub = Hub(*named("a"), placement())
    hub.settle()
    hub.drop(binding())
    assert hub.settle() == ["write p-decision-1", "status p", "note p-decision-1"]
    assert hub.pages() == [""]
    assert hub.condition("PlacementSatisfied") == ("False", "NoManagedClusterSetBindings")


def test_a_name_that_no_label_can_carry_is_told_and_decides_nothing() -> None:
    name = "n" * 253
    hub = Hub(*named("a"), placement(name))
    assert hub.settle() == [f"status {name}"]
    assert hub.decisions == {}
    longest = "n" * 63
    hub = Hub(*named("a"), placement(longest))
    hub.settle()
    assert hub.pages(longest) == ["a"]


# ---- pages


def many(count: int) -> list[CandidateCluster]:
    return [cluster(f"c{n:04}") for n in range(count)]


def test_a_cluster_that_changes_its_page_is_on_two_for_a_moment_and_never_on_none() -> None:
    hub = Hub(*many(250), placement())
    assert hub.settle() == [*(f"create p-decision-{n}" for n in (1, 2, 3)), "status p"]

    def on_pages() -> list[set[str]]:
        return [set(one.split(",")) - {""} for one in hub.pages()]

    seen: list[set[str]] = []

    def look(write: Write) -> str:
        seen.append(set().union(*on_pages()))
        return ""

    hub.refuse = look
    before = set().union(*on_pages())
    hub.set(cluster("a"))  # all others move on by one
    writes = [*(f"write p-decision-{n}" for n in (3, 2, 1)), "status p", "note p-decision-1"]
    assert hub.settle() == writes
    assert all(before <= one for one in seen)
    seen.clear()
    hub.drop(cluster("a"))  # and back
    writes = [*(f"write p-decision-{n}" for n in (1, 2, 3)), "status p", "note p-decision-1"]
    assert hub.settle() == writes
    assert all(before <= one for one in seen)


def test_pages_that_are_too_many_are_deleted_last() -> None:
    hub = Hub(*many(201), placement())
    hub.settle()
    hub.edit(placement(numberOfClusters=5))
    writes = hub.settle()
    assert writes == [
        "write p-decision-1",
        "delete p-decision-2",
        "delete p-decision-3",
        "status p",
        "note p-decision-1",
    ]


def test_what_others_did_to_a_page_is_put_right() -> None:
    hub = Hub(*named("a", "b"), placement())
    hub.settle()
    place = (NAMESPACE, "p-decision-1")
    right = hub.decisions[place]
    hub.set(page("p", 1, ["x"]))  # other clusters, no owner, no group
    hub.settle()
    assert hub.pages() == ["a,b"]
    mended = hub.decisions[place].metadata
    assert (mended.labels, mended.owner_references) == (
        right.metadata.labels,
        right.metadata.owner_references,
    )
    hub.drop(hub.decisions[place])
    assert hub.settle() == ["create p-decision-1"]
    hub.set(page("p", 7, ["y"]))  # one too many
    # The first page: new scores.
    assert hub.settle() == ["write p-decision-1", "delete p-decision-7", "note p-decision-1"]
    assert hub.pages() == ["a,b"]


def test_a_thousand_clusters_are_decided_in_bounded_time() -> None:
    expression = "managedCluster.metadata.name.matches('^c0[0-9]*$') && !has(managedCluster.spec.x)"
    hub = Hub(*many(1000), placement(predicates=[where(cel=[expression])]))
    began_s = time.thread_time()
    work = hub.look(KEY)
    assert time.thread_time() - began_s < 4  # 0.2 is usual, most of it in the expression
    hub.carry_out(work)
    assert [len(one.split(",")) for one in hub.pages()] == [100] * 10


# ---- what fails


def test_a_write_that_fails_is_tried_again_later_and_later_and_said_aloud() -> None:
    hub = Hub(*named("a"), placement())
    hub.refuse = lambda write: "conflict"
    pauses: list[float] = []
    for _ in range(12):
        hub.step()
        pauses.append(hub.core.wake_at_s() - hub.now_s)
        hub.now_s = hub.core.wake_at_s()
    assert pauses == [pytest.approx(min(0.05 * 2**n, 15), abs=1e-5) for n in range(12)]
    assert hub.told("DecisionsNotWritten") == ["decisions cannot be written: conflict"]
    hub.refuse = lambda write: ""
    hub.settle()
    assert hub.pages() == ["a"]


@pytest.mark.parametrize("kind", [PutPage, DropPage, PutStatus])
def test_whatever_fails_in_the_middle_the_next_look_goes_on_from_there(kind: type) -> None:
    hub = Hub(*many(201), placement())
    hub.settle()
    hub.edit(placement(numberOfClusters=50))
    hub.refuse = lambda write: "away" if isinstance(write, kind) else ""
    hub.step()
    hub.refuse = lambda write: ""
    hub.now_s += 1
    hub.settle()
    assert [len(one.split(",")) for one in hub.pages()] == [50]
    assert hub.placements[KEY].status.number_of_selected_clusters == 50


def test_a_status_that_a_person_wrote_meanwhile_is_a_conflict_and_not_lost() -> None:
    hub = Hub(*named("a"), placement())
    work = hub.look(KEY)
    hub.edit(placement(generation=2, numberOfClusters=5))
    assert hub.carry_out(work) == "conflict"
    hub.now_s += 1
    hub.settle()
    assert hub.condition("PlacementSatisfied") == ("False", "NotAllDecisionsScheduled")


def test_a_placement_that_was_made_anew_owns_the_pages_that_it_finds() -> None:
    hub = Hub(*named("a", "b"), placement(numberOfClusters=1))
    hub.settle()
    hub.drop(hub.placements[KEY])
    hub.set(placement(uid="second", numberOfClusters=1))
    hub.settle()
    [owner] = hub.decisions[NAMESPACE, "p-decision-1"].metadata.owner_references
    assert owner.uid == "second"


def test_other_peoples_conditions_stay_and_times_move_only_with_a_status() -> None:
    foreign = {
        "type": "Noticed",
        "status": "True",
        "reason": "R",
        "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    hub = Hub(*named("a"), placement(status={"conditions": [foreign]}))
    hub.settle()
    assert hub.condition("Noticed") == ("True", "R")
    first = hub.placements[KEY].status.conditions
    hub.now_s += 100
    hub.edit(placement(generation=2, numberOfClusters=2))
    hub.settle()
    conditions = {one.type: one for one in hub.placements[KEY].status.conditions or ()}
    before = {one.type: one for one in first or ()}
    assert conditions["Noticed"] == before["Noticed"]
    wrong, was = conditions["PlacementMisconfigured"], before["PlacementMisconfigured"]
    assert (wrong.last_transition_time, wrong.observed_generation) == (was.last_transition_time, 2)
    assert (
        conditions["PlacementSatisfied"].last_transition_time
        != before["PlacementSatisfied"].last_transition_time
    )


# ---- several Placements


def test_two_that_balance_do_not_flee_to_the_same_cluster_and_back() -> None:
    only_balance = exactly(("Balance", 1))
    hub = Hub(
        *named("a", "b"),
        placement("p", numberOfClusters=1, prioritizerPolicy=only_balance),
        placement("q", numberOfClusters=1, prioritizerPolicy=only_balance),
    )
    hub.settle()
    assert (hub.pages("p"), hub.pages("q")) == (["a"], ["b"])
    hub.set(cluster("c"))
    hub.settle()
    assert hub.pages("p") != hub.pages("q")


def test_decisions_of_ocms_own_placements_count_for_the_balance() -> None:
    theirs = page("theirs", 1, ["a"], namespace="elsewhere")
    wanted = placement(numberOfClusters=1, prioritizerPolicy=exactly(("Balance", 1)))
    hub = Hub(*named("a", "b"), theirs, wanted)
    hub.settle()
    assert hub.pages() == ["b"]
    hub.drop(theirs)
    hub.set(page("theirs", 1, ["b"], namespace="elsewhere"))
    hub.set(cluster("c"))
    hub.settle()
    assert hub.pages() == ["a"]


def test_with_a_margin_the_chosen_stay_until_somebody_is_clearly_better() -> None:
    def story(annotations: dict[str, str]) -> list[str]:
        wanted = placement(numberOfClusters=1, prioritizerPolicy=BY_DEMO, annotations=annotations)
        hub = Hub(*named("a", "b"), score("a", 50), score("b", 40), wanted)
        seen = []
        for value in (40, 55, 61, 60, 40):
            hub.set(score("b", value))
            hub.settle()
            seen += hub.pages()
        return seen

    assert joined(story({})) == "a,b,b,b,a"
    assert joined(story({HYSTERESIS: "10"})) == "a,a,b,b,b"  # 10 behind is not more than 10


def test_who_was_chosen_just_now_stands_where_a_new_life_would_put_it() -> None:
    policy = exactly(("Steady", 1), ("AddOn/demo/demo", 2))
    hub = Hub(cluster("a"), cluster("b"), placement(numberOfClusters=1, prioritizerPolicy=policy))
    hub.settle()
    hub.set(score("a", -1))
    by_score: dict[str, Any] = {
        "numberOfClusters": 2,
        "sortBy": "Score",
        "prioritizerPolicy": policy,
    }
    hub.edit(placement(generation=2, **by_score))
    hub.settle()
    assert hub.pages() == ["a,b"]  # a was chosen before, which counts more than its score
    hub.now_s += 100  # now both were
    hub.settle()
    assert hub.pages() == ["b,a"]


# ---- laws


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("score"), st.integers(0, 5), st.integers(-100, 100)),
        st.tuples(st.just("cluster"), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(st.just("number"), st.integers(0, 6), st.integers(0, 1)),
        st.tuples(st.just("wrong"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("fail"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("time"), st.integers(1, 90), st.just(0)),
    ),
    max_size=25,
)


@settings(UNHURRIED, max_examples=60)
@given(STEPS)
def test_whatever_happens_it_comes_to_rest_with_right_pages_and_a_new_life_agrees(
    steps: list[tuple[str, int, int]],
) -> None:
    policy = exactly(("Steady", 1), ("AddOn/demo/demo", 2))
    hub = Hub(*(cluster(f"c{n}") for n in range(4)), placement(prioritizerPolicy=policy))
    hub.settle()
    good: dict[str, Any] = {}
    generation = 1
    for kind, one, two in steps:
        generation += 1
        match kind:
            case "score":
                hub.set(score(f"c{one}", two))
            case "cluster" if two == 0:
                hub.drop(cluster(f"c{one}"))
            case "cluster":
                hub.set(cluster(f"c{one}", taints=[taint()] if two == 2 else []))
            case "number":
                good = {"numberOfClusters": one, "sortBy": "Score" if two else "ClusterName"}
                hub.edit(placement(generation=generation, prioritizerPolicy=policy, **good))
            case "wrong":
                told = BAD if one else good
                hub.edit(placement(generation=generation, prioritizerPolicy=policy, **told))
            case "fail":
                countdown = iter([""] * one + ["away"] + [""] * 1000)
                hub.refuse = lambda write, left=countdown: next(left)  # type: ignore[misc]
            case "time":
                hub.now_s += one
        hub.settle()
    hub.refuse = lambda write: ""
    hub.now_s += 100
    hub.edit(placement(generation=generation + 1, prioritizerPolicy=policy, **good))
    hub.settle()
    hub.now_s += 100  # an order that follows from what was chosen comes with the next scores
    hub.settle()
    outcome = hub.core.outcome(KEY)
    assert outcome is not None
    on_pages = [name for one in hub.pages() for name in one.split(",") if name]
    assert sorted(on_pages) == sorted(one.cluster for one in outcome.selected)
    assert hub.placements[KEY].status.number_of_selected_clusters == len(on_pages)

    # Nothing moves without a reason, and another evaluator that begins here finds nothing to move.
    before = dict(hub.decisions)
    hub.now_s += 100
    hub.set(cluster("stranger", in_set="other"))
    hub.settle()
    assert [one.clusters for one in hub.decisions.values()] == [
        one.clusters for one in before.values()
    ]
    second = Hub(
        *hub.core._clusters.values(),
        *hub.core._scores.values(),
        *hub.decisions.values(),
        *hub.placements.values(),
    )
    second.now_s = hub.now_s
    second.settle()
    assert second.pages() == hub.pages()


@UNHURRIED
@given(
    values=st.lists(st.integers(-100, 100), min_size=1, max_size=12),
    number=st.integers(0, 12),
    decided=st.sets(st.integers(0, 11)),
)
def test_with_steady_alone_who_is_decided_stays_and_repeating_changes_nothing(
    values: list[int], number: int, decided: set[int]
) -> None:
    clusters = [cluster(f"c{n:02}") for n in range(len(values))]
    held = [f"c{n:02}" for n in sorted(decided) if n < len(values)]
    policy = exactly(("Steady", 10), ("AddOn/demo/demo", 1))
    wanted = placement(numberOfClusters=number, prioritizerPolicy=policy)
    scores = [score(f"c{n:02}", value) for n, value in enumerate(values)]
    hub = Hub(*clusters, *scores, page("p", 1, held), wanted)
    hub.settle()
    now = [name for one in hub.pages() for name in one.split(",") if name]
    kept = [name for name in held if name in now]
    assert len(kept) == min(number, len(held))
    hub.now_s += 100
    hub.edit(msgspec.structs.replace(hub.placements[KEY]))
    hub.settle()
    assert [name for one in hub.pages() for name in one.split(",") if name] == now


def test_a_placement_that_makes_it_raise_is_set_aside_while_others_are_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def odd(snapshot: Snapshot, request: Request) -> ScheduleResult:
        if request.number == 3:
            raise RuntimeError("what nobody thought of")
        return schedule(snapshot, request)

    monkeypatch.setattr("berthmaster.hub.placement.core.evaluator.schedule", odd)
    hub = Hub(*named("a"), placement("odd", numberOfClusters=3), placement("p"))
    assert hub.settle() == ["create p-decision-1", "status p"]
    (oddity,) = hub.core.aside.take_unreported()
    assert (oddity.metadata.name, oddity.event.reason) == ("odd", "CannotBeHandled")
    # It is tried again by itself after a growing pause, and is well when it is put right.
    pauses_s = []
    for _ in range(3):
        pauses_s.append(hub.core.wake_at_s() - hub.now_s)
        hub.now_s = hub.core.wake_at_s()
        assert hub.settle() == []
    assert pauses_s == pytest.approx([0.05, 0.1, 0.2], abs=1e-6)
    assert hub.core.aside.take_unreported() == [], "it is told once"
    hub.edit(placement("odd", numberOfClusters=2))
    hub.now_s = hub.core.wake_at_s()
    assert hub.settle() == ["create odd-decision-1", "status odd"]
    assert len(hub.core.aside) == 0
