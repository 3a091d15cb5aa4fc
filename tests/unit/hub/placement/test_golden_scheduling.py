"""Who is chosen, with which scores and on which pages, as OCM's own scheduler answered.

The stories are ours, drawn from a seed: sets of up to seven clusters and one of 120, decisions of
other Placements, scores that ran out, taints, predicates, weights, groups by number and percentage.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.hub.placement.core.index import DecisionIndex
from berthmaster.hub.placement.core.objects import (
    AddOnPlacementScore,
    CandidateCluster,
    GroupStatus,
    Placement,
    PlacementDecision,
)
from berthmaster.hub.placement.core.pages import pages
from berthmaster.hub.placement.core.scheduling.request import read
from berthmaster.hub.placement.core.scheduling.scheduler import schedule
from tests.unit.hub.placement.objects import answered, snapshot

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "scheduling.json").read_text()
)
STORIES = {story["name"]: story for story in GOLDEN["stories"]}
ADDON = "AddOn/demo/gpu"


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_clusters_are_chosen_as_ocms_scheduler_does(story: dict[str, Any]) -> None:
    theirs = story["answer"]
    request = read(msgspec.convert(story["placement"], Placement))
    index = DecisionIndex()
    for decision in msgspec.convert(story["decisions"], list[PlacementDecision]):
        index.set(decision)
    found = answered(
        schedule,
        snapshot(
            msgspec.convert(story["clusters"], list[CandidateCluster]),
            scores=msgspec.convert(story["scores"], list[AddOnPlacementScore]),
            decided=index.decided(("team", "p")),
            elsewhere=index.elsewhere(("team", "p")),
        ),
        request,
    )
    assert {one.cluster: one.total for one in found.ranked} == (theirs["totals"] or {})
    parts = {
        name: {one.cluster: one.parts[at] for one in found.ranked}
        for at, (name, _) in enumerate(found.weights)
    }
    named = {
        one["name"] if one["name"] != "AddOn" else ADDON: one for one in theirs["weights"] or ()
    }
    assert dict(found.weights) == {name: one["weight"] for name, one in named.items()}
    # Of whom nothing is known OCM says nothing, and counts 0.
    assert parts == {
        name: {one.cluster: told["scores"].get(one.cluster, 0) for one in found.ranked}
        for name, told in named.items()
    }
    assert [one.cluster for one in found.selected] == theirs["selected"]
    assert found.unscheduled == theirs["unscheduled"]

    made, groups = pages(request, found)
    assert [(page.name, page.labels, sorted(page.clusters)) for page in made] == [
        (page["name"], page["labels"], sorted(page["clusters"])) for page in theirs["pages"]
    ]
    assert tuple(groups) == msgspec.convert(theirs["groups"], tuple[GroupStatus, ...])
