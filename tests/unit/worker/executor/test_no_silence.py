"""No accelerator that a request asks for is dropped in silence: refused with its field, or charged
by the engine, asked of quota and asked for by the pod, all by the same names."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.engine.fitting.fit import bind_gang
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.kueue.asks import asks_of, devices_of
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.fleet import NodeReport, Share
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.requests.validation import job_request
from berthmaster.worker.executor.core.claims import TEMPLATES
from berthmaster.worker.executor.core.manifest import Style, document
from tests.support.builders import node
from tests.unit.worker.executor.test_manifest import offers_of, order

HCA, GAUDI, TPU = "rdma/hca", "habana.ai/gaudi", "google.com/tpu"
SLICE = Share(resource="nvidia.com/mig-1g.10gb", milli=142, memory_mib=10_240, count=7, kind="mig")
TURN = Share(resource="nvidia.com/gpu.shared", milli=250, count=8)
HAMI = Share(resource="nvidia.com/gpucores", milli=10, count=800, kind="hami")
KAI = Share(resource="gpu-fraction", milli=10, count=800, kind="kai")

PODS = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(0, 3),
        "gpu_milli": st.sampled_from([1, 100, 142, 500, 1000]),
        "gpu_memory_mib": st.sampled_from([0, 4096, 10_240]),
        "mig_profile": st.sampled_from(["", "1g.10gb", "9g.1gb"]),
        "gpu_resource": st.sampled_from(["", "nvidia.com/gpu", "amd.com/gpu", "gpu"]),
        "isolation": st.sampled_from(["", "hardware", "memory", "none"]),
        "tpus": st.sampled_from([0, 1, 4, 8]),
        "tpu_topology": st.sampled_from(["", "2x2", "2x4", "4x"]),
        "count": st.integers(1, 3),
        "resources": st.dictionaries(
            st.sampled_from([HCA, GAUDI, "nvidia.com/gpu", TPU, "cpu", "none.example/x"]),
            st.integers(0, 4),
            max_size=2,
        ),
        "claims": st.lists(st.sampled_from(["nic", "UPPER"]), max_size=2),
    },
)


def hosts(share: Share | None) -> list[NodeReport]:
    """With GPUs of two makers and with TPUs of a slice, and pieces of all others on each."""
    labels = {"cloud.google.com/gke-tpu-topology": "2x4", "cloud.google.com/gke-nodepool": "p"}
    found = []
    for name, gpus, tpus in (("nv", 8, 0), ("amd", 8, 0), ("t1", 0, 4), ("t2", 0, 4)):
        report = node("c", name, gpus=gpus, labels=labels if tpus else None)
        pieces = {HCA: 4, GAUDI: 8}
        allocatable = replace(report.allocatable, tpus=tpus, pieces=pieces)
        report = replace(report, allocatable=allocatable)
        if name == "amd":
            of_amd = tuple(replace(gpu, resource="amd.com/gpu") for gpu in report.gpus)
            report = replace(report, gpus=of_amd, fractions=False)
        if name == "nv":  # as an inventory tells it: parts only where somebody hands them out
            shares = () if share is None else (share,)
            report = replace(report, shares=shares, fractions=share is not None)
        found.append(report)
    return found


@given(PODS, st.sampled_from([None, SLICE, TURN, HAMI, KAI]))
def test_request_is_refused_or_met_by_name(asked: dict[str, Any], share: Share | None) -> None:
    body = {"id": "train", "pod_sets": [{"gpus": 0} | asked], "run": {"image": "a"}}
    request = job_request(json.dumps(body).encode())
    if isinstance(request, Refusal):
        assert request.field.startswith("pod_sets[0].")
        assert request.expected
        return
    assert isinstance(request, JobRequest)
    [pods] = request.pod_sets
    fleet = Fleet()
    reports = hosts(share)
    for report in reports:
        fleet.put_node(report)
    fleet.arrange()
    suitable = suitable_nodes(fleet, pods)
    bound = bind_gang(fleet, 0, (pods,), (suitable,))
    if bound is None:
        assert not suitable.nodes.any() or pods.count > 1
        return
    for held in bound.holdings:
        assert len(held.gpus) == pods.gpus
        assert dict(held.pieces) == {
            name: n for name, n in {**pods.resources, TPU: pods.tpus}.items() if n
        }
    nodes = tuple(binding.node for binding in bound.bindings)
    existing = dict.fromkeys(pods.claims, "template")
    made = document(order(pods, nodes=nodes), None, offers_of(*reports), Style(), existing)  # type: ignore[arg-type]
    template = made["spec"]["template"]
    [container] = template["spec"]["containers"]
    limits = container["resources"]["limits"]
    annotations = template["metadata"].get("annotations", {})
    for name, count in bound.holdings[0].pieces:
        assert limits[name] == str(count)
    if pods.gpus:
        by_count = {name for name in limits if "/" in name} - {TPU, HCA, GAUDI}
        shared_by_kai = annotations.keys() & {"gpu-fraction", "gpu-memory"}
        assert by_count or shared_by_kai or TEMPLATES in made["metadata"]["annotations"]
    named = [
        claim["resourceClaimTemplateName"] for claim in template["spec"].get("resourceClaims", ())
    ]
    assert named == list(pods.claims)
    # A worker's quota is asked for by the very names.
    chosen = [report for report in reports if report.node in nodes]
    [ask] = asks_of(request, devices_of(chosen))
    devices = {name: int(n) * pods.count for name, n in limits.items() if "/" in name}
    assert any(
        {name: n for name, n in way.items() if "/" in name} == devices for way in ask.ways
    ), (ask.ways, devices)
