"""Placements on a real hub: edited, scored anew, wrong, killed in the middle, cut off."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from berthmaster.lab.controlplane.api import Api, ApiError
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.placementing import CLUSTERS, GROUP, LEASE, Rig, rig

T4 = {
    "requiredClusterSelector": {
        "labelSelector": {"matchLabels": {"accelerator": "nvidia-tesla-t4"}}
    }
}
BY_GPU: dict[str, Any] = {
    "mode": "Exact",
    "configurations": [
        {
            "scoreCoordinate": {
                "type": "AddOn",
                "addOn": {"resourceName": "gpus", "scoreName": "gpu"},
            },
            "weight": 1,
        }
    ],
}


@pytest.fixture
def hub(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    with rig(planes, namespace, tmp_path) as made:
        yield made


def three(hub: Rig, *, scored: bool = False) -> None:
    hub.cluster("c1", scored=scored, accelerator="nvidia-tesla-t4")
    hub.cluster("c2", scored=scored, accelerator="nvidia-tesla-t4")
    hub.cluster("c3", scored=scored, accelerator="nvidia-a100")


def test_a_placement_is_decided_edited_and_follows_its_clusters(hub: Rig) -> None:
    three(hub)
    hub.profile("c2")
    hub.place(predicates=[T4], scoreRateLimit="1h")  # longer than this test on any machine
    hub.place("theirs", ours=False)
    hub.start()
    hub.until_decided("c1", "c2")
    hub.until(
        lambda: hub.condition("PlacementSatisfied") == ("True", "AllDecisionsScheduled", 1),
        "the status says so",
    )
    assert hub.condition("PlacementMisconfigured") == ("False", "Succeedconfigured", 1)
    status = hub.status()
    assert status["numberOfSelectedClusters"] == 2
    assert status["decisionGroups"] == [
        {
            "decisionGroupIndex": 0,
            "decisionGroupName": "",
            "decisions": ["p-decision-1"],
            "clusterCount": 2,
        }
    ]
    [page] = hub.pages()
    assert page["metadata"]["labels"] == {
        f"{GROUP}/placement": "p",
        f"{GROUP}/decision-group-name": "",
        f"{GROUP}/decision-group-index": "0",
    }
    assert page["status"]["decisions"][0]["reason"].startswith("score 100: Balance 1*100, Steady")
    ranking = json.loads(page["metadata"]["annotations"]["berthmaster.io/placement-ranking"])
    assert (ranking["of"], ranking["left_out"]) == (3, {"Predicate": 1})
    [owner] = page["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Placement", "p", True)

    # The same decision for readers of sig-multicluster's API: c1 has no ClusterProfile.
    hub.until(lambda: hub.referred() == ["c2"], "the slice refers to the profile")

    # An edit; a cluster that comes, one that changes, one that goes.
    hub.edit(predicates=None)
    hub.until_decided("c1", "c2", "c3")
    hub.edit(predicates=[T4])
    hub.until_decided("c1", "c2")
    hub.cluster("c0", accelerator="nvidia-tesla-t4")
    hub.until_decided("c0", "c1", "c2")
    path = f"{CLUSTERS}/{hub.named('c1')}"
    hub.hub.api.merge(path, {"metadata": {"labels": {"accelerator": "none"}}})
    hub.until_decided("c0", "c2")
    hub.hub.api.delete(f"{CLUSTERS}/{hub.named('c2')}")
    hub.until_decided("c0")
    hub.until(lambda: hub.referred() == [], "the slice follows")
    hub.edit(numberOfClusters=2)
    hub.until(
        lambda: hub.condition("PlacementSatisfied")[1] == "NotAllDecisionsScheduled", "one is short"
    )

    # What is OCM's was never touched, and where nothing changes nothing is written.
    assert hub.pages("theirs") == []
    assert hub.status("theirs") == {}

    def is_at_rest() -> bool:
        mark = hub.hub.audit.mark()  # the annotations are written after the status
        time.sleep(2)
        return hub.writes(mark) == 0

    hub.until(is_at_rest, "nothing is written any more")


def test_decisions_follow_scores_and_a_score_that_runs_out_is_zero(hub: Rig) -> None:
    three(hub, scored=True)
    for short, value in (("c1", 10), ("c2", 50), ("c3", -50)):
        hub.score(short, value)
    hub.place(numberOfClusters=1, prioritizerPolicy=BY_GPU)
    hub.start()
    hub.until_decided("c2")
    hub.score("c1", 80)
    hub.until_decided("c1")
    # It holds for some seconds more, and then nobody needs to write anything.
    until = datetime.now(UTC) + timedelta(seconds=4)
    hub.score("c1", 90, until.strftime("%Y-%m-%dT%H:%M:%SZ"))
    hub.until_decided("c2")
    assert datetime.now(UTC) >= until - timedelta(seconds=1)
    hub.until(
        lambda: [one for one in events(hub) if "expired" in one["message"]],
        "people are told",
    )


def events(hub: Rig) -> list[dict[str, Any]]:
    return hub.hub.api.items(f"/api/v1/namespaces/{hub.namespace}/events")


def test_a_wrong_edit_is_answered_by_the_request_before_it_until_it_is_right(hub: Rig) -> None:
    three(hub)
    hub.place(predicates=[T4])
    first = hub.start()
    hub.until_decided("c1", "c2")
    before = hub.pages()
    for wrong in (
        {"celSelector": {"celExpressions": ["managedCluster.metadata.labels["]}},
        {"celSelector": {"celExpressions": ["managedCluster.metadata.name + 1 == 2"]}},
        {"labelSelector": {"matchExpressions": [{"key": "-", "operator": "Exists"}]}},
    ):
        generation = hub.edit(predicates=[{"requiredClusterSelector": wrong}])
        condition = ("True", "Misconfigured", generation)
        hub.until(
            lambda wanted=condition: hub.condition("PlacementMisconfigured") == wanted,  # type: ignore[misc]
            f"{wrong} is called wrong",
        )
        assert hub.pages() == before
        assert hub.status()["numberOfSelectedClusters"] == 2
        assert hub.condition("PlacementSatisfied")[0] == "True"
    # What happens to clusters and rights counts, also for an evaluator that starts after the edit.
    hub.taint("c1", {"key": "gone", "effect": "NoSelect"})
    hub.until_decided("c2")
    hub.kill(first)
    hub.start()
    hub.taint("c1")
    hub.until_decided("c1", "c2")
    hub.unbind()
    hub.until_decided()
    assert hub.condition("PlacementMisconfigured")[0] == "True"
    hub.bind()
    hub.until_decided("c1", "c2")
    cel = "managedCluster.metadata.labels['accelerator'].endsWith('a100')"
    hub.edit(predicates=[{"requiredClusterSelector": {"celSelector": {"celExpressions": [cel]}}}])
    hub.until_decided("c3")
    hub.until(lambda: hub.condition("PlacementMisconfigured")[0] == "False", "it is right again")
    # Back to Open Cluster Management: the decisions stay, and nothing of ours beside them.
    hub.give_back()
    hub.until(lambda: not hub.pages()[0]["metadata"].get("annotations"), "our notes are gone")
    assert hub.decided() == ["c3"]


FIRST = "managedCluster.status.conditions[0]"


def asking(cel: str) -> dict[str, Any]:
    return {"requiredClusterSelector": {"celSelector": {"celExpressions": [cel]}}}


def test_expressions_see_what_an_api_server_leaves_out(hub: Rig) -> None:
    three(hub)
    path = f"{CLUSTERS}/{hub.named('c1')}"
    hub.hub.api.merge(path, {"spec": {"hubAcceptsClient": False}})
    told = {"type": "Told", "status": "True", "reason": "R", "message": ""}
    when = {"lastTransitionTime": "2026-01-02T03:04:05Z"}
    claims = [{"name": "gpus", "value": "8"}]
    status = {"conditions": [told | when], "clusterClaims": claims, "capacity": {"cpu": "8000m"}}
    hub.hub.api.merge(f"{path}/status", {"status": status})
    hub.place(predicates=[asking("!managedCluster.spec.hubAcceptsClient")])
    hub.start()
    hub.until_decided("c1")
    for cel, chosen in (
        ("managedCluster.spec.hubAcceptsClient", ("c2", "c3")),
        ("managedCluster.status.capacity.cpu == '8'", ("c1",)),
        ("has(managedCluster.status.version)", ("c1", "c2", "c3")),
        ("managedCluster.status.conditions.exists(c, c.message == '')", ("c1",)),
        (f"timestamp({FIRST}.lastTransitionTime).getFullYear() == 2026", ("c1",)),
        ("type(managedCluster.spec.hubAcceptsClient) == bool", ("c1", "c2", "c3")),
        ("managedCluster.status.clusterClaims.exists(c, int(c.value) == 8)", ("c1",)),
    ):
        hub.edit(predicates=[asking(cel)])
        hub.until_decided(*chosen)
    # What OCM's checker refuses is refused; what was decided stays.
    hub.edit(predicates=[asking("'1' in [1]")])
    hub.until(lambda: hub.condition("PlacementMisconfigured")[0] == "True", "it is told")
    hub.until_decided("c1")


def children(pid: int) -> list[int]:
    """Living processes that a process started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z" and int(parent) == pid:
                found.append(int(stat.parent.name))
    return found


