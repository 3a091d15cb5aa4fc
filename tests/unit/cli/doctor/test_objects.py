"""What Kubernetes' objects come to, malformed ones too."""

from pathlib import Path

import msgspec
import pytest

from berthmaster.cli.doctor import facts, objects
from berthmaster.cli.doctor.facts import ManagerConfig, State
from berthmaster.cli.doctor.gates import find_argument
from berthmaster.lab.controlplane.api import documents
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.names import MULTIKUEUE, QUEUE_LABEL
from berthmaster.lib.kueue.queues import ClusterQueue, LocalQueue
from berthmaster.lib.kueue.workloads import Workload

CONFIG = """
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
multiKueue:
  dispatcherName: kueue.x-k8s.io/multikueue-dispatcher-incremental
  incrementalDispatcherConfig: {stepSize: 1}
featureGates: {WorkloadRequestUseMergePatch: true, Odd: "yes"}
"""


def test_the_managers_configuration_and_arguments_are_read_together() -> None:
    args = ("--config=x", "--feature-gates=WorkloadRequestUseMergePatch=false,Other=true")
    argument = find_argument(0, (), args)
    assert objects.manager_config({"controller_manager_config.yaml": CONFIG}, argument) == (
        ManagerConfig(
            dispatcher="kueue.x-k8s.io/multikueue-dispatcher-incremental",
            step_size=1,
            gates={"WorkloadRequestUseMergePatch": False, "Other": True},
            file_gates={"WorkloadRequestUseMergePatch": True},
            keeps_finished=True,
        )
    )


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("multiKueue: {}", ManagerConfig()),
        ("multiKueue: 7\nfeatureGates: [a]", ManagerConfig()),
        ("a: [", ManagerConfig(problem="controller_manager_config.yaml is no YAML")),
        ("", ManagerConfig(problem="there is no controller_manager_config.yaml in it")),
    ],
)
def test_a_configuration_may_hold_anything(text: str, right: ManagerConfig) -> None:
    found = objects.manager_config({"controller_manager_config.yaml": text}, None)
    assert found.problem.startswith(right.problem)
    assert (found.dispatcher, found.step_size, found.gates) == ("", None, {})


def decoded(kind: type[objects.O], **body: object) -> objects.O:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def test_a_cluster_queue_with_its_quota_over_flavors_and_its_checks() -> None:
    def flavor(name: str, gpus: str | int) -> dict[str, object]:
        cpu = {"name": "cpu", "nominalQuota": "100"}
        return {"name": name, "resources": [cpu, {"name": "nvidia.com/gpu", "nominalQuota": gpus}]}

    queue = decoded(
        ClusterQueue,
        metadata={"name": "gpus"},
        spec={
            "stopPolicy": "Hold",
            "admissionChecksStrategy": {"admissionChecks": [{"name": "mk"}]},
            "resourceGroups": [{"flavors": [flavor("a", 8), flavor("b", "4")]}],
        },
        status={
            "conditions": [{"type": "Active", "status": "False", "reason": "S", "message": "m"}]
        },
    )
    assert objects.cluster_queue(queue) == facts.ClusterQueue(
        name="gpus",
        checks=("mk",),
        state=State(active=False, reason="S", message="m"),
        stopped="Hold",
        gpu_quota={"nvidia.com/gpu": 12},
    )
    assert objects.cluster_queue(ClusterQueue()) == facts.ClusterQueue(name="")


def test_nodes_with_absurd_amounts_offer_nothing() -> None:
    def node(**allocatable: str) -> facts.GpuNode | None:
        names = {"gpu": "nvidia.com/gpu", "mig": "nvidia.com/mig-1g.5gb", "cpu": "cpu"}
        given = {names[name]: text for name, text in allocatable.items()}
        ready = [{"type": "Ready", "status": "True"}]
        labels = {"nvidia.com/gpu.product": "T4"}
        found = objects.gpu_nodes(
            decoded(
                objects.Node,
                metadata={"name": "n", "labels": labels},
                status={"allocatable": given, "conditions": ready},
            )
        )
        return found[0] if found else None

    assert node(gpu="8", mig="7", cpu="64") == facts.GpuNode(
        name="n", gpus=15, model="T4", sharing="MIG"
    )
    assert [node(cpu="64"), node(gpu="-3"), node(gpu="many"), node()] == [None] * 4


