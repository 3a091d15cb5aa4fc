"""What kube-scheduler is told of where the pods of an attempt go."""

from typing import Any

from msgspec.structs import replace

from berthmaster.lib.kube import labels
from berthmaster.lib.messages.fleet import NodeReport, Share
from berthmaster.lib.messages.workload import PodSet, Topology
from berthmaster.worker.executor.core.affinity import MAX_PREFERRED, Offers
from tests.support.builders import node
from tests.unit.worker.executor.test_manifest import made, offers_of, order, pod_of

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WHOSE = {labels.TENANT: "acme", labels.WORKLOAD: "train", labels.ATTEMPT: "1"}
MAIN = {"matchLabels": WHOSE | {labels.POD_SET: "main"}}


def gang(**topology: Any) -> Any:
    return pod_of(order(PodSet(gpus=1, count=4, topology=Topology(**topology))))


def test_pods_that_ask_for_nothing_are_told_of_the_chosen_nodes_alone() -> None:
    spec = pod_of(order(PodSet(gpus=1, count=4), nodes=("n1", "n2")))
    chosen = {"key": HOST, "operator": "In", "values": ["n1", "n2"]}
    preference = {"weight": 100, "preference": {"matchExpressions": [chosen]}}
    assert spec["affinity"] == {"nodeAffinity": {PREFERRED: [preference]}}
    assert "topologySpreadConstraints" not in spec


def test_pods_of_one_zone_find_each_other_by_the_labels_of_their_attempt() -> None:
    affinity = gang(same=ZONE)["affinity"]
    assert affinity["podAffinity"] == {REQUIRED: [{"topologyKey": ZONE, "labelSelector": MAIN}]}
    affinity = gang(same="node")["affinity"]
    assert affinity["podAffinity"] == {REQUIRED: [{"topologyKey": HOST, "labelSelector": MAIN}]}
    assert affinity["nodeAffinity"][PREFERRED]  # and of the chosen nodes


def test_sets_that_name_the_same_select_each_other_and_no_others() -> None:
    rack = Topology(same="rack")
    sets = (
        PodSet(name="leader", topology=rack),
        PodSet(name="worker", count=3, topology=rack),
        PodSet(name="log", topology=Topology(same="node")),
        PodSet(name="free"),
    )
    jobs = made(order(*sets))["spec"]["replicatedJobs"]
    specs = [job["template"]["spec"]["template"]["spec"]["affinity"] for job in jobs]
    among = {"key": labels.POD_SET, "operator": "In", "values": ["leader", "worker"]}
    both = {"matchLabels": WHOSE, "matchExpressions": [among]}
    term = {REQUIRED: [{"topologyKey": "rack", "labelSelector": both}]}
    assert [spec.get("podAffinity") for spec in specs[:2]] == [term, term]
    alone = {"matchLabels": WHOSE | {labels.POD_SET: "log"}}
    assert specs[2]["podAffinity"] == {REQUIRED: [{"topologyKey": HOST, "labelSelector": alone}]}
    assert "podAffinity" not in specs[3]


def test_one_pod_a_node_keep_away_from_each_other() -> None:
    spec = gang(max_pods_a_node=1)
    assert spec["affinity"]["podAntiAffinity"] == {
        REQUIRED: [{"topologyKey": HOST, "labelSelector": MAIN}]
    }
    assert "topologySpreadConstraints" not in spec


def test_some_pods_a_node_are_a_spread_over_nodes_of_which_one_is_always_empty() -> None:
    assert gang(max_pods_a_node=3)["topologySpreadConstraints"] == [
        {
            "maxSkew": 3,
            "minDomains": 2**31 - 1,
            "topologyKey": HOST,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": MAIN,
        }
    ]


def test_few_nodes_are_preferred_beside_a_zone_that_is_required() -> None:
    affinity = gang(nodes="fewest", same=ZONE)["affinity"]["podAffinity"]
    near = {"topologyKey": HOST, "labelSelector": MAIN}
    assert affinity == {
        REQUIRED: [{"topologyKey": ZONE, "labelSelector": MAIN}],
        PREFERRED: [{"weight": 50, "podAffinityTerm": near}],
    }


def test_a_single_pod_has_nobody_to_mind() -> None:
    spec = pod_of(order(PodSet(topology=Topology(same=ZONE, max_pods_a_node=1))))
    assert list(spec["affinity"]) == ["nodeAffinity"]


def model(name: str, product: str, **fields: Any) -> NodeReport:
    return node(name=name, model=product, labels={"nvidia.com/gpu.product": product}, **fields)


def test_preferred_models_are_told_in_their_order_as_nodes_name_them() -> None:
    offers = offers_of(model("n1", "NVIDIA-H100-80GB-HBM3"), model("n2", "Tesla-T4"))
    pods = PodSet(gpus=1, prefer_gpu_models=("H100", "A100", "T4"))
    terms = pod_of(order(pods), offers)["affinity"]["nodeAffinity"][PREFERRED]
    told = [(t["weight"], t["preference"]["matchExpressions"][0]["values"]) for t in terms]
    assert told == [(100, ["n1"]), (40, ["NVIDIA-H100-80GB-HBM3"]), (30, ["Tesla-T4"])]


def test_no_more_nodes_are_named_than_an_object_may_hold() -> None:
    names = tuple(f"n{at}" for at in range(1000))
    terms = pod_of(order(PodSet(count=1000), nodes=names))["affinity"]["nodeAffinity"][PREFERRED]
    assert len(terms[0]["preference"]["matchExpressions"][0]["values"]) == MAX_PREFERRED


# Parts of GPUs


def shared(share: Share, **fields: Any) -> Offers:
    return offers_of(replace(node(gpus=1, **fields), shares=(share,)))


def test_a_mig_profile_is_asked_for_by_its_resource() -> None:
    pods = PodSet(gpus=1, gpu_milli=142, mig_profile="1g.10gb", memory_mib=0)
    small = Share(
        resource="nvidia.com/mig-1g.10gb", milli=142, memory_mib=10_240, count=7, kind="mig"
    )
    large = Share(
        resource="nvidia.com/mig-1g.20gb", milli=142, memory_mib=20_480, count=4, kind="mig"
    )
    report = replace(node(gpus=1), shares=(large, small))
    limits = pod_of(order(pods), offers_of(report))["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/mig-1g.10gb": "1"}


def test_a_part_by_memory_is_told_to_who_divides() -> None:
    pods = PodSet(gpus=1, gpu_milli=1, gpu_memory_mib=4096, memory_mib=0)
    kai = Share(resource="gpu-fraction", milli=10, count=100, kind="kai", memory_mib=40_900)
    template = made(order(pods), shared(kai))["spec"]["template"]
    told = template["metadata"]["annotations"]
    assert (told["gpu-memory"], "gpu-fraction" in told) == ("4096", False)
    hami = Share(resource="nvidia.com/gpucores", milli=10, count=100, kind="hami")
    limits = pod_of(order(pods), shared(hami))["containers"][0]["resources"]["limits"]
    assert limits == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpucores": "25",
        "nvidia.com/gpumem": "4096",
    }
