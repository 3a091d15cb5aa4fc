"""Whatever a cluster's objects say, an inventory goes on, and its reports hold together."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.kube.mirror import Added, Change, Deleted, Listed
from berthmaster.lib.kueue.queues import ClusterQueue, LocalQueue
from berthmaster.lib.kueue.workloads import Workload
from berthmaster.lib.messages.families import FLEET_FACTS, encode
from berthmaster.lib.messages.fleet import FleetFact, NodeReport
from berthmaster.worker.inventory.core.devices.amounts import MAX_TPUS
from berthmaster.worker.inventory.core.devices.holds import hold_of
from berthmaster.worker.inventory.core.inventory import Inventory
from berthmaster.worker.inventory.core.kinds import WatchedKind
from berthmaster.worker.inventory.core.node_index import NodeIndex
from berthmaster.worker.inventory.core.objects import (
    DeviceClass,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)
from tests.support import pod_asks
from tests.unit.worker.inventory.objects import NOW_S, STAMP, discovered, node

TEXT = st.text(alphabet="0123456789abcGMi-.,:;/ é\n", max_size=12)
QUANTITY = st.one_of(
    st.sampled_from(["0", "1", "2", "8", "16", "100", "1e9", "-1", "250m", "64Gi", "1.5", ""]),
    TEXT,
    st.integers(-5, 2**70),
)
RESOURCES = st.sampled_from(
    [
        "cpu",
        "memory",
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/mig-3g.20gb",
        "nvidia.com/mig-odd",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "amd.com/gpu",
        "google.com/tpu",
    ]
)
AMOUNTS = st.dictionaries(RESOURCES, QUANTITY, max_size=6)
LABEL_KEYS = st.sampled_from(
    [
        "nvidia.com/gpu.product",
        "nvidia.com/gpu.count",
        "nvidia.com/gpu.memory",
        "nvidia.com/gpu.replicas",
        "nvidia.com/gpu.sharing-strategy",
        "amd.com/gpu.vram",
        "runai-gpu-group",
        "berthmaster.io/tenant",
        "berthmaster.io/workload",
        "berthmaster.io/attempt",
        "berthmaster.io/pod",
        "team",
    ]
)
LABEL_VALUES = st.one_of(
    st.sampled_from(["1", "4", "Tesla-T4", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "mps", "0"]), TEXT
)
LABELS = st.dictionaries(LABEL_KEYS, LABEL_VALUES, max_size=8)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            "hami.io/node-nvidia-register",
            "hami.io/vgpu-devices-allocated",
            "gpu-fraction",
            "gpu-memory",
            "gpu-fraction-num-devices",
            "berthmaster.io/gpus",
        ]
    ),
    st.one_of(
        st.sampled_from(
            [
                "0.5",
                "1,2",
                "GPU-a,10,1000,100,NVIDIA-T4,0,true:",
                '[{"id":"GPU-a","devmem":1000,"type":"NVIDIA-T4","health":true}]',
                "GPU-a,NVIDIA,500,10:;",
                "nan",
                "²",
            ]
        ),
        TEXT,
    ),
    max_size=4,
)
NODE_NAMES = st.sampled_from(["n1", "n2", "n.3"])
TAINT = st.fixed_dictionaries({"key": TEXT, "effect": st.sampled_from(["NoSchedule", "Odd", ""])})
CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["Ready", "Active", "QuotaReserved", "Admitted", "Evicted"]),
        "status": st.sampled_from(["True", "False", "Unknown", ""]),
        "message": TEXT,
    }
)
CONDITIONS = st.lists(CONDITION, max_size=4)


def named(names: st.SearchStrategy[str], **parts: st.SearchStrategy[Any]) -> Any:
    metadata = st.fixed_dictionaries(
        {
            "name": names,
            "namespace": st.sampled_from(["team", "kai-resource-reservation"]),
            "labels": LABELS,
            "annotations": ANNOTATIONS,
        }
    )
    return st.fixed_dictionaries({"metadata": metadata.map(with_uid), **parts})


def with_uid(metadata: dict[str, Any]) -> dict[str, Any]:
    return metadata | {"uid": f"{metadata['namespace']}/{metadata['name']}"}


CONTAINER = st.fixed_dictionaries(
    {
        "resources": st.fixed_dictionaries({"requests": AMOUNTS}),
        "restartPolicy": st.sampled_from(["", "Always"]),
    }
)
NODES = named(
    NODE_NAMES,
    spec=st.fixed_dictionaries({"taints": st.lists(TAINT, max_size=2)}),
    status=st.fixed_dictionaries(
        {"capacity": AMOUNTS, "allocatable": AMOUNTS, "conditions": CONDITIONS}
    ),
)
PODS = named(
    st.sampled_from(["p1", "p2", "p3"]),
    spec=st.fixed_dictionaries(
        {
            "nodeName": NODE_NAMES,
            "containers": st.lists(CONTAINER, max_size=3),
            "initContainers": st.lists(CONTAINER, max_size=2),
            "overhead": AMOUNTS,
        }
    ),
)
DEVICE = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["gpu-0", "gpu-1", "mig-0", "²9"]),
        "attributes": st.dictionaries(
            st.sampled_from(["type", "uuid", "parentUUID", "profile", "gpu.nvidia.com/uuid"]),
            st.fixed_dictionaries(
                {"string": st.sampled_from(["gpu", "mig", "GPU-a", "GPU-b", "1g.5gb", "odd"])}
            ),
        ),
        "capacity": st.dictionaries(
            st.just("memory"), st.fixed_dictionaries({"value": QUANTITY}), max_size=1
        ),
        "allowMultipleAllocations": st.none() | st.booleans(),
    }
)
POOL = st.fixed_dictionaries(
    {"name": NODE_NAMES, "generation": st.integers(0, 2), "resourceSliceCount": st.integers(-1, 2)}
)
DRIVERS = st.sampled_from(["gpu.nvidia.com", "tpu.google.com", "dra.net"])
SLICES = named(
    st.sampled_from(["s1", "s2"]),
    spec=st.fixed_dictionaries(
        {
            "driver": DRIVERS,
            "pool": POOL,
            "nodeName": NODE_NAMES,
            "devices": st.lists(DEVICE, max_size=3),
        }
    ),
)
RESULT = st.fixed_dictionaries(
    {
        "driver": DRIVERS,
        "pool": NODE_NAMES,
        "device": st.sampled_from(["gpu-0", "gpu-1", "mig-0", "none"]),
        "consumedCapacity": st.none()
        | st.dictionaries(st.sampled_from(["memory", "a/memory", "odd"]), QUANTITY, max_size=2),
        "shareID": st.none() | TEXT,
    }
)
CLASSES = named(
    st.sampled_from(["gpu.nvidia.com", "mig.nvidia.com"]),
    spec=st.fixed_dictionaries(
        {
            "selectors": st.lists(
                st.fixed_dictionaries(
                    {
                        "cel": st.fixed_dictionaries(
                            {
                                "expression": st.sampled_from(
                                    [
                                        "device.driver == 'gpu.nvidia.com'",
                                        "device.attributes['gpu.nvidia.com'].type == 'mig'",
                                        "true",
                                    ]
                                )
                            }
                        )
                    }
                ),
                max_size=2,
            ),
            "extendedResourceName": st.sampled_from(["", "nvidia.com/gpu", "a.b/c"]),
        }
    ),
)
CLAIMS = named(
    st.sampled_from(["c1", "c2"]),
    status=st.fixed_dictionaries(
        {
            "allocation": st.fixed_dictionaries(
                {"devices": st.fixed_dictionaries({"results": st.lists(RESULT, max_size=3)})}
            ),
            "reservedFor": st.lists(
                st.fixed_dictionaries(
                    {"resource": st.just("pods"), "uid": st.sampled_from(["team/p1", "team/p2"])}
                ),
                max_size=2,
            ),
        }
    ),
)
QUOTA = st.fixed_dictionaries(
    {"name": RESOURCES, "nominalQuota": QUANTITY, "borrowingLimit": st.none() | QUANTITY}
)
QUEUES = named(
    st.sampled_from(["q1", "q2"]),
    spec=st.fixed_dictionaries(
        {
            "resourceGroups": st.lists(
                st.fixed_dictionaries(
                    {
                        "flavors": st.lists(
                            st.fixed_dictionaries(
                                {"name": TEXT, "resources": st.lists(QUOTA, max_size=2)}
                            ),
                            max_size=2,
                        )
                    }
                ),
                max_size=2,
            )
        }
    ),
    status=st.fixed_dictionaries(
        {"conditions": CONDITIONS, "pendingWorkloads": st.integers(-2, 5)}
    ),
)
LOCALS = named(
    st.sampled_from(["l1", "l2"]),
    spec=st.fixed_dictionaries({"clusterQueue": st.sampled_from(["q1", "q9"])}),
)
COPIES = named(st.just("w"), status=st.fixed_dictionaries({"conditions": CONDITIONS}))


def changes(kind: Any, struct: type[Any], bodies: st.SearchStrategy[Any]) -> Any:
    found = bodies.map(lambda body: msgspec.convert(body, struct))
    one: st.SearchStrategy[Change[Any]] = st.one_of(
        found.map(Added), found.map(lambda gone: Deleted(gone, gone)), st.just(Listed("1"))
    )
    return st.tuples(st.just(kind), one)


WORKER = st.lists(
    st.one_of(
        changes(WatchedKind.NODES, Node, NODES),
        changes(WatchedKind.NODES, Node, NODES),
        changes(WatchedKind.PODS, Pod, PODS),
        changes(WatchedKind.PODS, Pod, PODS),
        changes(WatchedKind.SLICES, ResourceSlice, SLICES),
        changes(WatchedKind.CLAIMS, ResourceClaim, CLAIMS),
        changes(WatchedKind.CLASSES, DeviceClass, CLASSES),
        changes(WatchedKind.CLUSTER_QUEUES, ClusterQueue, QUEUES),
        changes(WatchedKind.LOCAL_QUEUES, LocalQueue, LOCALS),
        changes(WatchedKind.COPIES, Workload, COPIES),
    ),
    max_size=12,
)


def check(report: NodeReport) -> None:
    indices = [gpu.index for gpu in report.gpus]
    for first in range(0, 320, 64):  # each maker's from its own first on
        some = [index for index in indices if first <= index < first + 64]
        assert some == list(range(first, first + len(some)))
    assert len(set(indices)) == len(indices)
    assert report.allocatable.gpu_milli == 1000 * len(report.gpus) <= 64_000
    assert report.foreign.gpu_milli == sum(gpu.foreign_milli for gpu in report.gpus)
    assert report.fractions == bool(report.shares)
    for use in report.pods:
        assert set(use.gpus) <= set(indices)
        assert bool(use.gpus) == bool(use.gpu_milli)
    assert len(report.labels) <= 64


@settings(max_examples=120, deadline=None)
@given(WORKER)
def test_any_object_leaves_facts_readable(story: list[tuple[WatchedKind, Change[Any]]]) -> None:
    inventory = Inventory("east")
    told = set()
    for kind, change in story:
        inventory.take(kind, change)
        told |= set(inventory.changes())
    assert set(inventory.everything()) <= told | {next(iter(inventory.everything()))}
    for subject in told:
        answer = inventory.fact(subject, STAMP, NOW_S)
        assert answer is not None
        fact = answer[0]
        assert FLEET_FACTS.decode(encode(fact)) == fact
        if isinstance(fact, NodeReport):
            check(fact)


@settings(max_examples=80, deadline=None)
@given(WORKER)
def test_list_order_changes_no_fact(story: list[tuple[WatchedKind, Change[Any]]]) -> None:
    """Facts depend on what is there now, not on how it came about."""
    lived = Inventory("east")
    there: dict[tuple[WatchedKind, str, str], tuple[WatchedKind, Change[Any]]] = {}
    for kind, change in story:
        if not isinstance(change, Added | Deleted):
            continue
        lived.take(kind, change)
        found = change.object.metadata
        whole = kind in (
            WatchedKind.NODES,
            WatchedKind.CLUSTER_QUEUES,
        )  # the cluster's, in no namespace
        key = (kind, "" if whole else found.namespace, found.name)
        there.pop(key, None)
        if isinstance(change, Added):
            there[key] = (kind, change)
    fresh = Inventory("east")
    for kind, change in there.values():
        fresh.take(kind, change)
    for each in (lived, fresh):  # who has heard of a class may look for them
        each.take(WatchedKind.CLASSES, Listed("1"))
    assert sorted(lived.everything()) == sorted(fresh.everything())
    for subject in fresh.everything():
        assert settled(lived, subject) == settled(fresh, subject)


def settled(inventory: Inventory, subject: str) -> FleetFact:
    """The fact, less what depends on the order in which pods came: which GPU each is charged to."""
    answer = inventory.fact(subject, STAMP, NOW_S)
    assert answer is not None
    fact = answer[0]
    if not isinstance(fact, NodeReport):
        return fact
    gpus = tuple(msgspec.structs.replace(gpu, foreign_milli=0) for gpu in fact.gpus)
    pods = (msgspec.structs.replace(use, gpus=()) for use in fact.pods)
    return msgspec.structs.replace(fact, gpus=gpus, pods=tuple(sorted(pods, key=repr)))


OFFERS = {"rdma/hca": "16", "habana.ai/gaudi": "16", "google.com/tpu": "16", "nvidia.com/gpu": "8"}


@given(pod_asks.SPECS, pod_asks.ANNOTATIONS)
def test_no_accelerator_of_a_strangers_pod_is_dropped_in_silence(
    spec: pod_asks.Document, annotations: pod_asks.Document
) -> None:
    bound = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": annotations},
        "spec": spec | {"nodeName": "n1"},
        "status": {"phase": "Running"},
    }
    pod = msgspec.convert(bound, Pod)
    hold = hold_of(pod)
    assert hold is not None
    held = dict(hold.pieces)
    for name in pod_asks.names_asked(spec):
        assert held.get(name, 0) > 0 or hold.problems
    if annotations.keys() & {"gpu-fraction", "gpu-memory"}:
        assert hold.fraction_milli or hold.fraction_mib
    # And its node tells them as taken by others, as far as it has them.
    nodes = NodeIndex("east", Problems())
    nodes.set_node(node("n1", OFFERS, labels=discovered(count=8)))
    nodes.set_pod(pod)
    report = nodes.report("n1", STAMP, NOW_S)
    assert report is not None
    foreign = report.foreign
    assert foreign.tpus == min(held.get("google.com/tpu", 0), MAX_TPUS)
    for name in ("rdma/hca", "habana.ai/gaudi"):
        assert foreign.pieces.get(name, 0) == held.get(name, 0)
    assert foreign.gpu_milli >= 1000 * min(8, held.get("nvidia.com/gpu", 0))
    assert set(held) <= set(pod_asks.NAMES)