def test_expressions_beyond_their_limits_cost_other_placements_nothing(hub: Rig) -> None:
    three(hub)
    grows = "[managedCluster.metadata.name]" + ".map(x, x+x+x+x+x+x+x+x+x+x)" * 9
    hub.place("bad", predicates=[asking(f"{grows}.exists(s, true)")])
    hub.place(predicates=[asking("managedCluster.metadata.labels.accelerator.endsWith('t4')")])
    process = hub.start()
    hub.until_decided("c1", "c2")
    hub.until(lambda: hub.condition("PlacementMisconfigured", "bad")[0] == "True", "it is told")

    [worker] = hub.until(lambda: children(process.pid), "a process evaluates expressions")
    os.kill(worker, signal.SIGKILL)
    hub.edit(predicates=[asking("managedCluster.metadata.labels.accelerator.endsWith('a100')")])
    hub.until_decided("c3")

    # One that hangs does not keep the service, and does not outlive it.
    [worker] = children(process.pid)
    os.kill(worker, signal.SIGSTOP)
    hub.edit(predicates=[asking("true")])
    time.sleep(1)  # the question is on its way
    began_s = time.monotonic()
    assert hub.stop(process) == 0
    assert time.monotonic() - began_s < 5
    assert not Path(f"/proc/{worker}").exists()


