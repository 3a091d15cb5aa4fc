"""How pods of a gang name their group, and what the group is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.jobs.gangs import GROUP, Gangs, Group, document, read
from berthmaster.lib.messages.fleet import Share
from berthmaster.lib.messages.workload import PodSet
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.manifest import Style
from berthmaster.worker.executor.core.manifest import document as job_document
from tests.support.builders import node
from tests.unit.worker.executor.test_manifest import offers_of, order

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-1", "uid": "u", "controller": True}


def made(style: Style, *sets: PodSet, offers: Offers | None = None) -> Any:
    return job_document(order(*sets), None, offers or Offers(), style)


@pytest.mark.parametrize(
    ("gangs", "spec"),
    [
        (Gangs.KUBERNETES, {"schedulingPolicy": {"gang": {"minCount": 4}}}),
        (Gangs.WORKLOAD, {"podGroups": [{"name": "gang", "policy": {"gang": {"minCount": 4}}}]}),
        (Gangs.COSCHEDULING, {"minMember": 4}),
        (Gangs.VOLCANO, {"minMember": 4, "queue": "research"}),
    ],
)
def test_gang_pods_name_group_of_their_size(gangs: Gangs, spec: dict[str, Any]) -> None:
    style = Style(gangs=gangs, volcano_queue="research")
    job = made(style, PodSet(count=4, gpus=1))
    name, template = job["metadata"]["name"], job["spec"]["template"]
    group = read(job["metadata"]["annotations"][GROUP])
    assert group == Group(gangs, 4, "research" if gangs is Gangs.VOLCANO else "")
    found = document(group, name, {"a": "b"}, OWNER)
    assert found["spec"] == spec
    assert found["metadata"] == {"name": name, "labels": {"a": "b"}, "ownerReferences": [OWNER]}
    told = template["metadata"].get("annotations", {})
    says = {
        Gangs.KUBERNETES: template["spec"].get("schedulingGroup") == {"podGroupName": name},
        Gangs.WORKLOAD: template["spec"].get("workloadRef") == {"name": name, "podGroup": "gang"},
        Gangs.COSCHEDULING: template["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group")
        == name,
        Gangs.VOLCANO: told.get("scheduling.k8s.io/group-name") == name,
    }
    assert [way for way, named in says.items() if named] == [gangs]


def test_all_pod_sets_are_one_gang_and_a_single_pod_is_none() -> None:
    style = Style(gangs=Gangs.COSCHEDULING)
    job_set = made(style, PodSet(name="a", count=2), PodSet(name="b"))
    name = job_set["metadata"]["name"]
    assert job_set["metadata"]["annotations"][GROUP] == "coscheduling:3"
    for each in job_set["spec"]["replicatedJobs"]:
        labels = each["template"]["spec"]["template"]["metadata"]["labels"]
        assert labels["scheduling.x-k8s.io/pod-group"] == name
    assert GROUP not in made(style, PodSet(gpus=1))["metadata"]["annotations"]
    assert GROUP not in made(Style(), PodSet(count=4))["metadata"]["annotations"]


def test_where_volcano_starts_gangs_it_schedules_all_pods() -> None:
    style = Style(gangs=Gangs.VOLCANO)
    for pods in (PodSet(count=1), PodSet(count=3, gpus=1)):
        template = made(style, pods)["spec"]["template"]
        assert template["spec"]["schedulerName"] == "volcano"
    own = made(style._replace(scheduler="own"), PodSet(count=2))["spec"]["template"]
    assert own["spec"]["schedulerName"] == "own"


def test_an_elastic_gang_needs_its_least_and_its_pods_are_told_both() -> None:
    pods = PodSet(count=4, gpus=1, min_count=2, max_count=8)
    job = made(Style(gangs=Gangs.COSCHEDULING), pods)
    assert job["metadata"]["annotations"][GROUP] == "coscheduling:2"
    assert job["metadata"]["annotations"]["berthmaster.io/pod-bounds"] == "main:2-8"
    [container] = job["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    told = ("BERTH_COUNT", "BERTH_MIN_COUNT", "BERTH_MAX_COUNT", "PET_NNODES")
    assert [env[name] for name in told] == ["4", "2", "8", "2:8"]


def test_kai_is_told_how_many_pods_there_must_be() -> None:
    kai = Share(resource="gpu-fraction", milli=10, count=100, kind="kai")
    offers = offers_of(replace(node("c", "n1"), shares=(kai,)))
    parts = PodSet(name="parts", count=3, gpus=1, gpu_milli=500)
    style = Style(gangs=Gangs.KUBERNETES)
    told = made(style, parts, offers=offers)["metadata"]["annotations"]
    assert (told["kai.scheduler/batch-min-member"], GROUP in told) == ("3", False)
    # A cluster in which KAI schedules everything.
    everything = made(Style(scheduler="kai-scheduler"), PodSet(count=2, gpus=1))
    assert everything["metadata"]["annotations"]["kai.scheduler/batch-min-member"] == "2"
    off = made(Style(kai_gangs=False), parts, offers=offers)["metadata"]["annotations"]
    assert "kai.scheduler/batch-min-member" not in off
    # Two schedulers have no gang in common: nothing is promised that would keep pods waiting.
    mixed = made(style, parts, PodSet(name="rest", count=2), offers=offers)
    assert not {GROUP, "kai.scheduler/batch-min-member"} & mixed["metadata"]["annotations"].keys()
    assert "schedulingGroup" not in json.dumps(mixed)


@given(st.text(max_size=20))
def test_an_annotation_of_somebody_elses_names_no_group_by_mistake(text: str) -> None:
    group = read(text)
    assert group is None or group.text.split(":")[0] == text.split(":", maxsplit=1)[0]


@pytest.mark.parametrize(
    "text", ["", "kubernetes", "none:2", "kubernetes:x", "kubernetes:-1", "k:²"]
)
def test_what_is_no_group(text: str) -> None:
    assert read(text) is None
