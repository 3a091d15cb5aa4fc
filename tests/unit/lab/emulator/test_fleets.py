import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lab.emulator.fleets import (
    BUILTIN,
    OPENB_NODES,
    ClusterSpec,
    FleetError,
    NodeSpec,
    builtin_fleet,
    builtin_nodes,
    fleet_from_text,
    gpu_memory_mib,
    group,
    parse_nodes,
    read_fleet,
)
from scripts.benchmarks.trace_files import TRACES

HEADER = "sn,cpu_milli,memory_mib,gpu,model\n"


def names(fleet: list[ClusterSpec]) -> dict[str, int]:
    return {cluster.name: len(cluster.nodes) for cluster in fleet}


def gpus(nodes: list[NodeSpec]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for node in nodes:
        counts[node.model] += node.gpus
    return counts


def test_the_builtin_fleet_has_the_published_size_and_one_cluster_a_model_and_two_of_g2() -> None:
    nodes = builtin_nodes()
    assert (len(nodes), sum(node.gpus for node in nodes)) == (1213, 6212)
    assert names(builtin_fleet()) == {
        "a10": 2,
        "g2-a": 275,
        "g2-b": 274,
        "g3": 39,
        "p100": 134,
        "t4": 404,
        "v100m16": 55,
        "v100m32": 30,
    }


@pytest.mark.skipif(not (TRACES / OPENB_NODES).exists(), reason="no traces at BERTH_TRACES")
def test_the_builtin_fleet_equals_the_openb_list_but_for_names() -> None:
    listed = parse_nodes((TRACES / OPENB_NODES).read_text())
    assert Counter(n.shape for n in listed) == Counter(n.shape for n in builtin_nodes())
    assert names(read_fleet(str(TRACES / OPENB_NODES))) == names(builtin_fleet())


@given(nodes=st.integers(7, 5000), clusters=st.integers(1, 40))
def test_scaling_keeps_every_model_and_every_cluster_has_a_node(nodes: int, clusters: int) -> None:
    clusters = min(clusters, nodes)
    fleet = builtin_fleet(clusters=clusters, nodes=nodes)
    everything = [node for cluster in fleet for node in cluster.nodes]
    assert len(everything) == nodes
    assert len({node.name for node in everything}) == nodes
    assert len(fleet) == clusters
    assert len({cluster.name for cluster in fleet}) == clusters
    assert all(cluster.nodes for cluster in fleet)
    assert set(gpus(everything)) == set(gpus(builtin_nodes()))


def test_clusters_of_one_model_are_equal_in_size_and_mix() -> None:
    text = HEADER + "".join(f"n{i},64000,262144,{8 if i % 2 else 2},T4\n" for i in range(12))
    fleet = fleet_from_text(text, clusters=3)
    assert names(fleet) == {"t4-a": 4, "t4-b": 4, "t4-c": 4}
    assert [cluster.gpus for cluster in fleet] == [{"T4": 20}] * 3
    assert fleet[0].labels == {
        "berth/gpu-model": "T4",
        "nvidia.com/gpu.product": "Tesla-T4",
        "topology.kubernetes.io/region": "eu-central",
    }


def test_fewer_clusters_than_models_join_the_smallest_and_lose_the_model_label() -> None:
    text = HEADER + "a,1,1,1,A10\nb,1,1,1,H100\nc,1,1,1,T4\nd,1,1,1,T4\ne,1,1,0,\n"
    fleet = fleet_from_text(text, clusters=2)
    assert sum(len(cluster.nodes) for cluster in fleet) == 5
    joined = next(cluster for cluster in fleet if len(cluster.gpus) > 1)
    assert "berth/gpu-model" not in joined.labels
    assert joined.node_labels(next(n for n in joined.nodes if n.model))["berth/gpu-model"]


def test_a_larger_fleet_repeats_the_list_under_new_names() -> None:
    fleet = fleet_from_text(HEADER + "a,1,1,1,T4\nb,1,1,1,T4\n", clusters=1, nodes=5)
    assert [node.name for node in fleet[0].nodes] == ["a", "b", "a-2", "b-2", "a-3"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sn,gpu\nx,1\n", "lacks cpu_milli, memory_mib, model"),
        (HEADER, "has no nodes"),
        (HEADER + "a,-1,1,1,T4\n", "line 2: cpu_milli is '-1'"),
        (HEADER + "a,1,1,one,T4\n", "line 2: gpu is 'one'"),
        (HEADER + "a,1,1,1,T4\na,1,1,1,T4\n", "line 3: sn 'a'"),
        (HEADER + "a,1,1,1,\n", "a has GPUs and no model"),
    ],
)
def test_bad_node_list_names_line(text: str, complaint: str) -> None:
    with pytest.raises(FleetError, match=complaint):
        parse_nodes(text)


def test_clusters_have_names_that_kubernetes_takes() -> None:
    def names(model: str, clusters: int) -> list[str]:
        nodes = [NodeSpec(f"n{at}", 1000, 1024, 1, model) for at in range(27)]
        return [cluster.name for cluster in group(nodes, clusters)]

    assert names("T4", 26) == [f"t4-{letter}" for letter in string.ascii_lowercase]
    assert names("T4", 27) == sorted(f"t4-{number}" for number in range(1, 28))
    assert names("Tesla V100_Größe/2", 1) == ["tesla-v100-gr--e-2"]
    assert names("?!", 1) == ["other"]


def test_absurd_wishes_are_refused() -> None:
    with pytest.raises(FleetError, match="3 nodes make 1 to 3"):
        group(builtin_nodes(3), 8)
    with pytest.raises(FleetError, match="at least 1"):
        builtin_nodes(0)
    with pytest.raises(FleetError, match="cannot read the node list /none"):
        read_fleet("/none")


def test_models_that_nobody_knows_have_memory_all_the_same() -> None:
    assert gpu_memory_mib("B999") > 0
    assert len(read_fleet(BUILTIN)) == 8