def test_a_killed_evaluator_is_replaced_and_neither_loses_nor_repeats_anything(hub: Rig) -> None:
    three(hub)
    hub.place(predicates=[T4])
    first = hub.start()
    hub.until_decided("c1", "c2")
    second = hub.start()
    hub.until(lambda: "starting" in hub.log(1).read_text(), "the second runs")

    # Killed as an edit comes: whoever is next carries it out.
    hub.edit(predicates=None)
    hub.kill(first)
    hub.until_decided("c1", "c2", "c3")
    lease = LEASE.format(hub.namespace)
    hub.until(
        lambda: str(second.pid) in hub.hub.api.get(lease)["spec"]["holderIdentity"],
        "the second acts",
    )

    # A third life writes what is new, and of the rest nothing again.
    hub.until(lambda: hub.condition("PlacementSatisfied")[2] == 2, "the status is written")
    before = [page["metadata"]["resourceVersion"] for page in hub.pages()]
    assert hub.stop(second) == 0
    mark = hub.hub.audit.mark()
    hub.start()
    hub.until(lambda: "lease gained" in hub.log(2).read_text(), "the third acts")
    hub.cluster("c4")
    hub.until_decided("c1", "c2", "c3", "c4")
    # Page, ranking and status for the new cluster; before it, page and ranking once more at most:
    # c3 had come with a Steady score of 0, and by now it has 100.
    assert hub.writes(mark) <= 5
    assert [page["metadata"]["resourceVersion"] for page in hub.pages()] != before


