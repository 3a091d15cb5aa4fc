"""The control plane of this tier does what a real one does: it is one."""

import time
from pathlib import Path

from berthmaster.lab.controlplane.api import Api, ApiError
from berthmaster.lab.controlplane.compiling import KUBERNETES_VERSION
from berthmaster.lab.controlplane.nodes import (
    bring_back,
    cpu_node,
    gpu_node,
    make_nodes,
    mig_node,
    shared_node,
    take_down,
)
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from tests.controlplane.jobs import gpu_job, jobs_path, pods_path, wait_condition
from tests.support.patience import wait_until

MEMORY_LIMIT_BYTES = 4 * 1024**3


def status_of(api: Api, method: str, path: str, body: object = None) -> int:
    """The status of a call that may be refused."""
    try:
        api.call(method, path, body)
    except ApiError as error:
        return error.status
    return 200


def resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def phases(plane: Plane, namespace: str) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in plane.api.items(pods_path(namespace)))


def reasons(plane: Plane, namespace: str) -> set[str]:
    """What the scheduler says of pods that wait, each in short."""
    return {
        condition["message"].split(".")[0]
        for pod in plane.api.items(pods_path(namespace), fieldSelector="status.phase=Pending")
        for condition in pod["status"].get("conditions", ())
    }


def test_a_hub_and_three_workers_run_in_four_gib(planes: Planes) -> None:
    assert [(plane.name, plane.role) for plane in planes] == [
        ("hub", "hub"),
        ("worker-1", "worker"),
        ("worker-2", "worker"),
        ("worker-3", "worker"),
    ]
    for plane in planes:
        assert plane.api.get("/version")["gitVersion"] == f"v{KUBERNETES_VERSION}"
    parts = [planes.etcd.process, *(part for plane in planes for part in plane.parts.all())]
    assert len(parts) == 1 + 2 + 3 * 4
    assert sum(resident_bytes(part.pid) for part in parts) < MEMORY_LIMIT_BYTES


def test_planes_in_one_store_do_not_see_each_other(planes: Planes, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    marks = [plane.audit.mark() for plane in planes]
    planes.hub.api.create(path, {"metadata": {"name": "mine"}, "data": {"a": "1"}})
    assert planes.hub.api.get(f"{path}/mine")["data"] == {"a": "1"}
    assert [plane.api.find(f"{path}/mine") for plane in planes.workers] == [None] * 3
    touched = [
        each.audit.touched(namespace, since=mark) for each, mark in zip(planes, marks, strict=True)
    ]
    assert touched == [True, False, False, False]


def test_four_pods_of_eight_gpus_wait_for_room_and_run_to_the_end(
    planes: Planes, namespace: str
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("a"), gpu_node("b"), gpu_node("small", gpus=4), cpu_node("cpu")])
    worker.api.create(jobs_path(namespace), gpu_job("gang", pods=4, gpus=8, run_s="forever"))

    # Two fit; the scheduler says of the others why not.
    wait_until(lambda: phases(worker, namespace) == ["Pending"] * 2 + ["Running"] * 2, "two run")
    # Of a node that is new it says another thing, until the node controller has seen it ready.
    why = "0/4 nodes are available: 4 Insufficient nvidia"
    wait_until(lambda: reasons(worker, namespace) == {why}, "told why")

    # Room comes, and the other two go there.
    make_nodes(worker, [gpu_node("c"), gpu_node("d")])
    wait_until(lambda: phases(worker, namespace) == ["Running"] * 4, "all run")
    pods = worker.api.items(pods_path(namespace))
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["a", "b", "c", "d"]


def test_a_job_is_complete_when_its_pods_have_run(planes: Planes, namespace: str) -> None:
    worker = planes.workers[1]
    make_nodes(worker, [gpu_node("a"), gpu_node("b")])
    started_s = time.monotonic()
    worker.api.create(jobs_path(namespace), gpu_job("short", pods=2, gpus=8, run_s=1.5))
    wait_condition(worker, jobs_path(namespace, "short"), "Complete")
    assert time.monotonic() - started_s >= 1.5
    assert worker.api.get(jobs_path(namespace, "short"))["status"]["succeeded"] == 2
    assert phases(worker, namespace) == ["Succeeded"] * 2


