"""What a binding asks for, and which members will do: everything is read, or told."""

from typing import Any

import pytest

from berthmaster.hub.karmada.core.candidates import candidates, several
from berthmaster.hub.karmada.core.objects import KarmadaCluster, Policy
from berthmaster.hub.karmada.core.requests import MAX_CLUSTERS, Read, read_request
from berthmaster.lib.kube.labels import identity
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import Toleration
from tests.unit.hub.karmada.world import binding, member, policy, read

MEMBERS = (
    member("m1", provider="aws", region="eu", zones=["a", "b"]),
    member("m2", provider="gcp", region="eu", zone="a"),
    member("m3", region="us", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]),
)


def asked(
    members: tuple[KarmadaCluster, ...] = MEMBERS,
    told: Policy | None = None,
    queues: dict[str, QueueSetting] | None = None,
    tenants: dict[str, str] | None = None,
    **spec: Any,
) -> Read:
    labels = told.metadata.labels if told is not None else {}
    return read_request(read(binding(**spec)), labels, members, queues or {}, tenants or {})


@pytest.mark.parametrize(
    ("affinity", "found"),
    [
        ({}, ("m1", "m2")),
        ({"clusterNames": ["m2", "m9"]}, ("m2",)),
        ({"exclude": ["m2"]}, ("m1",)),
        ({"clusterNames": ["m1", "m2"], "exclude": ["m1"]}, ("m2",)),
        ({"fieldSelector": [("provider", "In", ["aws"])]}, ("m1",)),
        ({"fieldSelector": [("provider", "NotIn", ["aws"])]}, ("m2",)),
        ({"fieldSelector": [("region", "In", ["us"])]}, ()),
        ({"fieldSelector": [("zone", "In", ["a"])]}, ("m2",)),
        ({"fieldSelector": [("zone", "In", ["a", "b", "c"])]}, ("m1", "m2")),
        ({"fieldSelector": [("zone", "Exists", [])]}, ("m1", "m2")),
        ({"fieldSelector": [("provider", "DoesNotExist", [])]}, ()),
        ({"fieldSelector": [("provider", "Like", ["a"])]}, ()),
    ],
)
def test_members_are_those_that_the_affinity_means(
    affinity: dict[str, Any], found: tuple[str, ...]
) -> None:
    if (fields := affinity.get("fieldSelector")) is not None:
        told = [{"key": k, "operator": o, "values": v} for k, o, v in fields]
        affinity = {"fieldSelector": {"matchExpressions": told}}
    placement = read(binding(placement={"clusterAffinity": affinity})).spec.placement
    assert candidates(placement, MEMBERS) == found


def test_labels_groups_and_tolerations_count_too() -> None:
    def of(**placement: Any) -> tuple[str, ...]:
        told = read(binding(placement=placement)).spec.placement
        assert told is not None
        return candidates(told, (*MEMBERS, labelled))

    labelled = read_labelled("m4", tier="gold")
    gold = {"labelSelector": {"matchLabels": {"tier": "gold"}}}
    assert of(clusterAffinity=gold) == ("m4",)
    groups = [{"affinityName": "first", **gold}, {"affinityName": "second", "clusterNames": ["m1"]}]
    assert of(clusterAffinities=groups) == ("m1", "m4")
    tolerated = {"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"}
    assert of(clusterTolerations=[tolerated]) == ("m1", "m2", "m3", "m4")
    assert of(clusterTolerations=[tolerated | {"value": "y"}]) == ("m1", "m2", "m4")
    assert of(clusterTolerations=[{"operator": "Exists"}]) == ("m1", "m2", "m3", "m4")


def read_labelled(name: str, **labels: str) -> KarmadaCluster:
    made = member(name)
    return KarmadaCluster(metadata=type(made.metadata)(name=name, labels=labels), spec=made.spec)