def test_while_the_api_server_is_away_all_stays_and_what_was_missed_is_made_up(hub: Rig) -> None:
    three(hub)
    hub.place(predicates=[T4])
    process = hub.start()
    hub.until_decided("c1", "c2")
    hub.hub.crash_api_server()
    time.sleep(3)
    hub.hub.start_api_server()
    assert hub.decided() == ["c1", "c2"]
    hub.edit(predicates=None)
    hub.until_decided("c1", "c2", "c3")
    assert process.poll() is None


def test_a_hundred_and_one_clusters_are_two_pages_and_a_page_too_many_is_deleted(hub: Rig) -> None:
    for number in range(101):
        hub.cluster(f"c{number:03}")
    hub.place()
    hub.start()
    wanted = [f"c{number:03}" for number in range(101)]
    hub.until_decided(*wanted)
    assert [len(page["status"]["decisions"]) for page in hub.pages()] == [100, 1]
    hub.cluster("a")  # which moves one from the first page to the second
    hub.until_decided("a", *wanted)
    hub.edit(numberOfClusters=1)
    hub.until_decided("a")
    assert [page["metadata"]["name"] for page in hub.pages()] == ["p-decision-1"]


def test_a_page_of_that_name_that_is_nobodys_is_taken_over(hub: Rig) -> None:
    three(hub)
    hub.hub.api.create(
        f"/apis/{GROUP}/v1beta1/namespaces/{hub.namespace}/placementdecisions",
        {
            "apiVersion": f"{GROUP}/v1beta1",
            "kind": "PlacementDecision",
            "metadata": {"name": "p-decision-1", "labels": {"kept": "yes"}},
        },
    )
    hub.place(predicates=[T4])
    hub.start()
    hub.until_decided("c1", "c2")
    [page] = hub.pages()
    assert page["metadata"]["labels"]["kept"] == "yes"
    assert page["metadata"]["ownerReferences"][0]["name"] == "p"


def test_its_rights_are_those_and_no_others(hub: Rig) -> None:
    hub.place()
    with closing(hub.as_evaluator()) as api:
        refuse_all_but_its_own(api, hub.namespace)


def refuse_all_but_its_own(api: Api, namespace: str) -> None:
    here = f"namespaces/{namespace}"
    placements, secrets = f"/apis/{GROUP}/v1beta1/{here}/placements", f"/api/v1/{here}/secrets"
    leases = f"/apis/coordination.k8s.io/v1/{here}/leases"
    assert [one["metadata"]["name"] for one in api.items(f"/apis/{GROUP}/v1beta1/placements")]
    for method, path in (
        ("GET", f"{placements}/p"),
        ("PATCH", f"{placements}/p"),
        ("DELETE", f"{placements}/p"),
        ("POST", placements),
        ("PATCH", f"{CLUSTERS}/x"),
        ("DELETE", f"{CLUSTERS}/x"),
        ("POST", CLUSTERS),
        ("GET", secrets),
        ("GET", f"{secrets}/x"),
        ("GET", f"/api/v1/{here}/pods"),
        ("GET", "/api/v1/nodes"),
        ("PATCH", f"{leases}/other"),
        ("GET", leases),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
        ("POST", f"/api/v1/{here}/serviceaccounts/berth-placement/token"),
        ("POST", f"/apis/{GROUP}/v1alpha1/{here}/addonplacementscores"),
    ):
        with pytest.raises(ApiError) as refused:
            api.call(method, path, {}, content_type="application/merge-patch+json")
        assert refused.value.status == 403, (method, path, refused.value)


def test_a_toleration_ends_by_itself(hub: Rig) -> None:
    three(hub)
    hub.place(tolerations=[{"key": "leaving", "operator": "Exists", "tolerationSeconds": 5}])
    hub.start()
    hub.until_decided("c1", "c2", "c3")
    added = datetime.now(UTC)
    stamp = added.strftime("%Y-%m-%dT%H:%M:%SZ")
    hub.taint("c2", {"key": "leaving", "effect": "NoSelect", "timeAdded": stamp})
    hub.until_decided("c1", "c3")
    assert datetime.now(UTC) - added >= timedelta(seconds=4)  # the stamp has whole seconds
    hub.taint("c2")
    hub.until_decided("c1", "c2", "c3")
