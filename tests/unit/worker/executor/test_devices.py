"""How pods ask for their devices, whoever hands them out: the amounts, annotations and claims."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.engine.fleet.shares import is_by_memory, part_of, takes_milli
from berthmaster.lib.messages.fleet import DeviceClaim, GpuDevice, NodeReport, Share
from berthmaster.lib.messages.workload import PodSet
from berthmaster.worker.executor.core.claims import TEMPLATES, decode
from berthmaster.worker.executor.core.manifest import Style, document
from tests.support.builders import node
from tests.unit.worker.executor.test_manifest import made, offers_of, order, pod_of

HAMI: Final = Share(resource="nvidia.com/gpucores", milli=10, count=100, kind="hami")
KAI: Final = Share(resource="gpu-fraction", milli=10, count=100, kind="kai", memory_mib=16_300)
DRIVER: Final = "gpu.nvidia.com"
A100: Final = "NVIDIA A100-SXM4-80GB"
MODEL: Final = "NVIDIA-A100-SXM4-80GB"
PRODUCT: Final = (
    f'"productName" in device.attributes["{DRIVER}"] && '
    f'device.attributes["{DRIVER}"].productName in ["{A100}"]'
)


def capacity(how: str, amount: str) -> str:
    there = f'device.capacity["{DRIVER}"]'
    return f'"memory" in {there} && {there}.memory.compareTo(quantity("{amount}")) {how} 0'


def with_share(share: Share, *memories_mib: int) -> NodeReport:
    report = node("c", "n1", gpus=len(memories_mib) or 1)
    if memories_mib:
        of_each = zip(report.gpus, memories_mib, strict=True)
        gpus = tuple(replace(gpu, memory_mib=mib) for gpu, mib in of_each)
        report = replace(report, gpus=gpus)
    return replace(report, shares=(share,))


def pod_template(pods: PodSet, *reports: NodeReport) -> Any:
    nodes = tuple(report.node for report in reports)
    return made(order(pods, nodes=nodes), offers_of(*reports))["spec"]["template"]


def limits(pods: PodSet, *reports: NodeReport) -> dict[str, str]:
    [container] = pod_template(pods, *reports)["spec"]["containers"]
    found: dict[str, str] = container["resources"]["limits"]
    return found


def part(milli: int = 1000, memory_mib: int = 0, **more: Any) -> PodSet:
    return PodSet(gpus=1, gpu_milli=milli, gpu_memory_mib=memory_mib, memory_mib=0, **more)


# HAMi and KAI


@pytest.mark.parametrize(
    ("asked", "cores", "memory"),
    [
        # Without either of the two HAMi would give all memory.
        (part(250), "25", {"gpumem-percentage": "25"}),
        (part(251), "26", {"gpumem-percentage": "26"}),
        (part(1), "1", {"gpumem-percentage": "1"}),
        (part(250, 4096), "25", {"gpumem-percentage": "25"}),  # 4096 of 16384
        (part(250, 4097), "26", {"gpumem": "4097"}),
        (part(1, 8192), "50", {"gpumem": "8192"}),
        (part(999, 16_384), "100", {"gpumem-percentage": "100"}),
    ],
)
def test_hami_is_told_what_the_part_means_in_memory(
    asked: PodSet, cores: str, memory: dict[str, str]
) -> None:
    assert limits(asked, with_share(HAMI, 16_384)) == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpucores": cores,
        **{f"nvidia.com/{name}": amount for name, amount in memory.items()},
    }


@given(st.integers(1, 999), st.integers(0, 16_384), st.sampled_from([15_360, 16_384, 81_559]))
def test_hami_part_lies_between_asked_and_charged(
    milli: int, memory_mib: int, total_mib: int
) -> None:
    pods = part(milli, min(memory_mib, total_mib))
    asked = limits(pods, with_share(HAMI, total_mib))
    percent = asked.get("nvidia.com/gpumem-percentage")
    given_mib = total_mib * int(percent) // 100 if percent else int(asked["nvidia.com/gpumem"])
    assert given_mib >= pods.gpu_memory_mib
    assert given_mib >= total_mib * milli // 1000
    assert int(asked["nvidia.com/gpucores"]) * 10 >= milli
    charged = takes_milli(HAMI, part_of(pods), total_mib)
    assert given_mib <= -(-charged * total_mib // 1000)
    assert int(asked["nvidia.com/gpucores"]) * 10 <= charged
    assert is_by_memory(pods, [total_mib]) == (percent is None)


def test_hami_gives_no_part_smaller_than_what_pods_may_have_it_at_once_leave_for_each() -> None:
    tenths = replace(HAMI, parts=10)
    gpu = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "10"}
    tenth = gpu | {"nvidia.com/gpumem-percentage": "10"}
    assert limits(part(1), with_share(tenths, 16_384)) == tenth
    assert limits(part(1, 1638), with_share(tenths, 16_384)) == tenth
    assert limits(part(1, 1639), with_share(tenths, 16_384)) == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpucores": "11",
        "nvidia.com/gpumem": "1639",
    }


def test_on_hamis_nodes_its_scheduler_places_whole_gpus_too_and_packs_as_they_were_chosen() -> None:
    """Its device plugin gives nothing to pods of another scheduler."""
    report = with_share(HAMI, 16_384, 16_384)
    offers, style = offers_of(report), Style(scheduler="berthmaster")
    for pods in (PodSet(gpus=2), part(250)):
        template: Any = document(order(pods), None, offers, style)["spec"]["template"]
        assert "schedulerName" not in template["spec"]
        assert template["metadata"]["annotations"]["hami.io/gpu-scheduler-policy"] == "binpack"
        assert "hami.io/webhook" not in template["metadata"]["labels"]


def test_who_is_placed_beside_hamis_nodes_is_left_alone_by_it_and_keeps_away_from_them() -> None:
    """Its admission takes every pod that asks for nvidia.com/gpu, and knows its own nodes only."""
    host = "kubernetes.io/hostname"
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    hamis = replace(with_share(HAMI, 16_384), node="h1")
    elsewhere = {"key": host, "operator": "NotIn", "values": ["h1"]}

    def template_of(pods: PodSet, *reports: NodeReport) -> Any:
        made_of = order(pods, nodes=("n1",))
        return made(made_of, offers_of(*reports))["spec"]["template"]

    plain = template_of(PodSet(gpus=1), node("c", "n1"), hamis)
    assert plain["metadata"]["labels"]["hami.io/webhook"] == "ignore"
    assert plain["spec"]["affinity"]["nodeAffinity"][required] == {
        "nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]
    }
    named = template_of(PodSet(gpus=1, gpu_models=("T4",)), node("c", "n1"), hamis)
    for term in named["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]:
        assert len(term["matchExpressions"]) == 2
        assert term["matchExpressions"][-1] == elsewhere
    for alone in (
        template_of(PodSet(gpus=1), node("c", "n1")),  # no HAMi here
        template_of(PodSet(gpus=0), node("c", "n1"), hamis),
    ):
        assert "hami.io/webhook" not in alone["metadata"]["labels"]
        assert required not in alone["spec"]["affinity"]["nodeAffinity"]


def test_kai_gets_a_fraction_or_memory_or_a_whole_gpu() -> None:
    def told(pods: PodSet, share: Share = KAI) -> tuple[dict[str, str], dict[str, str]]:
        template = pod_template(pods, with_share(share, 16_384))
        annotations = {k: v for k, v in template["metadata"]["annotations"].items() if "/" not in k}
        return annotations, template["spec"]["containers"][0]["resources"]["limits"]

    assert told(part(251)) == ({"gpu-fraction": "0.26"}, {})
    assert told(part(250, 8192)) == ({"gpu-memory": "8192"}, {})
    # All of it is no fraction that KAI takes, and no memory: of 16384 MiB it hands out 16300.
    assert told(part(995)) == ({}, {"nvidia.com/gpu": "1"})
    assert told(part(250, 16_301)) == ({}, {"nvidia.com/gpu": "1"})
    assert told(part(250, 16_384)) == ({}, {"nvidia.com/gpu": "1"})
    assert told(part(500, 8150)) == ({"gpu-fraction": "0.5"}, {})
    assert told(part(500, 8151)) == ({"gpu-memory": "8151"}, {})
    # Where its node does not tell it what there is, it would take any memory for all of it.
    untold = replace(KAI, memory_mib=0)
    assert told(part(250, 8192), untold) == ({"gpu-fraction": "0.5"}, {})
    assert told(part(250, 16_384), untold) == ({}, {"nvidia.com/gpu": "1"})


@given(st.integers(1, 999), st.integers(0, 81_559), st.sampled_from([15_360, 16_384, 81_559]))
def test_kai_charge_is_close_to_ours(milli: int, memory_mib: int, total_mib: int) -> None:
    share = replace(KAI, memory_mib=total_mib // 100 * 100)
    pods = part(milli, min(memory_mib, total_mib))
    template = pod_template(pods, with_share(share, total_mib))
    told = template["metadata"]["annotations"]
    charged = takes_milli(share, part_of(pods), total_mib)
    if "gpu-memory" in told:  # counted MiB by MiB
        assert int(told["gpu-memory"]) == pods.gpu_memory_mib
        theirs = int(told["gpu-memory"]) * 1000 / share.memory_mib
        assert theirs <= charged < theirs + 1
    elif "gpu-fraction" in told:
        assert float(told["gpu-fraction"]) * 1000 == pytest.approx(charged)
        assert share.memory_mib * float(told["gpu-fraction"]) >= pods.gpu_memory_mib - 0.01
    else:
        assert charged == 1000


# MPS

MPS: Final = Share(
    resource="nvidia.com/gpu.shared", milli=250, memory_mib=4096, count=4, isolation="memory"
)


@pytest.mark.parametrize(
    ("share", "asked", "env"),
    [
        (MPS, part(250), {}),
        (MPS, part(100), {"ACTIVE_THREAD_PERCENTAGE": "10", "PINNED_DEVICE_MEM_LIMIT": "0=1639M"}),
        (
            MPS,
            part(1, 2048),
            {"ACTIVE_THREAD_PERCENTAGE": "13", "PINNED_DEVICE_MEM_LIMIT": "0=2048M"},
        ),
        (MPS, part(100, 4096), {}),
        # Replicas that take turns: nobody would heed it.
        (replace(MPS, isolation="", memory_mib=0), part(100), {}),
    ],
)
def test_under_mps_a_pod_is_held_to_less_than_its_replica_where_it_asks_for_less(
    share: Share, asked: PodSet, env: dict[str, str]
) -> None:
    [container] = pod_template(asked, with_share(share, 16_384))["spec"]["containers"]
    found = {one["name"]: one["value"] for one in container.get("env", ())}
    assert found == {f"CUDA_MPS_{name}": value for name, value in env.items()}
    assert container["resources"]["limits"] == {"nvidia.com/gpu.shared": "1"}


# Claims


def claimed(name: str = "n1", *, divisible: bool = False, gpus: int = 2) -> NodeReport:
    claim = DeviceClaim(driver=DRIVER, device_class=DRIVER, product=A100, divisible=divisible)
    named = f"deviceclass.resource.kubernetes.io/{DRIVER}"
    devices = tuple(
        GpuDevice(
            index=n, uuid=f"{name}-{n}", model=MODEL, memory_mib=81_920, claim=claim, resource=named
        )
        for n in range(gpus)
    )
    shares = (Share(resource=DRIVER, milli=0, count=gpus, claim=claim),) if divisible else ()
    return replace(node("c", name, gpus=gpus), gpus=devices, shares=shares)


def asked_of(pods: PodSet, *reports: NodeReport) -> Any:
    """What its claim asks for; pod and template agree on its name."""
    nodes = tuple(report.node for report in reports)
    job = made(order(pods, nodes=nodes), offers_of(*reports))
    [(name, asked)] = json.loads(job["metadata"]["annotations"][TEMPLATES]).items()
    spec = job["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": name}]
    [container] = spec["containers"]
    assert container["resources"]["claims"] == [{"name": "gpu"}]
    assert not [key for key in container["resources"]["limits"] if "/" in key]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    [request] = asked["devices"]["requests"]
    assert request["name"] == "gpu"
    return request["exactly"]


def cel(*expressions: str) -> list[Any]:
    return [{"cel": {"expression": each}} for each in expressions]


def test_whole_gpus_are_claimed_by_model_and_memory() -> None:
    assert asked_of(PodSet(gpus=2), claimed()) == {"deviceClassName": DRIVER, "count": 2}
    assert asked_of(PodSet(gpus=1, gpu_models=("A100",)), claimed()) == {
        "deviceClassName": DRIVER,
        "count": 1,
        "selectors": cel(PRODUCT),
    }
    pods = PodSet(gpus=1, gpu_models=("A100",), gpu_memory_mib=40_000)
    assert asked_of(pods, claimed())["selectors"] == cel(PRODUCT, capacity(">=", "40000Mi"))


def test_a_whole_gpu_that_others_might_share_is_claimed_with_all_its_memory() -> None:
    whole = f"{capacity('>=', '81920Mi')} && {capacity('<', '81921Mi')}"
    assert asked_of(PodSet(gpus=1), claimed(divisible=True)) == {
        "deviceClassName": DRIVER,
        "count": 1,
        "selectors": cel(whole),
        "capacity": {"requests": {"memory": "81920Mi"}},
    }


@pytest.mark.parametrize(
    ("asked", "memory"),
    [(part(500), "40960Mi"), (part(1, 8192), "8192Mi"), (part(100, 40_000), "40059Mi")],
)
def test_a_part_is_claimed_by_its_memory(asked: PodSet, memory: str) -> None:
    assert asked_of(asked, claimed(divisible=True)) == {
        "deviceClassName": DRIVER,
        "count": 1,
        "capacity": {"requests": {"memory": memory}},
    }


def test_a_mig_slice_is_claimed_by_its_profile() -> None:
    by_class = DeviceClaim(driver=DRIVER, device_class="mig.nvidia.com")
    share = Share(
        resource="nvidia.com/mig-1g.10gb",
        milli=142,
        memory_mib=10_240,
        count=7,
        kind="mig",
        claim=by_class,
    )
    attribute = f'device.attributes["{DRIVER}"]'
    profile = f'"profile" in {attribute} && {attribute}.profile == "1g.10gb"'
    assert asked_of(part(142, mig_profile="1g.10gb"), with_share(share)) == {
        "deviceClassName": "mig.nvidia.com",
        "count": 1,
        "selectors": cel(profile),
    }


def test_the_commonest_of_the_chosen_nodes_says_how_gpus_are_had() -> None:
    counted = node("c", "n2", gpus=4)
    assert limits(PodSet(gpus=1, memory_mib=0, count=2), claimed(), counted) == {
        "nvidia.com/gpu": "1"
    }
    assert asked_of(PodSet(gpus=1, count=2), claimed(gpus=8), counted)["count"] == 1
    # Who asks for them by a resource gets those, and no others.
    wanted = PodSet(gpus=1, count=2, gpu_resource="nvidia.com/gpu", memory_mib=0)
    assert limits(wanted, claimed(gpus=8), counted) == {"nvidia.com/gpu": "1"}


def test_each_pod_set_of_a_job_set_has_a_template_of_its_own() -> None:
    sets = (PodSet(name="a", gpus=1), PodSet(name="b", gpus=2), PodSet(name="c"))
    job = made(order(*sets), offers_of(claimed()))
    name = job["metadata"]["name"]
    asked = json.loads(job["metadata"]["annotations"][TEMPLATES])
    assert {
        key: one["devices"]["requests"][0]["exactly"]["count"] for key, one in asked.items()
    } == {f"{name}-s0-gpu": 1, f"{name}-s1-gpu": 2}
    specs = [one["template"]["spec"]["template"]["spec"] for one in job["spec"]["replicatedJobs"]]
    named = [spec.get("resourceClaims", [{}])[0] for spec in specs]
    templates = [f"{name}-s0-gpu", f"{name}-s1-gpu", None]
    assert [claim.get("resourceClaimTemplateName") for claim in named] == templates


def test_no_model_can_say_more_in_a_selector_than_its_name() -> None:
    report = claimed()
    odd = 'A"] || true || device.driver in ["'
    claim = replace(report.gpus[0].claim or DeviceClaim(driver="", device_class=""), product=odd)
    gpus = tuple(replace(gpu, claim=claim, model=odd) for gpu in report.gpus)
    pods = PodSet(gpus=1, gpu_models=(f"={odd}",))
    [selector] = asked_of(pods, replace(report, gpus=gpus))["selectors"]
    assert selector["cel"]["expression"].endswith(f".productName in [{json.dumps(odd)}]")


# What is counted besides


def test_tpus_and_other_resources_are_counted_and_claims_that_exist_are_named() -> None:
    pods = PodSet(
        tpus=4, tpu_accelerators=("tpu-v6e-slice",), tpu_topology="2x2", memory_mib=0,
        resources={"rdma/hca": 1}, claims=("nic", "scratch"),
    )  # fmt: skip
    spec = pod_of(order(pods))
    [container] = spec["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": "4", "rdma/hca": "1"}
    assert spec["resourceClaims"] == [
        {"name": "claim-0", "resourceClaimTemplateName": "nic"},
        {"name": "claim-1", "resourceClaimTemplateName": "scratch"},
    ]
    assert container["resources"]["claims"] == [{"name": "claim-0"}, {"name": "claim-1"}]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {
            "matchExpressions": [
                {
                    "key": "cloud.google.com/gke-tpu-accelerator",
                    "operator": "In",
                    "values": ["tpu-v6e-slice"],
                },
                {"key": "cloud.google.com/gke-tpu-topology", "operator": "In", "values": ["2x2"]},
            ]
        }
    ]
    assert "podAffinity" not in spec["affinity"]


def test_the_pods_of_a_slice_are_on_nodes_of_one_pool() -> None:
    pods = PodSet(tpus=4, tpu_topology="4x4", count=4)
    affinity = pod_of(order(pods))["affinity"]["podAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "cloud.google.com/gke-nodepool"


def test_an_annotation_that_says_nonsense_names_no_templates() -> None:
    deep = "[" * 5_000 + "]" * 5_000
    for text in ("", "[]", "{", '{"a":{"b":' + deep + "}}"):
        assert decode(text) == {}


# Our own device plugin

SHARES: Final = Share(
    resource="berthmaster.io/gpu-milli", milli=1, count=2000, kind="milli", isolation="memory"
)


@pytest.mark.parametrize(
    ("asked", "milli"),
    [
        (part(251), "251"),
        (part(1, 4096), "250"),  # of 16384 MiB
        (part(400, 4096), "400"),
        (part(999, 16_384), "1000"),
    ],
)
def test_shares_are_requested_in_thousandths_of_compute_or_memory(
    asked: PodSet, milli: str
) -> None:
    assert limits(asked, with_share(SHARES, 16_384)) == {"berthmaster.io/gpu-milli": milli}


def test_whole_gpus_of_our_device_plugin_are_requested_as_1000_each() -> None:
    report = with_share(SHARES, 16_384, 16_384)
    gpus = tuple(replace(gpu, resource=SHARES.resource) for gpu in report.gpus)
    asked = limits(PodSet(gpus=2, memory_mib=0), replace(report, gpus=gpus))
    assert asked == {"berthmaster.io/gpu-milli": "2000"}
