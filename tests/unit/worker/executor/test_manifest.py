"""The job object, field by field: what a request becomes, and what it can never become."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.jobs.rendezvous import SERVICE
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.messages.fleet import NodeGone, NodeReport, Share, Stamp
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec, SecretKey, Toleration
from berthmaster.worker.executor.attempts import attempt_of, wanted
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.cluster_protocol import Attempt, CreatePods
from berthmaster.worker.executor.core.manifest import (
    MAX_RECEIPT_CHARS,
    PODS,
    RECEIPT,
    Style,
    Unmakeable,
    document,
    object_name,
)
from tests.support.builders import node

NAME = "executor/berlin"
PRODUCT = "nvidia.com/gpu.product"
GKE = "cloud.google.com/gke-accelerator"
HIDDEN = ("hostPath", "hostNetwork", "hostPID", "hostIPC", "volumes", "hostUsers", "hostPort")


def order(*sets: PodSet, nodes: tuple[str, ...] = ("n1",), **fields: Any) -> CreatePods:
    sets = sets or (PodSet(gpus=1),)
    names = [f"{p.name}-{n}" for p in sets for n in range(p.count)]
    pods = tuple(PodBinding(pod=name, node=nodes[n % len(nodes)]) for n, name in enumerate(names))
    run = fields.pop("run", RunSpec(image="train:1"))
    attempt = fields.pop("attempt", Attempt("acme", "train", 1))
    request = JobRequest(id=attempt.id, pod_sets=sets, run=run)
    return CreatePods(attempt, NAME, pods, request, fields.pop("stop_after_s", None), **fields)


def made(one: CreatePods, offers: Offers | None = None, left_s: int | None = None) -> Any:
    return document(one, left_s, offers or Offers(), Style())


def pod_of(one: CreatePods, offers: Offers | None = None) -> Any:
    return made(one, offers)["spec"]["template"]["spec"]


def offers_of(*reports: NodeReport) -> Offers:
    offers = Offers()
    for report in reports:
        offers.take(report)
    return offers


def test_a_secret_is_the_tenants_own_whatever_the_request_calls_it() -> None:
    run = RunSpec(
        image="x", env={"Z": "1"}, secret_env={"KEY": SecretKey(name="wandb", key="api-key")}
    )
    container = pod_of(order(PodSet(gpus=1), run=run))["containers"][0]
    assert container["env"] == [
        {"name": "Z", "value": "1"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "acme.wandb", "key": "api-key"}}},
    ]


def test_the_object_keeps_the_receipt_of_its_placement() -> None:
    assert made(order(receipt="signed"))["metadata"]["annotations"][RECEIPT] == "signed"
    for none in ("", "x" * (MAX_RECEIPT_CHARS + 1)):  # the API server takes 256 KiB of annotations
        assert RECEIPT not in made(order(receipt=none))["metadata"]["annotations"]


def test_one_pod_set_is_a_job_whose_every_field_is_ours() -> None:
    run = RunSpec(
        image="train:1", command=("python",), args=("-m", "train"), env={"B": "2", "A": "1"}
    )
    pods = PodSet(
        count=2,
        cpu_milli=1500,
        memory_mib=2048,
        gpus=4,
        node_labels={"zone": "a"},
        tolerations=(Toleration(key="spot", operator="Exists", effect="NoSchedule"),),
    )
    target = Target(namespace="team-a", service_account="runner")
    known = {
        labels.TENANT: "acme",
        labels.WORKLOAD: "train",
        labels.ATTEMPT: "1",
        labels.EXECUTOR: labels.value(NAME),
    }
    told = {labels.EXECUTOR: NAME}
    job = made(order(pods, run=run, target=target, nodes=("n1", "n2")), left_s=60)
    [container] = job["spec"]["template"]["spec"]["containers"]
    own = {"A", "B"}  # the others are rendezvous.py's
    container["env"] = [each for each in container["env"] if each["name"] in own]
    service = f"g-{object_name(Attempt('acme', 'train', 1), JOB)}"
    assert job == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": object_name(Attempt("acme", "train", 1), JOB),
            "namespace": "team-a",
            "labels": known,
            "annotations": told | {PODS: "main:2", SERVICE: service},
            "finalizers": [labels.FINALIZER],
        },
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": 60,
            "template": {
                "metadata": {"labels": known | {labels.POD_SET: "main"}, "annotations": told},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [
                        {
                            "name": "main",
                            "image": "train:1",
                            "command": ["python"],
                            "args": ["-m", "train"],
                            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                            "resources": {
                                "requests": {
                                    "cpu": "1500m",
                                    "memory": "2048Mi",
                                    "nvidia.com/gpu": "4",
                                },
                                "limits": {"memory": "2048Mi", "nvidia.com/gpu": "4"},
                            },
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "privileged": False,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "enableServiceLinks": False,
                    "subdomain": service,
                    "automountServiceAccountToken": True,
                    "serviceAccountName": "runner",
                    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
                    "nodeSelector": {"zone": "a"},
                    "affinity": {
                        "nodeAffinity": {
                            "preferredDuringSchedulingIgnoredDuringExecution": [
                                {
                                    "weight": 100,
                                    "preference": {
                                        "matchExpressions": [
                                            {
                                                "key": "kubernetes.io/hostname",
                                                "operator": "In",
                                                "values": ["n1", "n2"],
                                            }
                                        ]
                                    },
                                }
                            ]
                        }
                    },
                },
            },
        },
    }


texts = st.text(max_size=20)


@given(
    st.builds(RunSpec, image=st.just("x"), command=st.tuples(texts), args=st.tuples(texts),
              env=st.dictionaries(texts, texts, max_size=3)),
    st.builds(PodSet, gpus=st.integers(0, 8), node_labels=st.dictionaries(texts, texts, max_size=2),
              gpu_models=st.tuples(texts)),
)  # fmt: skip
def test_whatever_people_write_never_reaches_the_host(run: RunSpec, pods: PodSet) -> None:
    spec = pod_of(order(pods, run=run))
    assert not set(HIDDEN) & set(spec)
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumeMounts" not in container
    assert spec["automountServiceAccountToken"] is False
    json.dumps(spec)


def test_what_the_clusters_queue_starts_is_made_suspended_with_its_label() -> None:
    target = Target(via="worker", namespace="team", local_queue="gpu")
    job = made(order(target=target))
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
    with pytest.raises(Unmakeable, match="deadline cannot be kept"):
        made(order(target=target, stop_after_s=60.0, asked_at_s=0.0), left_s=60)


def test_several_pod_sets_are_a_job_set_with_short_names() -> None:
    sets = tuple(PodSet(name=f"set-{n}", count=n + 1, gpus=0) for n in range(12))
    job_set = made(order(*sets), left_s=60)
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert job_set["metadata"]["annotations"][PODS] == " ".join(
        f"set-{n}:{n + 1}" for n in range(12)
    )
    for number, each in enumerate(job_set["spec"]["replicatedJobs"]):
        spec = each["template"]["spec"]
        assert (each["name"], each["replicas"]) == (f"s{number}", 1)
        assert (spec["completions"], spec["activeDeadlineSeconds"]) == (number + 1, 60)
        # A Job of a JobSet must not look like one of ours: only its pods do.
        assert "metadata" not in each["template"]
        assert spec["template"]["metadata"]["labels"][labels.POD_SET] == f"set-{number}"


def test_without_an_image_nothing_is_made() -> None:
    with pytest.raises(Unmakeable, match=r"run\.image is missing"):
        made(order(run=RunSpec()))


# Names


@given(
    st.text(min_size=1, max_size=80),
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True),
    st.integers(1, 99_999),
    st.sampled_from([JOB, JOB_SET]),
)
def test_every_name_is_one_that_kubernetes_takes(
    tenant: str, workload: str, number: int, kind: Any
) -> None:
    attempt = Attempt(tenant, workload, number)
    name = object_name(attempt, kind)
    assert len(name) <= kind.max_name_chars
    assert labels.value(name) == name
    assert name == object_name(attempt, kind)
    others = (
        attempt._replace(tenant=f"{tenant}!"),
        attempt._replace(number=number + 1),
        attempt._replace(id=f"{workload}x"),
    )
    assert name not in {object_name(other, kind) for other in others}


def test_short_ids_are_seen_whole_and_long_ones_are_told_apart() -> None:
    assert object_name(Attempt("acme", "train", 3), JOB).startswith("train-3-")
    long = "x" * 51
    one, two = (object_name(Attempt("acme", long + last, 1), JOB_SET) for last in "ab")
    assert one != two
    assert len(one) == JOB_SET.max_name_chars


@given(st.text(min_size=1, max_size=100), st.integers(1, 9999))
def test_an_object_says_whose_it_is_whatever_the_tenant_is_called(tenant: str, number: int) -> None:
    attempt = Attempt(tenant, "train", number)
    metadata = made(order(attempt=attempt))["metadata"]
    seen = JobObject(
        metadata=Metadata(labels=metadata["labels"], annotations=metadata["annotations"])
    )
    assert all(labels.value(value) == value for value in metadata["labels"].values())
    assert attempt_of(seen) == (attempt, NAME)


def test_an_object_that_says_nonsense_is_nobodys() -> None:
    good = {labels.TENANT: "a", labels.WORKLOAD: "w", labels.ATTEMPT: "1", labels.EXECUTOR: "e"}
    for key, value in ((labels.ATTEMPT, "x"), (labels.ATTEMPT, "1" * 10), (labels.TENANT, "")):
        job = JobObject(metadata=Metadata(labels=good | {key: value}))
        assert attempt_of(job) is None
    assert wanted("main:2 ps:10") == {"main": 2, "ps": 10}
    for text in ("", "main", "main:", ":2", "main:x", "main:-1", "main:9999999"):
        assert wanted(text) == {}


# What nodes offer


def test_a_model_is_asked_for_by_the_labels_of_the_nodes_that_have_it() -> None:
    offers = offers_of(
        node("c", "n1", model="Tesla-T4", labels={PRODUCT: "Tesla-T4"}),
        node("c", "n2", model="Tesla-T4", labels={PRODUCT: "Tesla-T4-SHARED"}),
        node("c", "n3", model="Tesla-T4", labels={GKE: "nvidia-tesla-t4"}),
        node("c", "n4", model="Tesla-T4", labels={}),
        node("c", "n5", model="NVIDIA-L4", labels={PRODUCT: "NVIDIA-L4"}),
    )
    affinity = pod_of(order(PodSet(gpus=1, gpu_models=("Tesla-T4",))), offers)["affinity"]
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["matchExpressions"][0] for term in required["nodeSelectorTerms"]] == [
        {"key": GKE, "operator": "In", "values": ["nvidia-tesla-t4"]},
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n4"]},
        {"key": PRODUCT, "operator": "In", "values": ["Tesla-T4", "Tesla-T4-SHARED"]},
    ]


def test_memory_is_asked_for_by_the_models_that_have_enough() -> None:
    small = node("c", "n1", model="T4", labels={PRODUCT: "T4"})
    large = node("c", "n2", model="A100", memory_mib=81_920, labels={PRODUCT: "A100"})
    offers = offers_of(small, large)
    assert offers.models(PodSet(gpus=1, gpu_memory_mib=40_000)) == {PRODUCT: ["A100"]}
    assert offers.models(PodSet(gpus=1, gpu_models=("H100",))) == {PRODUCT: ["H100"]}
    offers.take(
        NodeGone(cluster="c", node="n2", stamp=Stamp(epoch=1, counter=2), observed_at_s=0.0)
    )
    assert offers.models(PodSet(gpus=1, gpu_memory_mib=40_000)) == {}


MIG = Share(resource="nvidia.com/mig-3g.20gb", milli=428, memory_mib=20_480, count=2, kind="mig")
HAMI = Share(resource="nvidia.com/gpucores", milli=10, count=100, kind="hami")
KAI = Share(resource="gpu-fraction", milli=10, count=100, kind="kai")


def part(share: Share, **fields: Any) -> Any:
    pods = PodSet(gpus=1, memory_mib=0, **({"gpu_milli": 250} | fields))
    return made(order(pods), offers_of(replace(node("c", "n1"), shares=(share,))))["spec"][
        "template"
    ]


def test_a_part_of_a_gpu_is_asked_for_as_its_node_hands_it_out() -> None:
    [container] = part(MIG)["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/mig-3g.20gb": "1"}
    assert container["resources"]["requests"]["nvidia.com/mig-3g.20gb"] == "1"
    [container] = part(HAMI, gpu_memory_mib=4096)["spec"]["containers"]
    assert container["resources"]["limits"] == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpucores": "25",
        "nvidia.com/gpumem-percentage": "25",
    }
    template = part(KAI)
    assert template["metadata"]["annotations"]["gpu-fraction"] == "0.25"
    assert template["metadata"]["labels"]["kai.scheduler/queue"] == "default-queue"
    assert template["spec"]["schedulerName"] == "kai-scheduler"
    assert template["spec"]["containers"][0]["resources"]["limits"] == {}


def test_pods_name_a_scheduler_where_one_is_set_but_for_those_that_others_share_gpus_for() -> None:
    own = Style(scheduler="berthmaster")

    def scheduler_of(one: CreatePods, style: Style, share: Share | None = None) -> Any:
        offers = offers_of(replace(node("c", "n1"), shares=() if share is None else (share,)))
        spec: Any = document(one, None, offers, style)["spec"]["template"]["spec"]
        return spec.get("schedulerName")

    shared = order(PodSet(gpus=1, gpu_milli=250))
    assert scheduler_of(order(), Style()) is None
    assert scheduler_of(order(), own) == "berthmaster"
    assert scheduler_of(order(PodSet(gpus=0)), own) == "berthmaster"
    assert scheduler_of(shared, own, MIG) == "berthmaster"
    assert scheduler_of(shared, own, KAI) == "kai-scheduler"
    assert scheduler_of(shared, own, HAMI) is None  # its admission names its own


def test_pods_of_kais_scheduler_are_of_its_queue_whole_gpus_too_and_say_who_may_be_ended() -> None:
    style = Style(scheduler="kai-scheduler", kai_queue="ml")

    def told(pods: PodSet, *, preemptible: bool = True) -> dict[str, str]:
        one = order(pods)
        one = one._replace(request=replace(one.request, preemptible=preemptible))
        made = document(one, None, offers_of(replace(node("c", "n1"), shares=(KAI,))), style)
        labels = made["spec"]["template"]["metadata"]["labels"]
        return {key: text for key, text in labels.items() if key.startswith("kai.scheduler/")}

    for pods in (PodSet(gpus=2), PodSet(gpus=0), PodSet(gpus=1, gpu_milli=250)):
        assert told(pods) == {"kai.scheduler/queue": "ml"}
        assert told(pods, preemptible=False) == {
            "kai.scheduler/queue": "ml",
            "kai.scheduler/preemptibility": "non-preemptible",
        }
    plain = document(order(), None, Offers(), Style())["spec"]["template"]["metadata"]["labels"]
    assert "kai.scheduler/queue" not in plain


def test_a_part_that_no_chosen_node_offers_is_not_made() -> None:
    with pytest.raises(Unmakeable, match="no node of pod set main offers such a part"):
        made(order(PodSet(gpus=1, gpu_milli=250)), offers_of(node("c", "n1")))


def test_whole_gpus_of_another_maker_are_another_resource() -> None:
    amd = node("c", "n1", resource="amd.com/gpu")
    [container] = pod_of(order(PodSet(gpus=2, memory_mib=0)), offers_of(amd))["containers"]
    assert container["resources"]["limits"] == {"amd.com/gpu": "2"}


def of_two_makers(*, amd: int = 2) -> NodeReport:
    """A node with two A100s and some MI300Xs, and labels of both makers."""
    labels = {"amd.com/gpu.product-name": "MI300X", "nvidia.com/gpu.product": "A100"}
    plain = node("c", "n1", gpus=2, model="A100", labels=labels)
    other = node("c", "n1", gpus=amd, model="MI300X", resource="amd.com/gpu").gpus
    return replace(
        plain, gpus=(*plain.gpus, *(replace(gpu, index=64 + gpu.index) for gpu in other))
    )


@pytest.mark.parametrize(
    ("pods", "gpus", "limits"),
    [
        (PodSet(gpus=1, memory_mib=0, gpu_models=("A100",)), (0,), {"nvidia.com/gpu": "1"}),
        (PodSet(gpus=2, memory_mib=0, gpu_models=("MI300X",)), (64, 65), {"amd.com/gpu": "2"}),
        (PodSet(gpus=1, memory_mib=0, gpu_resource="amd.com/gpu"), (), {"amd.com/gpu": "1"}),
        # Where the request names neither, the GPUs that were chosen do.
        (PodSet(gpus=1, memory_mib=0), (1,), {"nvidia.com/gpu": "1"}),
        (PodSet(gpus=1, memory_mib=0), (65,), {"amd.com/gpu": "1"}),
    ],
)
def test_a_pod_asks_for_the_resource_of_the_gpus_that_were_chosen(
    pods: PodSet, gpus: tuple[int, ...], limits: dict[str, str]
) -> None:
    placed = order(pods)
    placed = placed._replace(pods=tuple(replace(each, gpus=gpus) for each in placed.pods))
    [container] = pod_of(placed, offers_of(of_two_makers()))["containers"]
    assert container["resources"]["limits"] == limits


def test_a_pod_for_gpus_that_are_gone_is_not_made() -> None:
    for pods in (
        PodSet(gpus=1, gpu_models=("MI300X",)),
        PodSet(gpus=1, gpu_resource="amd.com/gpu"),
    ):
        with pytest.raises(Unmakeable, match=r"have no such GPUs: (MI300X|amd\.com/gpu)"):
            made(order(pods), offers_of(of_two_makers(amd=0)))


def test_a_model_is_asked_for_by_its_own_makers_label() -> None:
    pods = PodSet(gpus=1, gpu_models=("MI300X",))
    spec = pod_of(order(pods), offers_of(of_two_makers()))
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    [expression] = term["matchExpressions"]
    assert expression["key"] == "amd.com/gpu.product-name"
    assert expression["values"] == ["MI300X"]


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_pod_sees_the_gpus_that_it_asked_for_whatever_its_environment_says(gpus: int) -> None:
    """Requests that say so are refused; an older one may be in the log."""
    run = RunSpec(
        image="cuda",
        env={"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DISABLE_CONTROL": "true", "A": "1"},
        secret_env={"CUDA_DEVICE_MEMORY_LIMIT_0": SecretKey(name="s", key="k")},
    )
    [container] = pod_of(order(PodSet(gpus=gpus), run=run))["containers"]
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert container["env"] == [{"name": "A", "value": "1"}, *([] if gpus else [void])]


def test_memory_is_limited_where_it_is_asked_for() -> None:
    for memory_mib, limits in ((512, {"memory": "512Mi"}), (0, {})):
        [container] = pod_of(order(PodSet(memory_mib=memory_mib)))["containers"]
        assert container["resources"]["limits"] == limits


@pytest.mark.parametrize("asked", [False, True])
def test_pods_may_not_be_root_where_the_cluster_asks_for_it(asked: bool) -> None:
    style = Style(run_as_non_root=asked)
    spec: Any = document(order(), None, Offers(), style)["spec"]["template"]["spec"]
    assert spec["securityContext"].get("runAsNonRoot", False) is asked