CLEARS = [{"patchType": "JSONPatch", "jsonPatch": {"expression": "/status/nominatedClusterNames"}}]


def policy(
    group: str = "kueue.x-k8s.io",
    resource: str = "workloads/status",
    operation: str = "UPDATE",
    mutations: object = CLEARS,
) -> objects.Policy:
    rules = [{"apiGroups": [group], "resources": [resource], "operations": [operation]}]
    spec = {"matchConstraints": {"resourceRules": rules}, "mutations": mutations}
    return decoded(objects.Policy, metadata={"name": "p"}, spec=spec)


def test_only_a_policy_that_changes_nominations_on_the_status_of_workloads_clears_them() -> None:
    applied = [{"applyConfiguration": {"expression": "Object{nominatedClusterNames: []}"}}]
    for right in (
        policy(),
        policy(group="*", resource="*/*", operation="*"),
        policy(mutations=applied),
    ):
        assert objects.clears_nominations(right)
    other = [{"jsonPatch": {"expression": "/metadata/labels"}}]
    for wrong in (
        policy(resource="workloads"),
        policy(group="batch"),
        policy(operation="CREATE"),
        policy(mutations=other),
        policy(mutations=[]),
        objects.Policy(),
    ):
        assert not objects.clears_nominations(wrong)


def test_a_policy_works_for_whom_its_bindings_let_it() -> None:
    def binding(name: str, **narrowed: object) -> objects.PolicyBinding:
        spec = {"policyName": "p", **({"matchResources": narrowed} if narrowed else {})}
        return decoded(objects.PolicyBinding, metadata={"name": name}, spec=spec)

    def why(*bindings: objects.PolicyBinding) -> str:
        [found] = objects.find_policies(
            [policy(), policy(group="batch")], bindings, objects.clears_nominations
        )
        return found.idle

    some = binding("some", namespaceSelector={"matchLabels": {"team": "ml"}})
    assert why() == "no MutatingAdmissionPolicyBinding names it"
    assert why(some) == "its binding some leaves objects out (spec.matchResources)"
    assert why(some, binding("all")) == ""
    assert why(binding("all", namespaceSelector={}, matchPolicy="Equivalent")) == ""


def test_the_policy_of_ours_is_one_that_clears_nominations() -> None:
    file = Path(__file__).parents[4] / "deploy" / "chart" / "nominations.yaml"
    there = [msgspec.json.encode(one) for one in documents(file)]
    policies = [msgspec.json.decode(there[0], type=objects.Policy)]
    bindings = [msgspec.json.decode(there[1], type=objects.PolicyBinding)]
    assert objects.find_policies(policies, bindings, objects.clears_nominations) == (
        facts.FoundPolicy(name="berthmaster-clearing"),
    )


@pytest.mark.parametrize(
    ("hook", "pods", "idle", "state"),
    [
        ({}, None, "has no caBundle: the pod berth-accounts, or cert-manager, writes it", ""),
        ({"caBundle": "UEVN"}, None, "has no pods: no Deployment sys/berth-clearing", ""),
        ({"caBundle": "UEVN"}, 0, "none of its 2 pods is ready", ", 0 of 2 pods ready"),
        ({"caBundle": "UEVN"}, 1, "", ", 1 of 2 pods ready"),
    ],
)
def test_a_clearing_webhook_works_with_an_authority_and_a_pod(
    hook: dict[str, object], pods: int | None, idle: str, state: str
) -> None:
    client = {"service": {"namespace": "sys", "name": "berth-clearing"}, **hook}
    there = [
        decoded(
            objects.WebhookConfiguration,
            metadata={"name": name},
            webhooks=[{"name": each, "clientConfig": client, "failurePolicy": "Ignore"}],
        )
        for name, each in (("kueue", "mworkload.kb.io"), ("ours", "clearing.berthmaster.io"))
    ]
    found = objects.find_clearing_webhook(there)
    assert found is not None
    deployment = None
    if pods is not None:
        status = {"readyReplicas": pods}
        deployment = decoded(objects.Deployment, spec={"replicas": 2}, status=status)
    assert objects.clearing_webhook(*found, deployment) == facts.FoundPolicy(
        name="ours",
        kind="clearing webhook",
        idle=idle,
        state=f"failurePolicy Ignore{state}",
        ignores_failure=True,
    )
    assert objects.find_clearing_webhook(there[:1]) is None


