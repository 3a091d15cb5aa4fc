"""The resources of others are served in every plane, and refuse what the real ones refuse."""

from collections.abc import Mapping
from typing import Any

import pytest

from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.planes import Planes

OCM = "cluster.open-cluster-management.io"
INVENTORY = "multicluster.x-k8s.io/v1alpha1"
JOBSET = "jobset.x-k8s.io/v1alpha2"
NOW = "2026-11-21T12:00:00Z"

Body = Mapping[str, Any]


def document(version: str, kind: str, namespace: str, name: str = "one", **rest: Any) -> Body:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def profile(namespace: str, **rest: Any) -> Body:
    return document(
        INVENTORY, "ClusterProfile", namespace, spec={"clusterManager": {"name": "ocm"}}, **rest
    )


def test_every_resource_is_served_in_every_plane(planes: Planes) -> None:
    wanted = {
        ("apis/multicluster.x-k8s.io/v1alpha1", "ClusterProfile"),
        (f"apis/{OCM}/v1", "ManagedCluster"),
        (f"apis/{OCM}/v1alpha1", "AddOnPlacementScore"),
        (f"apis/{OCM}/v1beta1", "Placement"),
        (f"apis/{OCM}/v1beta1", "PlacementDecision"),
        (f"apis/{OCM}/v1beta2", "ManagedClusterSet"),
        (f"apis/{OCM}/v1beta2", "ManagedClusterSetBinding"),
        (f"apis/{OCM}/v1alpha1", "ClusterClaim"),
        ("apis/authentication.open-cluster-management.io/v1beta1", "ManagedServiceAccount"),
        ("apis/rbac.open-cluster-management.io/v1alpha1", "ClusterPermission"),
        ("apis/addon.open-cluster-management.io/v1alpha1", "AddOnTemplate"),
        ("apis/addon.open-cluster-management.io/v1alpha1", "ClusterManagementAddOn"),
        ("apis/addon.open-cluster-management.io/v1alpha1", "ManagedClusterAddOn"),
        ("apis/addon.open-cluster-management.io/v1beta1", "AddOnTemplate"),
        ("apis/addon.open-cluster-management.io/v1beta1", "ClusterManagementAddOn"),
        ("apis/jobset.x-k8s.io/v1alpha2", "JobSet"),
        ("apis/kueue.x-k8s.io/v1beta2", "Workload"),
        ("apis/kueue.x-k8s.io/v1beta2", "MultiKueueConfig"),
    }
    for plane in planes:
        served = {
            (group, resource["kind"])
            for group in {group for group, _ in wanted}
            for resource in plane.api.get(f"/{group}")["resources"]
        }
        assert wanted - served == set(), plane.name


def test_a_clusterprofile_takes_what_a_manager_says_of_a_cluster(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    made = api.apply(profile(namespace))
    path = api.path_of(made)
    status = {
        "version": {"kubernetes": "v1.36.3"},
        "properties": [{"name": "gpu.berth/free", "value": "8", "lastObservedTime": NOW}],
        "conditions": [
            {
                "type": "ControlPlaneHealthy",
                "status": "True",
                "reason": "Answers",
                "message": "",
                "lastTransitionTime": NOW,
            }
        ],
        "accessProviders": [{"name": "ocm", "cluster": {"server": "https://one:6443"}}],
    }
    assert api.merge(f"{path}/status", {"status": status})["status"] == status
    # The status has a door of its own: through the object's it does not change.
    assert api.merge(path, {"status": {"version": {"kubernetes": "v0"}}})["status"] == status


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"properties": [{"name": "a", "value": "x" * 1025}]}, "status.properties[0].value"),
        ({"properties": [{"name": "", "value": "x"}]}, "status.properties[0].name"),
        ({"properties": [{"name": "a", "value": ""}]}, "status.properties[0].value"),
        ({"properties": [{"name": "a", "value": "x"}] * 2}, "status.properties[1]"),
        ({"conditions": [{"type": "Joined", "status": "Yes"}]}, "status.conditions[0].status"),
    ],
)
def test_a_clusterprofile_refuses_what_breaks_its_limits(
    planes: Planes, namespace: str, status: Body, field: str
) -> None:
    api = planes.hub.api
    path = api.path_of(api.apply(profile(namespace)))
    with pytest.raises(ApiError) as refused:
        api.merge(f"{path}/status", {"status": status})
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")
    assert field in refused.value.message


def test_whose_a_clusterprofile_is_cannot_change(planes: Planes, namespace: str) -> None:
    api = planes.hub.api
    path = api.path_of(api.apply(profile(namespace)))
    with pytest.raises(ApiError, match="ClusterManager is immutable"):
        api.merge(path, {"spec": {"clusterManager": {"name": "other"}}})


def test_a_score_lies_between_minus_and_plus_one_hundred(planes: Planes, namespace: str) -> None:
    api = planes.hub.api
    path = api.path_of(api.apply(document(f"{OCM}/v1alpha1", "AddOnPlacementScore", namespace)))

    def put(*scores: tuple[str, int]) -> Any:
        listed = [{"name": name, "value": value} for name, value in scores]
        return api.merge(f"{path}/status", {"status": {"scores": listed, "validUntil": NOW}})

    assert put(("gpu", 100), ("cpu", -100))["status"]["validUntil"] == NOW
    for scores in ([("gpu", 101)], [("gpu", -101)], [("gpu", 1), ("gpu", 2)]):
        with pytest.raises(ApiError) as refused:
            put(*scores)
        assert refused.value.status == 422


