"""What a finding says is to be done: exact, for this cluster alone, fit to be typed as it is."""

import subprocess
from collections.abc import Iterator

import pytest

from berthmaster.cli.doctor.facts import (
    ClusterQueue,
    GateArgument,
    GpuNode,
    LocalQueue,
    ManagerConfig,
    MultiKueueCluster,
    Poisoned,
    Right,
    State,
    StrandedJob,
    Without,
)
from berthmaster.cli.doctor.findings import Finding, Report
from berthmaster.lib.kueue.names import MULTIKUEUE
from tests.unit.cli.doctor.surveys import ON, finding, of_hub, of_worker, wrong

WORKER = "kubectl --kubeconfig /k/b.yaml"
HUB = "kubectl --context kind-hub"
HELM = "helm --kubeconfig /k/b.yaml -n sys"
INSTALL = (
    f"{HELM} upgrade --install --create-namespace --reset-then-reuse-values berth-agent "
    "deploy/chart --set role=worker"
)
IN_ML = Right(verb="create", group="batch", resource="jobs", namespace="ml", why="to run jobs")
NODES = Right(verb="list", group="", resource="nodes", why="to report what is free")


def test_the_executor_s_right_is_a_rolebinding_in_the_namespace_and_not_the_agent_again() -> None:
    two = Right(verb="get", group="batch", resource="jobs", namespace="web")
    found = finding(of_worker(missing_rights=(IN_ML, two)), "may not")
    bind = (
        "create rolebinding berthmaster-executor --clusterrole=berthmaster-executor "
        "--serviceaccount=sys:berth-agent --dry-run=client -o yaml"
    )
    assert found.change.splitlines() == [
        f"{WORKER} -n ml {bind} | {WORKER} apply -f -",
        f"{WORKER} -n web {bind} | {WORKER} apply -f -",
    ]
    assert found.undo.splitlines() == [
        f"{WORKER} -n ml delete rolebinding berthmaster-executor",
        f"{WORKER} -n web delete rolebinding berthmaster-executor",
    ]


def test_missing_rights_of_the_inventory_are_cured_by_the_release() -> None:
    found = finding(of_worker(missing_rights=(NODES,)), "may not")
    assert (found.change, found.undo) == (INSTALL, "")


def test_where_there_is_no_agent_it_is_the_agent_and_then_its_bindings() -> None:
    found = finding(of_worker(missing_rights=(NODES, IN_ML), installed=False), "may not")
    assert found.what.startswith("Berthmaster is not installed: ")
    assert "docs/operators/install.md has the steps" in found.means
    first, second = found.change.splitlines()
    assert first == INSTALL.replace("deploy/chart", "deploy/chart -f deploy/run/images.yaml")
    assert second.startswith(f"{WORKER} -n ml create rolebinding berthmaster-executor")
    assert found.undo.splitlines()[-1] == f"{HELM} uninstall berth-agent"


def test_a_person_s_own_credentials_are_not_cured_by_a_second_hub_or_agent() -> None:
    found = finding(of_worker(missing_rights=(IN_ML,), as_self=True), "may not")
    assert (found.level, found.change, found.undo) == ("blocks", "", "")
    assert "Use a kubeconfig that may" in found.means
    assert "--self" in finding(of_worker(missing_rights=(IN_ML,)), "may not").means


# ---- Jobs that nobody runs


def stranded(**changed: object) -> StrandedJob:
    return StrandedJob(**{"namespace": "ml", "name": "train", "queue": "web", **changed})  # type: ignore[arg-type]


def test_a_job_left_to_multikueue_in_a_queue_without_its_check_is_told_and_moved() -> None:
    report = of_hub(stranded=(stranded(), stranded(name="more", queue="", suspended=True)))
    what = f"Jobs of ml with managedBy {MULTIKUEUE} are in "
    assert wrong(report) == [
        ("warning", "hub", what + "no queue: more"),
        ("warning", "hub", what + "queue web, which does not lead to MultiKueue: train"),
    ]
    found = finding(report, "queue web")
    label = f"{HUB} -n ml label --overwrite job train kueue.x-k8s.io/queue-name"
    assert (found.change, found.undo) == (f"{label}=main", f"{label}=web")
    assert finding(report, "no queue").undo.endswith("job more kueue.x-k8s.io/queue-name-")


def test_where_it_should_go_is_only_said_if_that_is_known() -> None:
    other = finding(of_hub(stranded=(stranded(namespace="x"),)), "managedBy")
    assert other.change == "# LocalQueues of x that lead to MultiKueue: none; make one"
    gone = finding(of_hub(stranded=(stranded(suspended=False),)), "managedBy")
    assert gone.change == "# train is not suspended any more: delete it and submit it to main"


# ---- whose GPUs they are


@pytest.mark.parametrize(
    ("vendor", "what", "label"),
    [
        ("nvidia", "GPU", "nvidia.com/gpu.product"),
        ("amd", "GPU", "amd.com/gpu.product-name"),
        ("tpu", "TPU", "cloud.google.com/gke-tpu-accelerator"),
    ],
)
def test_node_without_model_names_vendor_label(vendor: str, what: str, label: str) -> None:
    nodes = tuple(GpuNode(name=f"n{n}", gpus=4, vendor=vendor) for n in range(2))  # type: ignore[arg-type]
    found = finding(of_worker(gpu_nodes=nodes), f"no label says which {what}: n0, n1")
    assert found.change.splitlines()[1] == f"{WORKER} label node n0 n1 {label}=MODEL"
    assert found.undo == f"{WORKER} label node n0 n1 {label}-"


