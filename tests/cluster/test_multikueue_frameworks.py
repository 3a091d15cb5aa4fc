"""Frameworks' jobs through MultiKueue, as their projects define them: what the access that we make
in a worker lets a hub do with each kind, and that the reconciler sends each to a worker.

The definitions come as Go modules (tests/controlplane/frameworks.py); where they cannot be had the
tests are skipped and say why. No controller of theirs runs: what Kueue and we do is what counts.
Of a TrainJob Kueue works out the pods itself, from the runtime that it names (it has Trainer's own
code for that), on the hub and in the worker; so the runtime must be in both.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from berthmaster.hub.credentials.core.rights import FRAMEWORKS, rules
from berthmaster.lab.controlplane.api import Api, ApiError, Object, documents
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import API, USER, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import CRDS, Planes
from berthmaster.lib.kueue.podsets.reading import workload_id
from berthmaster.lib.lifecycle.workload import Key, key
from tests.cluster.multikueueing import Bus, Rig
from tests.controlplane.frameworks import SOURCES, definitions

ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
KINDS: Final = tuple(SOURCES)
JOB_SET, RAY, TORCH, MPI, TRAIN = (
    "jobset.x-k8s.io/jobset",
    "ray.io/rayjob",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/mpijob",
    "trainer.kubeflow.org/trainjob",
)
MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
TRAINING_RUNTIMES: Final = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"


def template(gpus: int, *, name: str = "main", restart: bool = True) -> Object:
    """Of pods with so many GPUs each."""
    resources = {"cpu": "1"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    asked = {"requests": resources, "limits": resources}
    spec: Object = {"containers": [{"name": name, "image": "train:1", "resources": asked}]}
    return {"spec": spec | ({"restartPolicy": "Never"} if restart else {})}


def replica(count: int, gpus: int, name: str) -> Object:
    return {"replicas": count, "restartPolicy": "Never", "template": template(gpus, name=name)}


# Name -> (apiVersion, kind, spec of a job with one pod of none and two pods of one GPU each).
BODIES: Final[dict[str, tuple[str, str, Object]]] = {
    JOB_SET: (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {
            "suspend": True,
            "managedBy": MULTIKUEUE,
            "replicatedJobs": [
                {
                    "name": name,
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "parallelism": count,
                            "completions": count,
                            "template": template(gpus),
                        }
                    },
                }
                for name, count, gpus in (("head", 1, 0), ("workers", 2, 1))
            ],
        },
    ),
    RAY: (
        "ray.io/v1",
        "RayJob",
        {
            "suspend": True,
            "managedBy": MULTIKUEUE,
            "entrypoint": "python train.py",
            "shutdownAfterJobFinishes": True,
            "submissionMode": "HTTPMode",
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": {}, "template": template(0, restart=False)},
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": 2,
                        "minReplicas": 2,
                        "maxReplicas": 2,
                        "rayStartParams": {},
                        "template": template(1, restart=False),
                    }
                ],
            },
        },
    ),
    TORCH: (
        "kubeflow.org/v1",
        "PyTorchJob",
        {
            "runPolicy": {"suspend": True, "managedBy": MULTIKUEUE},
            "pytorchReplicaSpecs": {
                "Master": replica(1, 0, "pytorch"),
                "Worker": replica(2, 1, "pytorch"),
            },
        },
    ),
    MPI: (
        "kubeflow.org/v2beta1",
        "MPIJob",
        {
            "slotsPerWorker": 1,
            "runPolicy": {"suspend": True, "managedBy": MULTIKUEUE},
            "mpiReplicaSpecs": {
                "Launcher": replica(1, 0, "launcher"),
                "Worker": replica(2, 1, "worker"),
            },
        },
    ),
    TRAIN: (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {
            "suspend": True,
            "managedBy": MULTIKUEUE,
            "runtimeRef": {"name": "torch"},
            "trainer": {"numNodes": 2},
            # As Kueue's webhook writes it: where Kueue puts what it has decided for the pods.
            "runtimePatches": [
                {
                    "manager": "kueue.x-k8s.io/manager",
                    "trainingRuntimeSpec": {"template": {"spec": {}}},
                }
            ],
        },
    ),
}
# The runtime that the TrainJob names: one pod that loads data, and nodes of one GPU each.
TRAINING_RUNTIME: Final[Object] = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch", "labels": {"trainer.kubeflow.org/framework": "torch"}},
    "spec": {
        "mlPolicy": {"numNodes": 1},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": name,
                        "replicas": 1,
                        "template": {
                            "metadata": {
                                "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": step}
                            },
                            "spec": {"template": template(gpus, name=name)},
                        },
                    }
                    for name, step, gpus in (
                        ("dataset-initializer", "dataset-initializer", 0),
                        ("node", "trainer", 1),
                    )
                ]
            }
        },
    },
}


def body(framework: str, k: str, name: str, queue: str) -> Object:
    version, kind, spec = BODIES[framework]
    metadata = {"name": name, "namespace": k, "labels": {"kueue.x-k8s.io/queue-name": queue}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def path(framework: str, namespace: str) -> str:
    version, _, _ = BODIES[framework]
    return f"/apis/{version}/namespaces/{namespace}/{FRAMEWORKS[framework].plural}"


@pytest.fixture(scope="module")
def found() -> dict[str, list[Object]]:
    try:
        return {name: definitions([name]) for name in KINDS}
    except Unavailable as error:
        pytest.skip(str(error))


def define(plane: Plane, found: dict[str, list[Object]], *names: str) -> None:
    plane.apply([each for name in names for each in found[name]])


def undefine(plane: Plane, found: dict[str, list[Object]]) -> None:
    """As the other tests know the plane: with their own JobSet, and no others."""
    theirs = {each["metadata"]["name"]: each for each in documents(CRDS)}
    ours = [one for name in KINDS for one in found[name]]
    plane.withdraw([one for one in ours if one["metadata"]["name"] not in theirs])
    plane.apply(
        [theirs[one["metadata"]["name"]] for one in ours if one["metadata"]["name"] in theirs]
    )


def grant(plane: Plane, name: str, user: str, frameworks: tuple[str, ...]) -> None:
    """What credentials grants a hub there, by its own words."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    plane.api.apply({**role, "kind": "ClusterRole", "rules": rules(frameworks)})
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    ref = {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    plane.api.apply({**role, "kind": "ClusterRoleBinding", "roleRef": ref, "subjects": [subject]})


def revoke(plane: Plane, name: str) -> None:
    for plural in ("clusterrolebindings", "clusterroles"):
        if plane.api.find(f"{RBAC}/{plural}/{name}") is not None:
            plane.api.delete(f"{RBAC}/{plural}/{name}")


def refused(call: Callable[..., object], *how: object) -> int:
    try:
        call(*how)
    except ApiError as error:
        return error.status
    return 0


def test_a_hub_keeps_those_kinds_in_a_worker_that_it_was_given_and_no_others(
    planes: Planes, namespace: str, found: dict[str, list[Object]]
) -> None:
    worker = planes.workers[0]
    define(worker, found, *KINDS)
    all_of_them, some = f"{namespace}-all", f"{namespace}-some"
    grant(worker, all_of_them, all_of_them, KINDS)
    grant(worker, some, some, ("batch/job", RAY))
    try:
        hub, other = worker.api_for(all_of_them), worker.api_for(some)
        for framework in KINDS:
            where = path(framework, namespace)
            made = hub.create(where, body(framework, namespace, "train", "main"))
            assert made["spec"].items() >= {"suspend": True}.items() or made["spec"]["runPolicy"]
            assert hub.get(f"{where}/train")["metadata"]["uid"] == made["metadata"]["uid"]
            assert [one["metadata"]["name"] for one in hub.items(where)] == ["train"]
            # How it stands is the worker's to write.
            assert refused(hub.merge, f"{where}/train/status", {"status": {}}) == 403
            denied = 0 if framework == RAY else 403
            assert refused(other.get, f"{where}/train") == denied, framework
            hub.delete(f"{where}/train")
        for inner in ("secrets", "configmaps", "pods"):
            assert refused(hub.items, f"/api/v1/namespaces/{namespace}/{inner}") == 403
    finally:
        revoke(worker, all_of_them)
        revoke(worker, some)
        undefine(worker, found)


@pytest.fixture
def rig(
    planes: Planes, namespace: str, found: dict[str, list[Object]], tmp_path: Path
) -> Iterator[Rig]:
    for plane in planes:
        if plane.name != THREE:
            define(plane, found, *KINDS)
            plane.api.create(TRAINING_RUNTIMES, TRAINING_RUNTIME)
    for plane in planes.workers:
        make_nodes(plane, [gpu_node(f"{plane.name}-node", model="NVIDIA-A100", gpus=8)])
        grant(plane, f"{namespace}-frameworks", USER, ("batch/job", *KINDS))
    options = Options(dispatcher="berthmaster.io/dispatcher", frameworks=("batch/job", *KINDS))
    try:
        with (
            Bus(tmp_path) as bus,
            Kueue(planes, namespace, options=options, clusters=[ONE, TWO]) as k,
        ):
            rig = Rig(k, bus, tmp_path)
            k.planes.hub.api.apply(builders.config(k.config, [ONE, TWO, THREE]))
            for name in (ONE, TWO, THREE):
                bus.queue(name, k)
            bus.worker(ONE, free=2)
            bus.worker(TWO, free=6)
            bus.worker(THREE, free=8)
            try:
                yield rig
            finally:
                rig.kill()
                for framework in KINDS:
                    for plane in planes:
                        if plane.name != THREE:
                            plane.api.delete(path(framework, namespace))
    finally:
        for plane in planes:
            revoke(plane, f"{namespace}-frameworks")
            undefine(plane, found)


def workload_of(api: Api, namespace: str, kind: str, name: str) -> Any:
    for each in api.items(f"{API}/namespaces/{namespace}/workloads"):
        owners = each["metadata"].get("ownerReferences") or ()
        if any((owner["kind"], owner["name"]) == (kind, name) for owner in owners):
            return each
    return None


def pods_of(bus: Bus, name: Key) -> int:
    """How many its Workload asks for, as the log has it."""
    request = bus.folds[name].request
    assert request is not None
    return sum(pods.count for pods in request.pod_sets)


def test_each_kind_goes_to_the_roomiest_worker_that_serves_it_and_why_not_elsewhere_is_told(
    rig: Rig,
) -> None:
    k = rig.k
    hub, namespace = k.planes.hub.api, k.namespace
    rig.start()
    for number, framework in enumerate(KINDS):
        _, kind, _ = BODIES[framework]
        name = f"train-{number}"
        hub.create(path(framework, namespace), body(framework, namespace, name, k.queue))

        def made(kind: str = kind, name: str = name) -> Any:
            return workload_of(hub, namespace, kind, name)

        rig.until(made, f"{kind} has a Workload")
        meta = made()["metadata"]
        on_the_bus = key(namespace, workload_id(meta["name"], meta["uid"]))
        rig.until(
            lambda b=on_the_bus: f"running {TWO}" in rig.bus.kinds(b),  # type: ignore[misc]
            f"{kind} runs in {TWO}",
        )
        assert rig.bus.kinds(on_the_bus) == [
            "submitted",
            f"placed {TWO}",
            f"claimed {TWO}",
            f"admitted {TWO}",
            f"running {TWO}",
        ]
        copy = k.planes[TWO].api.get(f"{path(framework, namespace)}/{name}")
        assert copy["metadata"]["labels"]["kueue.x-k8s.io/multikueue-origin"] == "multikueue"
        assert k.planes[ONE].api.find(f"{path(framework, namespace)}/{name}") is None
        choice = rig.bus.decisions[number].placements[0]
        assert "no matches for kind" in choice.filtered[THREE], choice.filtered
        assert pods_of(rig.bus, on_the_bus) == 3
        hub.delete(f"{path(framework, namespace)}/{name}")
    rig.nothing_wrong()