def test_a_pod_that_exits_with_a_code_fails_its_job(planes: Planes, namespace: str) -> None:
    worker = planes.workers[1]
    make_nodes(worker, [gpu_node("a")])
    worker.api.create(jobs_path(namespace), gpu_job("bad", exit_code=7))
    failed = wait_condition(worker, jobs_path(namespace, "bad"), "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    (pod,) = worker.api.items(pods_path(namespace))
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (7, "Error")


def test_a_deleted_job_takes_its_pods_along(planes: Planes, namespace: str) -> None:
    worker = planes.workers[2]
    make_nodes(worker, [gpu_node("a")])
    worker.api.create(jobs_path(namespace), gpu_job("long", pods=2, run_s="forever"))
    wait_until(lambda: phases(worker, namespace) == ["Running"] * 2, "both run")
    worker.api.delete(jobs_path(namespace, "long"))
    wait_until(lambda: phases(worker, namespace) == [], "none left")


def test_nodes_offer_whole_gpus_slices_and_shares(planes: Planes) -> None:
    worker = planes.workers[0]
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    make_nodes(
        worker,
        [
            gpu_node("whole", gpus=4, model="NVIDIA-L4", memory_mib=23_034, taints=(taint,)),
            shared_node("shared", gpus=2, replicas=4),
            mig_node("sliced", {"1g.5gb": 7}),
        ],
    )
    offered = {
        node["metadata"]["name"]: {
            name: count
            for name, count in node["status"]["allocatable"].items()
            if name.startswith("nvidia.com/")
        }
        for node in worker.api.items("/api/v1/nodes")
    }
    assert offered == {
        "whole": {"nvidia.com/gpu": "4"},
        "shared": {"nvidia.com/gpu.shared": "8"},
        "sliced": {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"},
    }
    # The API server gives every new node a taint until the node controller has seen it ready.
    path = "/api/v1/nodes/whole"
    wait_until(lambda: worker.api.get(path)["spec"]["taints"] == [taint], "its own taint alone")
    labels = worker.api.get(path)["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert labels["nvidia.com/gpu.count"] == "4"
    assert labels["nvidia.com/gpu.memory"] == "23034"


def test_a_node_goes_down_and_comes_back(planes: Planes) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("a"), gpu_node("b")])

    def tainted() -> list[str]:
        return [
            f"{node['metadata']['name']} {taint['effect']}"
            for node in worker.api.items("/api/v1/nodes")
            for taint in node["spec"].get("taints", [])
            if taint["key"] == "node.kubernetes.io/not-ready"
        ]

    take_down(worker, "a")
    wait_until(lambda: sorted(tainted()) == ["a NoExecute", "a NoSchedule"], "taints of a")
    bring_back(worker, "a")
    wait_until(lambda: tainted() == [], "no taints")


def test_a_thousand_nodes_are_there_at_once(planes: Planes) -> None:
    worker = planes.workers[2]
    names = make_nodes(worker, [gpu_node(f"node-{number:04}") for number in range(1000)])
    found = worker.api.items("/api/v1/nodes")
    assert sorted(node["metadata"]["name"] for node in found) == names
    assert {
        condition["status"]
        for node in found
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    } == {"True"}


def test_a_token_may_do_what_its_role_says_and_nothing_else(planes: Planes, namespace: str) -> None:
    worker = planes.workers[0]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    worker.api.create(
        f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "reader"}}
    )
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    worker.api.create(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": [rule]})
    worker.api.create(
        f"{rbac}/rolebindings",
        {
            "metadata": {"name": "reader"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "reader",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
        },
    )
    token = worker.token_for(namespace, "reader")
    reader = worker.api_for(token=token)

    def status(method: str, path: str, body: object = None) -> int:
        return status_of(reader, method, path, body)

    wait_until(lambda: status("GET", pods_path(namespace)) == 200, "allowed")
    assert status("GET", f"/api/v1/namespaces/{namespace}/secrets") == 403
    assert status("GET", "/api/v1/namespaces/default/pods") == 403
    assert status("GET", "/api/v1/pods") == 403
    assert status("POST", pods_path(namespace), {"metadata": {"name": "x"}}) == 403
    assert status("DELETE", f"{pods_path(namespace)}/x") == 403

    # Another cluster neither knows the account nor trusts the key.
    elsewhere = planes.workers[1].api_for(token=token)
    assert status_of(elsewhere, "GET", pods_path(namespace)) == 401

    # What is gone may do nothing, though its token has an hour left.
    worker.api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/reader")
    wait_until(lambda: status("GET", pods_path(namespace)) == 401, "refused")


def test_a_certificate_makes_any_user_of_any_group(planes: Planes, namespace: str) -> None:
    worker = planes.workers[0]
    bind = {
        "metadata": {"name": "viewers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "ops"}],
    }
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    worker.api.create(f"{rbac}/rolebindings", bind)
    anna, bert = worker.api_for("anna", ["ops"]), worker.api_for("bert")
    wait_until(lambda: status_of(anna, "GET", pods_path(namespace)) == 200, "allowed")
    assert status_of(anna, "POST", pods_path(namespace), {}) == 403
    assert status_of(bert, "GET", pods_path(namespace)) == 403
    assert status_of(worker.api_for(), "GET", pods_path(namespace)) == 403  # nobody in particular


def test_calls_are_counted_by_user_verb_and_resource(planes: Planes, namespace: str) -> None:
    hub = planes.hub
    anna = hub.api_for("anna", ["system:masters"])
    anna.get("/api/v1/namespaces")
    mark = hub.audit.mark()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    anna.create(path, {"metadata": {"name": "one"}})
    for number in range(3):
        anna.merge(f"{path}/one", {"data": {"number": str(number)}})
    assert anna.find(f"{path}/other") is None
    list(anna.watch(path, 1))
    hub.api.get(path)  # somebody else's
    assert hub.audit.count(since=mark, user="anna") == {
        ("anna", "create", "configmaps"): 1,
        ("anna", "patch", "configmaps"): 3,
        ("anna", "get", "configmaps"): 1,
        ("anna", "watch", "configmaps"): 1,
    }
    statuses = [call.status for call in hub.audit.calls(since=mark, user="anna")]
    assert statuses[:4] == [201, 200, 200, 200]
    assert hub.audit.calls(since=hub.audit.mark()) == []
