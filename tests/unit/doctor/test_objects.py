"""What Kubernetes' objects come to, malformed ones too."""

import msgspec
import pytest

from berthmaster.doctor import facts, objects
from berthmaster.doctor.facts import ManagerConfig, State
from berthmaster.kueue.queues import ClusterQueue

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
    assert objects.manager_config({"controller_manager_config.yaml": CONFIG}, args) == (
        ManagerConfig(
            dispatcher="kueue.x-k8s.io/multikueue-dispatcher-incremental",
            step_size=1,
            gates={"WorkloadRequestUseMergePatch": False, "Other": True},
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
    found = objects.manager_config({"controller_manager_config.yaml": text}, ())
    assert found.problem.startswith(right.problem)
    assert (found.dispatcher, found.step_size, found.gates) == ("", None, {})


def decoded(kind: type[objects.O], **body: object) -> objects.O:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def test_a_cluster_queue_with_its_quota_over_flavors_and_its_checks() -> None:
    def flavor(name: str, gpus: str | int) -> dict[str, object]:
        cpu = {"name": "cpu", "nominalQuota": "100"}
        return {
            "name": name,
            "resources": [cpu, {"name": "nvidia.com/gpu", "nominalQuota": gpus}],
        }

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
        return objects.gpu_node(
            decoded(
                objects.Node,
                metadata={"name": "n", "labels": labels},
                status={"allocatable": given, "conditions": ready},
            )
        )

    assert node(gpu="8", mig="7", cpu="64") == facts.GpuNode(name="n", gpus=15, model="T4")
    assert [node(cpu="64"), node(gpu="-3"), node(gpu="many"), node()] == [None] * 4


def test_only_a_policy_over_the_status_of_workloads_guards_nominations() -> None:
    def policy(group: str, resource: str) -> bool:
        rules = [{"apiGroups": [group], "resources": [resource]}]
        return objects.guards_nominations(
            decoded(objects.Policy, spec={"matchConstraints": {"resourceRules": rules}})
        )

    assert policy("kueue.x-k8s.io", "workloads/status")
    assert not policy("kueue.x-k8s.io", "workloads")
    assert not policy("batch", "workloads/status")
    assert not objects.guards_nominations(objects.Policy())