def test_that_a_member_does_not_answer_is_no_taint_to_us() -> None:
    taint = {"key": "cluster.karmada.io/not-ready", "effect": "NoSchedule"}
    placement = read(binding(placement={})).spec.placement
    assert candidates(placement, (member("m1", taints=[taint]),)) == ("m1",)
    assert several(placement) == ""


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicas": 0}, "replicas: 0: right are 1 to"),
        ({"replicas": 10**9}, "replicas: 1000000000: right are 1 to"),
        ({"replicaRequirements": None}, "replicaRequirements: none"),
        ({"replicaRequirements": {"resourceRequest": {}}}, "replicaRequirements: none"),
        (
            {"replicaRequirements": {"resourceRequest": {"cpu": "1", "nvidia.com/gpu": "-8"}}},
            "replicaRequirements: nvidia.com/gpu: ",
        ),
        (
            {"replicaRequirements": {"resourceRequest": {"memory": "much"}}},
            "replicaRequirements: memory: ",
        ),
        (
            {"resource": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}},
            "resource: apps/v1 Deployment: right is a Job of batch/v1",
        ),
        (
            {"placement": {"spreadConstraints": [{"spreadByField": "region", "minGroups": 3}]}},
            "spreadConstraints: minGroups 3 by region: a workload goes to one cluster here",
        ),
        (
            {"placement": {"clusterAffinity": {"clusterNames": "m1"}}},
            "placement: Expected `array | null`, got `str` - at `$.clusterAffinity.clusterNames`",
        ),
        (
            {"placement": {"clusterAffinity": {"clusterNames": ["m9"]}}},
            "no member cluster matches placement.clusterAffinity and its taints",
        ),
        (
            {
                "placement": {
                    "clusterAffinity": {
                        "labelSelector": {
                            "matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]
                        }
                    }
                }
            },
            "placement.clusterAffinity: ",
        ),
    ],
)
def test_unplaceable_binding_names_field(spec: dict[str, Any], words: str) -> None:
    found = asked(**spec)
    assert found.request is None
    assert words in found.fault


def test_queues_are_those_of_its_policy_and_must_be_direct_and_the_tenants() -> None:
    lab = policy(queue="lab")
    assert asked(told=policy(queue="No!")).fault.startswith("label berthmaster.io/queue of its")
    worker = {"lab": QueueSetting(queue="lab", via="worker")}
    assert "queue 'lab' is via worker: right is direct" in asked(told=lab, queues=worker).fault
    theirs = {"lab": QueueSetting(queue="lab", tenants=("acme",))}
    assert "tenant 'team' may not use queue 'lab'" in asked(told=lab, queues=theirs).fault
    whose = asked(told=lab, queues=theirs, tenants={"team": "acme"})
    assert whose.request is not None
    assert whose.request.queue == "lab"


def test_what_limits_nothing_is_told_and_the_job_goes() -> None:
    found = asked(told=policy(priority="high"))
    assert found.request is not None
    assert found.request.priority == 0
    assert found.problems == (
        "label berthmaster.io/priority of its policy: 'high' is no whole number",
    )
    many = tuple(member(f"m{n:03}") for n in range(MAX_CLUSTERS + 3))
    found = asked(many, placement={})
    assert found.request is not None
    assert len(found.request.clusters) == MAX_CLUSTERS
    assert found.problems == ("67 clusters match: the last 3 by name are left out",)
    odd = {"resourceRequest": {"nvidia.com/gpu.shared": "1", "cpu": "2"}}
    found = asked(replicaRequirements=odd)
    assert found.request is not None
    assert "pod set main: 1 nvidia.com/gpu.shared a pod: required" in found.problems[0]


def test_what_pods_need_of_nodes_is_taken_over() -> None:
    found = asked(
        replicas=3,
        schedulePriority={"priority": 5},
        replicaRequirements={
            "resourceRequest": {"nvidia.com/gpu": "2", "cpu": "500m", "memory": "1Gi"},
            "nodeClaim": {
                "nodeSelector": {"disk": "fast", "nvidia.com/gpu.product": "A100"},
                "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            },
        },
    )
    assert found.request is not None
    [pods] = found.request.pod_sets
    assert (pods.count, pods.gpus, pods.cpu_milli, pods.memory_mib) == (3, 2, 500, 1024)
    assert (pods.node_labels, found.request.priority) == ({"disk": "fast"}, 5)
    assert [model.lstrip("=") for model in pods.gpu_models] == ["A100"]
    assert pods.tolerations == (Toleration(key="gpu", operator="Exists", effect="NoSchedule"),)


def test_a_pod_that_its_labels_name_is_ours_whatever_it_is_called() -> None:
    """As a member's inventory reads it: nobody numbers the pods of a Job that is not indexed."""
    told = {"tenant": "team", "workload": "train-1", "attempt": "2", "pod-set": "main"}
    labels = {f"berthmaster.io/{name}": text for name, text in told.items()}
    found = identity(labels, {}, "train-x7k2p")
    assert found is not None
    assert (found.workload, found.attempt, found.pod) == ("train-1", 2, "main-x7k2p")
    assert identity({name: text for name, text in labels.items() if "set" not in name}, {}) is None