def test_only_quota_and_an_eviction_without_an_admission_are_poison() -> None:
    def workload(*true: str, admission: bool = False) -> Workload:
        conditions = [{"type": each, "status": "True"} for each in true]
        status = {"conditions": conditions, **({"admission": {}} if admission else {})}
        owner = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
        meta = {"namespace": "ml", "name": "w", "ownerReferences": [owner]}
        return decoded(Workload, metadata=meta, status=status)

    healthy = [
        workload(),
        workload("QuotaReserved"),
        workload("Evicted"),
        workload("QuotaReserved", "Evicted", admission=True),
        workload("QuotaReserved", "Evicted", "Finished"),
    ]
    bad = workload("QuotaReserved", "Evicted")
    assert objects.poisoned([*healthy, bad]) == (
        facts.Poisoned(namespace="ml", name="w", owner=("Job", "train")),
    )


@pytest.mark.parametrize(
    ("rules", "cohort", "right"),
    [
        (None, "", False),
        ({}, "all", False),
        ({"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}, "all", False),
        ({"withinClusterQueue": "LowerPriority"}, "", True),
        ({"reclaimWithinCohort": "Any"}, "all", True),
        ({"reclaimWithinCohort": "Any"}, "", False),
        ({"borrowWithinCohort": {"policy": "LowerPriority"}}, "all", True),
        ({"borrowWithinCohort": {"policy": "Never"}}, "all", False),
        ({"borrowWithinCohort": None, "withinClusterQueue": None}, "all", False),
    ],
)
def test_a_queue_preempts_by_any_of_its_rules(rules: object, cohort: str, right: bool) -> None:
    queue = decoded(ClusterQueue, spec={"preemption": rules, "cohortName": cohort})
    assert objects.cluster_queue(queue).preempts == right


def test_a_node_s_vendor_is_that_of_what_it_offers_and_its_model_by_that_vendor_s_label() -> None:
    def node(resource: str, **labels: str) -> facts.GpuNode | None:
        names = {key.replace("__", "/").replace("_", "-"): text for key, text in labels.items()}
        found = objects.gpu_nodes(
            decoded(
                objects.Node,
                metadata={"name": "n", "labels": names},
                status={"allocatable": {resource: "4", "cpu": "8"}},
            )
        )
        return found[0] if found else None

    amd = node("amd.com/gpu", **{"amd.com__gpu.product_name": "Instinct"})
    assert amd == facts.GpuNode(name="n", gpus=4, ready=False, model="Instinct", vendor="amd")
    tpu = node("google.com/tpu", **{"cloud.google.com__gke_tpu_accelerator": "tpu-v5e"})
    assert tpu == facts.GpuNode(name="n", gpus=4, ready=False, model="tpu-v5e", vendor="tpu")
    bare = node("google.com/tpu", **{"nvidia.com__gpu.product": "T4"})
    assert bare == facts.GpuNode(name="n", gpus=4, ready=False, vendor="tpu")
    cloud = node("nvidia.com/gpu", **{"cloud.google.com__gke_accelerator": "nvidia-l4"})
    assert cloud == facts.GpuNode(name="n", gpus=4, ready=False, model="nvidia-l4")


def test_jobs_of_multikueue_s_in_no_queue_of_its_own_are_stranded() -> None:
    def job(name: str, queue: str = "", *, ended: bool = False, by: str = MULTIKUEUE) -> HubJob:
        labels = {QUEUE_LABEL: queue} if queue else {}
        status = {"conditions": [{"type": "Failed", "status": "True"}]} if ended else {}
        return decoded(
            HubJob,
            metadata={"namespace": "ml", "name": name, "labels": labels},
            spec={"managedBy": by, "suspend": True},
            status=status,
        )

    def queue(name: str, leads_to: str) -> LocalQueue:
        return decoded(
            LocalQueue, metadata={"namespace": "ml", "name": name}, spec={"clusterQueue": leads_to}
        )

    jobs = [
        job("right", "main"),
        job("wrong", "web"),
        job("nowhere", "no-such"),
        job("none"),
        job("over", "web", ended=True),
        job("plain", "web", by=""),
    ]
    found = objects.stranded(jobs, [queue("main", "gpus"), queue("web", "web")], {"gpus"})
    assert [(one.name, one.queue) for one in found] == [
        ("wrong", "web"),
        ("nowhere", "no-such"),
        ("none", ""),
    ]