def test_a_managed_cluster_has_known_taints_and_defaults(planes: Planes, namespace: str) -> None:
    api = planes.hub.api

    def cluster(effect: str) -> Body:
        taint = {"key": "gpu.berth/drain", "effect": effect, "timeAdded": NOW}
        spec = {"hubAcceptsClient": True, "taints": [taint]}
        return document(f"{OCM}/v1", "ManagedCluster", "", name=namespace, spec=spec)

    made = api.apply(cluster("NoSelectIfNew"))
    assert made["spec"]["leaseDurationSeconds"] == 60
    try:
        with pytest.raises(ApiError, match="Unsupported value") as refused:
            api.apply(cluster("NoSchedule"))
        assert refused.value.status == 422
    finally:
        api.delete(api.path_of(made))


def test_a_placement_decision_names_at_most_a_hundred_clusters(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    path = api.path_of(api.apply(document(f"{OCM}/v1beta1", "PlacementDecision", namespace)))

    def put(count: int) -> int:
        decisions = [{"clusterName": f"c{n}", "reason": ""} for n in range(count)]
        answer = api.merge(f"{path}/status", {"status": {"decisions": decisions}})
        return len(answer["status"]["decisions"])

    assert put(100) == 100
    with pytest.raises(ApiError, match="must have at most 100 items"):
        put(101)


@pytest.mark.parametrize(
    ("per_group", "taken"), [(20, True), ("25%", True), ("0%", False), ("101%", False)]
)
def test_a_placement_divides_by_a_number_or_by_a_share(
    planes: Planes, namespace: str, per_group: int | str, taken: bool
) -> None:
    strategy = {"groupStrategy": {"clustersPerDecisionGroup": per_group}}
    placement = document(
        f"{OCM}/v1beta1", "Placement", namespace, spec={"decisionStrategy": strategy}
    )
    if taken:
        assert planes.hub.api.apply(placement)["spec"]["decisionStrategy"] == strategy
        return
    with pytest.raises(ApiError, match="clustersPerDecisionGroup") as refused:
        planes.hub.api.apply(placement)
    assert refused.value.status == 422


def test_a_managed_service_account_turns_its_token_unless_told_not_to(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    version, kind = "authentication.open-cluster-management.io/v1beta1", "ManagedServiceAccount"
    made = api.apply(document(version, kind, namespace, spec={"rotation": {}}))
    assert made["spec"] == {"rotation": {"enabled": True, "validity": "8640h0m0s"}}
    status = {
        "expirationTimestamp": NOW,
        "tokenSecretRef": {"name": "one", "lastRefreshTimestamp": NOW},
    }
    assert api.merge(f"{api.path_of(made)}/status", {"status": status})["status"] == status
    with pytest.raises(ApiError, match="rotation") as refused:
        api.apply(document(version, kind, namespace, name="two", spec={}))
    assert refused.value.status == 422


def test_a_cluster_permission_keeps_its_rules_and_whom_they_are_for(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    account = {
        "apiGroup": "authentication.open-cluster-management.io",
        "kind": "ManagedServiceAccount",
        "name": "multikueue",
    }
    rule = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]}
    spec = {
        "clusterRole": {"rules": [rule]},
        "clusterRoleBinding": {"subject": account},
        "roles": [{"namespace": "default", "rules": [rule]}],
        "roleBindings": [
            {"namespace": "default", "roleRef": {"kind": "Role"}, "subjects": [account]}
        ],
    }
    version = "rbac.open-cluster-management.io/v1alpha1"
    made = api.apply(document(version, "ClusterPermission", namespace, spec=spec))
    assert made["spec"] == spec


@pytest.mark.parametrize("value", ["", "x" * 1025])
def test_a_cluster_claim_says_something_within_its_limit(
    planes: Planes, namespace: str, value: str
) -> None:
    api = planes.workers[0].api

    def claim(value: str) -> Body:
        spec = {"value": value}
        return document(f"{OCM}/v1alpha1", "ClusterClaim", "", name=namespace, spec=spec)

    made = api.apply(claim("x" * 1024))
    try:
        with pytest.raises(ApiError, match=r"spec\.value") as refused:
            api.apply(claim(value))
        assert refused.value.status == 422
    finally:
        api.delete(api.path_of(made))


@pytest.mark.parametrize("weight", [-11, 11])
def test_a_placement_weighs_between_minus_and_plus_ten(
    planes: Planes, namespace: str, weight: int
) -> None:
    coordinate = {"type": "AddOn", "addOn": {"resourceName": "berth", "scoreName": "gpu"}}
    policy = {"configurations": [{"weight": weight, "scoreCoordinate": coordinate}]}
    placement = document(
        f"{OCM}/v1beta1", "Placement", namespace, spec={"prioritizerPolicy": policy}
    )
    with pytest.raises(ApiError, match="weight") as refused:
        planes.hub.api.apply(placement)
    assert refused.value.status == 422


def test_a_jobset_keeps_its_manager_and_its_names_apart(planes: Planes, namespace: str) -> None:
    api = planes.workers[0].api
    job = {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}}

    def jobset(manager: str, *names: str) -> Body:
        jobs = [{"name": name, "replicas": 2, "template": job} for name in names]
        spec = {"replicatedJobs": jobs, "managedBy": manager, "suspend": True}
        return document(JOBSET, "JobSet", namespace, spec=spec)

    made = api.apply(jobset("kueue.x-k8s.io/multikueue", "leader", "workers"))
    assert [each["template"] for each in made["spec"]["replicatedJobs"]] == [job, job]
    with pytest.raises(ApiError, match="field is immutable"):
        api.apply(jobset("jobset.sigs.k8s.io/jobset-controller", "leader", "workers"))
    with pytest.raises(ApiError, match=r"[Dd]uplicate"):
        api.apply(jobset("kueue.x-k8s.io/multikueue", "leader", "leader"))