# ---- what is missing on purpose


def test_a_queue_that_a_worker_lacks_on_purpose_is_no_warning() -> None:
    for text in ("berlin:ml/main", "berlin:ml/*"):
        report = of_worker(local_queues=(), without=(Without.parse(text),))
        assert [level for level, _, _ in wrong(report)] == ["blocks"]  # nobody else can take it
        said = finding(report, "jobs of ml/main do not run here, as was said")
        assert (said.level, said.where) == ("ok", "berlin")
    elsewhere = of_worker(local_queues=(), without=(Without.parse("rome:ml/main"),))
    assert [level for level, _, _ in wrong(elsewhere)] == ["blocks", "warning"]


def test_a_queue_that_was_said_to_be_left_out_and_is_there_is_told() -> None:
    report = of_worker(without=(Without.parse("berlin:ml/main"),))
    [(level, _, what)] = wrong(report)
    assert (level, what) == (
        "warning",
        "LocalQueue ml/main can admit GPU jobs, and was said to be left out here",
    )


@pytest.mark.parametrize(
    "text", ["", "berlin", "berlin:ml", "berlin:ml/", ":ml/main", "b:/q", "b:n/a/b"]
)
def test_what_is_left_out_names_worker_namespace_and_queue(text: str) -> None:
    with pytest.raises(ValueError, match="is not WORKER:NAMESPACE/QUEUE"):
        Without.parse(text)


# ---- queues that are to be made


def test_a_queue_that_is_missing_is_made_with_its_namespace_and_leads_where_it_can() -> None:
    found = finding(of_worker(namespaces=frozenset()), "there is no namespace ml")
    lines = found.change.splitlines()
    assert lines[0] == f"{WORKER} create namespace ml"
    assert lines[1] == f"{WORKER} apply -f - <<EOF"
    assert "spec: {clusterQueue: gpus}   # there are: gpus" in lines
    two = tuple(
        ClusterQueue(name=name, state=ON, gpu_quota={"nvidia.com/gpu": 8}) for name in ("a", "b")
    )
    unsure = finding(of_worker(local_queues=(), cluster_queues=two), "no LocalQueue main")
    assert "spec: {clusterQueue: NAME}   # there are: a, b" in unsure.change


def reports() -> Iterator[Report]:
    """Every finding with something to do, more or less."""
    manager = ManagerConfig(dispatcher="x/y")
    for mode in ("observe", "dispatch"):
        for config in (manager, ManagerConfig(), ManagerConfig(problem="p"), None):
            yield of_hub(mode, manager=config, clearing=())
    inactive = State(active=False, reason="x")
    cluster = MultiKueueCluster(name="rome", fleet_name="rome", state=inactive)
    yield of_hub(
        clusters=(cluster,),
        configs={"all": ("rome", "oslo")},
        skew_s=99.0,
        stranded=(stranded(), stranded(suspended=False, name="b")),
        poisoned=(Poisoned(namespace="ml", name="w"),),
        workload_webhook="v",
        missing_rights=(NODES,),
    )
    yield of_hub(checks=(), cluster_queues=(), kueue_versions=frozenset())
    yield of_hub(checks=(), cluster_queues=())
    yield of_worker(gpu_nodes=(), job_kinds=frozenset(), kueue_versions=frozenset())
    yield of_worker(cluster_queues=(ClusterQueue(name="gpus", state=inactive),))
    yield of_worker(cluster_queues=(ClusterQueue(name="gpus", stopped="Hold"),))
    yield of_worker(cluster_queues=(ClusterQueue(name="gpus", state=ON),))
    yield of_worker(local_queues=(LocalQueue(namespace="ml", name="o", cluster_queue="gpus"),))
    yield of_worker(unreachable="no", gpu_nodes=())
    yield of_worker(missing_rights=(NODES, IN_ML))
    argument = GateArgument("/spec/x", "--feature-gates=A=true", "A=true")
    yield of_hub("dispatch", clearing=(), serves_policies=False, gate_argument=argument)
    yield of_worker(gate_argument=argument, file_gates={"A": True})


def test_every_change_and_undoing_is_commands_and_comments_for_a_shell() -> None:
    found: list[Finding] = [each for report in reports() for each in report.findings]
    texts = {text for each in found for text in (each.change, each.undo) if text}
    assert len(texts) > 30
    for text in texts:
        done = subprocess.run(
            ["bash", "-n", "-c", text], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (text, done.stderr)
        document = False
        for line in text.splitlines():
            assert document or line.startswith(("kubectl --", "helm --", "#")), text
            document = (document or line.endswith("<<EOF")) and line != "EOF"
        if "kubectl" in text.partition("#")[0]:
            assert "--context kind-hub" in text or "--kubeconfig /k/b.yaml" in text
