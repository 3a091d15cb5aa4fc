"""What each state of a hub and its workers means for each mode."""

from typing import Any

import pytest

from berthmaster.cli.doctor.core import diagnose
from berthmaster.cli.doctor.facts import (
    AdmissionCheck,
    ClusterQueue,
    FailingKind,
    GpuNode,
    HeldObject,
    LocalQueue,
    ManagerConfig,
    Mode,
    MultiKueueCluster,
    Right,
    State,
    Survey,
)
from berthmaster.cli.doctor.findings import kueue_version
from berthmaster.cli.doctor.hub import MANAGED_BY_GATE, OCM_ADDON
from berthmaster.cli.doctor.rights import hub_rights
from berthmaster.lib.kueue.names import CHECK_CONTROLLER, INCREMENTAL, MULTIKUEUE
from tests.unit.cli.doctor.surveys import ON, finding, hub, of_hub, of_worker, worker, wrong

MODES: tuple[Mode, ...] = ("observe", "dispatch")
MK = AdmissionCheck(name="mk", controller=MULTIKUEUE, config="all", state=ON)


@pytest.mark.parametrize("mode", MODES)
def test_healthy_hub_names_all_checks(mode: Mode) -> None:
    report = of_hub(mode)
    assert (report.mode, report.ready, wrong(report)) == (mode, True, [])
    said = [(each.where, each.what) for each in report.findings]
    assert ("hub", "Kueue 0.19.2 serves v1beta2") in said
    assert ("hub", "AdmissionCheck mk is active") in said
    assert ("berlin", "LocalQueue ml/main can admit GPU jobs") in said
    assert ("berlin", "8 GPUs on 1 nodes, 1 of them ready") in said
    assert ("hub", f"the hub's account may do all that {mode} needs") in said


# ---- the manager's configuration: what it is -> what blocks in each mode


@pytest.mark.parametrize(
    ("manager", "blocking"),
    [
        (ManagerConfig(), "dispatch needs one that is not"),
        (ManagerConfig(dispatcher=INCREMENTAL), "dispatch needs one that is not"),
        (ManagerConfig(dispatcher=INCREMENTAL, step_size=1), "dispatch needs one"),
        (ManagerConfig(dispatcher="x/y"), ""),
    ],
)
def test_dispatch_needs_a_dispatcher_that_is_not_kueues(
    manager: ManagerConfig, blocking: str
) -> None:
    report = of_hub("dispatch", manager=manager)
    blocked = [what for level, _, what in wrong(report) if level == "blocks"]
    assert report.ready == (not blocking)
    assert any(blocking in what for what in blocked) if blocking else blocked == []
    assert of_hub("observe", manager=manager).ready


def test_a_change_of_the_dispatcher_names_every_step_and_the_way_back() -> None:
    before = ManagerConfig(dispatcher=INCREMENTAL, step_size=3)
    found = finding(of_hub("dispatch", manager=before), "dispatch needs one")
    assert found.change == (
        "kubectl --context kind-hub -n kueue-system edit configmap kueue-manager-config\n"
        "# in controller_manager_config.yaml:\n"
        "#   multiKueue:\n"
        "#     dispatcherName: berthmaster.io/dispatcher\n"
        "kubectl --context kind-hub -n kueue-system rollout restart deployment "
        "kueue-controller-manager"
    )
    theirs = (
        "#     dispatcherName: kueue.x-k8s.io/multikueue-dispatcher-incremental\n"
        "#     incrementalDispatcherConfig:\n"
        "#       stepSize: 3\n"
    )
    ours = "#     dispatcherName: berthmaster.io/dispatcher\n"
    assert found.undo == found.change.replace(ours, theirs)
    none = finding(of_hub("dispatch", manager=ManagerConfig()), "dispatch needs one")
    assert "dispatcherName: (remove this line)" in none.undo


def test_an_external_dispatcher_is_a_standstill_while_we_only_observe() -> None:
    report = of_hub("observe", manager=ManagerConfig(dispatcher="x/y"))
    assert wrong(report) == [("warning", "hub", "dispatcherName is x/y: no dispatcher of Kueue's")]


@pytest.mark.parametrize(
    ("image", "seen"), [("0.17.9", False), ("0.18.0", True), ("0.19.2", True), ("0.20.0", False)]
)
def test_a_kueue_that_we_were_not_seen_with_is_a_warning(image: str, seen: bool) -> None:
    report = of_hub(kueue_image=f"kueue:v{image}")
    what = f"Kueue {image} is none of those that we were seen with, 0.18 to 0.19"
    assert wrong(report) == ([] if seen else [("warning", "hub", what)])
    assert report.ready


@pytest.mark.parametrize("mode", MODES)
def test_a_configuration_that_cannot_be_read_is_no_configuration(mode: Mode) -> None:
    for manager in (None, ManagerConfig(problem="it is no YAML")):
        report = of_hub(mode, manager=manager)
        [(level, _, what)] = wrong(report)
        assert (report.ready, "configuration" in what) == (True, True)
        assert level == ("note" if mode == "observe" and manager is None else "warning")


def test_a_gate_that_was_switched_off_is_told() -> None:
    manager = ManagerConfig(gates={MANAGED_BY_GATE: False})
    assert wrong(of_hub(manager=manager)) == [
        ("warning", "hub", f"the gate {MANAGED_BY_GATE} is off")
    ]


# ---- hub


@pytest.mark.parametrize(
    ("changed", "level", "what"),
    [
        ({"unreachable": "no connection"}, "blocks", "API server is not reached: no connection"),
        ({"kueue_versions": frozenset()}, "blocks", "Kueue is not installed"),
        ({"kueue_versions": frozenset({"v1beta1"})}, "blocks", "serves v1beta1 and not v1beta2"),
        ({"kueue_image": "kueue:v0.15.3"}, "blocks", "Kueue 0.15.3 is older than 0.16"),
        ({"skew_s": 30.0}, "warning", "its clock is 30 s ahead of this machine's"),
        ({"skew_s": -90.0}, "warning", "its clock is 90 s behind this machine's"),
        ({"unread": ("nodes (no)",)}, "note", "not looked at: nodes (no)"),
        ({"checks": ()}, "blocks", "there is no AdmissionCheck of MultiKueue"),
        (
            {"checks": (AdmissionCheck(name="mk", controller=MULTIKUEUE),)},
            "blocks",
            "AdmissionCheck mk names no MultiKueueConfig",
        ),
        (
            {"checks": (AdmissionCheck(name="mk", controller=MULTIKUEUE, config="no"),)},
            "blocks",
            "AdmissionCheck mk names the MultiKueueConfig no, which is not there",
        ),
        (
            {
                "checks": (
                    AdmissionCheck(
                        name="mk",
                        controller=MULTIKUEUE,
                        config="all",
                        state=State(active=False, message="no cluster"),
                    ),
                )
            },
            "blocks",
            "AdmissionCheck mk is not active: no cluster",
        ),
        (
            {"checks": (MK, AdmissionCheck(name="gpus", controller=CHECK_CONTROLLER))},
            "blocks",
            "AdmissionCheck gpus has no controller",
        ),
        (
            {
                "checks": (
                    MK,
                    AdmissionCheck(
                        name="gpus",
                        controller=CHECK_CONTROLLER,
                        state=State(active=False, reason="PlacementNotFound", message="no such"),
                    ),
                )
            },
            "blocks",
            "AdmissionCheck gpus is not active: PlacementNotFound: no such",
        ),
        (
            {
                "checks": (MK, AdmissionCheck(name="old", controller=OCM_ADDON, state=ON)),
                "cluster_queues": (ClusterQueue(name="gpus", checks=("mk", "old")),),
            },
            "blocks",
            "ClusterQueue gpus asks AdmissionCheck old of OCM's kueue-addon",
        ),
        (
            {"configs": {"all": ("berlin", "rome")}},
            "warning",
            "MultiKueueConfig all names rome, which is no MultiKueueCluster",
        ),
        (
            {
                "clusters": (
                    MultiKueueCluster(
                        name="berlin",
                        fleet_name="berlin",
                        state=State(active=False, reason="InsecureKubeConfig"),
                    ),
                )
            },
            "warning",
            "MultiKueueCluster berlin is not active: InsecureKubeConfig",
        ),
        (
            {"clusters": (MultiKueueCluster(name="berlin", fleet_name="b1", state=ON),)},
            "blocks",
            "worker berlin is in no MultiKueueConfig under this name",
        ),
        ({"cluster_queues": ()}, "blocks", "no ClusterQueue uses the AdmissionCheck"),
        (
            {"cluster_queues": (ClusterQueue(name="gpus", checks=("mk",), stopped="Hold"),)},
            "warning",
            "ClusterQueue gpus is stopped (stopPolicy Hold)",
        ),
        ({"local_queues": ()}, "warning", "no LocalQueue leads to a ClusterQueue"),
        (
            {"missing_rights": (Right(verb="patch", group="g", resource="r/status", why="to x"),)},
            "blocks",
            "the hub's account may not: patch r/status.g",
        ),
    ],
)
def test_what_is_amiss_on_the_hub_is_told_alone(
    changed: dict[str, Any], level: str, what: str
) -> None:
    report = of_hub(**changed)
    found = finding(report, what)
    assert (found.level, found.where, len(wrong(report))) == (level, "hub", 1)
    assert report.ready == (level != "blocks")
    assert found.means or found.change or level == "note" or "stopPolicy" in what


def test_a_kueue_that_asks_for_no_other_check_gets_on_with_the_addon_s() -> None:
    old = AdmissionCheck(name="old", controller=OCM_ADDON, state=ON)
    queues = (ClusterQueue(name="gpus", checks=("mk", "old")),)
    image = "registry.k8s.io/kueue/kueue:v0.16.5"
    report = of_hub(checks=(MK, old), cluster_queues=queues, kueue_image=image)
    assert not [found for found in report.findings if "kueue-addon" in found.what]


def test_missing_rights_are_cured_by_the_overlay_of_the_mode() -> None:
    missing = tuple(Right(verb="get", group="", resource=f"r{n}", why="to x") for n in range(8))
    found = finding(of_hub("dispatch", missing_rights=missing), "may not")
    assert found.what.endswith("get r4, get r5 and 2 more")
    assert found.change == (
        "helm --kube-context kind-hub -n sys upgrade --install --create-namespace "
        "--reset-then-reuse-values berth-hub deploy/chart --set role=hub --set hub.mode=dispatch"
    )
    assert found.undo == "helm --kube-context kind-hub -n sys uninstall berth-hub"


def test_what_dispatching_writes_is_bound_in_the_namespaces_that_lack_it() -> None:
    missing = tuple(hub_rights("dispatch", ["ml", "web"])[-4:])
    assert {right.namespace for right in missing} == {"ml", "web"}
    found = finding(of_hub("dispatch", missing_rights=missing), "may not")
    hub, role = "kubectl --context kind-hub", "berthmaster-multikueue-dispatching"
    bind = f"create rolebinding {role} --clusterrole={role} --serviceaccount=sys:berth-hub"
    assert found.change.splitlines() == [
        f"{hub} -n {name} {bind} --dry-run=client -o yaml | {hub} apply -f -"
        for name in ("ml", "web")
    ]
    assert found.undo.splitlines() == [
        f"{hub} -n {name} delete rolebinding {role}" for name in ("ml", "web")
    ]


def test_a_right_reads_as_people_say_it() -> None:
    assert str(Right(verb="create", group="batch", resource="jobs", namespace="ml")) == (
        "create jobs.batch in ml"
    )


# ---- workers


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"namespaces": frozenset()}, "there is no namespace ml"),
        ({"local_queues": ()}, "there is no LocalQueue main in ml"),
        (
            {"local_queues": (LocalQueue(namespace="ml", name="other", cluster_queue="gpus"),)},
            "there is no LocalQueue main in ml",
        ),
        ({"cluster_queues": ()}, "leads to gpus, which is not there"),
        (
            {
                "local_queues": (
                    LocalQueue(
                        namespace="ml",
                        name="main",
                        cluster_queue="gpus",
                        state=State(active=False, message="held"),
                    ),
                )
            },
            "LocalQueue main is not active: held",
        ),
        (
            {"cluster_queues": (ClusterQueue(name="gpus", stopped="HoldAndDrain"),)},
            "ClusterQueue gpus is stopped (stopPolicy HoldAndDrain)",
        ),
        (
            {"cluster_queues": (ClusterQueue(name="gpus", state=State(active=False, reason="x")),)},
            "ClusterQueue gpus is not active: x",
        ),
        ({"cluster_queues": (ClusterQueue(name="gpus", state=ON),)}, "gpus covers no GPUs"),
        (
            {
                "cluster_queues": (
                    ClusterQueue(name="gpus", state=ON, gpu_quota={"nvidia.com/gpu": 0}),
                )
            },
            "ClusterQueue gpus has no GPU quota",
        ),
    ],
)
def test_black_hole_blocks_without_alternative(changed: dict[str, Any], what: str) -> None:
    report = of_worker(**changed)
    assert wrong(report) == [
        ("blocks", "hub", "no worker can take LocalQueue ml/main"),
        ("warning", "berlin", finding(report, what).what),
    ]
    assert finding(report, what).change.startswith("kubectl --kubeconfig /k/b.yaml ")
    other = worker(name="rome")
    both = hub(
        configs={"all": ("berlin", "rome")},
        clusters=tuple(
            MultiKueueCluster(name=name, fleet_name=name, state=ON) for name in ("berlin", "rome")
        ),
    )
    survey = Survey(mode="observe", namespace="s", hub=both, workers=(worker(**changed), other))
    assert [level for level, _, _ in wrong(diagnose(survey))] == ["warning"]


def test_a_stopped_queue_is_started_and_stopped_again_by_one_patch() -> None:
    stopped = ClusterQueue(name="gpus", stopped="Hold")
    found = finding(of_worker(cluster_queues=(stopped,)), "is stopped")
    patch = "kubectl --kubeconfig /k/b.yaml patch clusterqueue gpus --type merge -p "
    assert found.change == patch + """'{"spec":{"stopPolicy":"None"}}'"""
    assert found.undo == patch + """'{"spec":{"stopPolicy":"Hold"}}'"""


def test_what_makes_the_pods_of_rays_runtime_is_told() -> None:
    for served, told in (
        ({"RayJob"}, "a RayJob: KubeRay is served"),
        (set(), "pods of ours: no KubeRay"),
    ):
        found = finding(of_worker(job_kinds=frozenset(served)), f"the runtime ray makes {told}")
        assert found.level == "ok"


@pytest.mark.parametrize(
    ("changed", "level", "what"),
    [
        ({"gpu_nodes": ()}, "warning", "none of its 2 nodes offers GPUs"),
        (
            {"gpu_nodes": tuple(GpuNode(name=f"n{n}", gpus=1) for n in range(5))},
            "warning",
            "no label says which GPU: n0, n1, n2 and 2 more",
        ),
        (
            {"gpu_nodes": (GpuNode(name="n1", gpus=4, ready=False, model="m"),)},
            "warning",
            "4 GPUs on 1 nodes, 0 of them ready",
        ),
        ({"job_kinds": frozenset()}, "note", "JobSet is not installed"),
    ],
)
def test_what_is_amiss_in_a_worker_is_told_alone(
    changed: dict[str, Any], level: str, what: str
) -> None:
    report = of_worker(**changed)
    assert wrong(report) == [(level, "berlin", what)]
    assert report.ready


def test_a_worker_that_is_not_reached_blocks_and_says_no_more() -> None:
    report = of_worker(unreachable="no connection")
    assert wrong(report) == [("blocks", "berlin", "the API server is not reached: no connection")]
    assert [each.what for each in report.findings if each.where == "berlin"] == [
        "the API server is not reached: no connection"
    ]


def test_workers_alone_can_be_looked_at() -> None:
    report = diagnose(Survey(mode="observe", namespace="s", workers=(worker(),)))
    assert (report.ready, wrong(report)) == (True, [])


def test_versions_are_read_from_an_image() -> None:
    assert [
        kueue_version(image)
        for image in ("r/kueue:v0.19.2", "r:5000/kueue:0.18", "r/kueue@sha256:1", "kueue:main", "")
    ] == [(0, 19, 2), (0, 18, 0), None, None, None]


def test_one_cluster_under_two_names_is_named() -> None:
    twice = (worker(uid="5c1e"), worker(name="paris", uid="5c1e"), worker(name="oslo", uid="77aa"))
    report = diagnose(Survey(mode="observe", namespace="sys", workers=twice))
    assert wrong(report) == [
        (
            "blocks",
            "paris",
            "paris and berlin are one cluster: the namespace kube-system has the UID 5c1e in both",
        )
    ]
    unknown = (worker(), worker(name="paris"))
    assert diagnose(Survey(mode="observe", namespace="sys", workers=unknown)).ready


def test_hub_that_is_its_own_worker_is_named() -> None:
    survey = Survey(
        mode="observe", namespace="sys", hub=hub(uid="5c1e"), workers=(worker(uid="5c1e"),)
    )
    report = diagnose(survey)
    assert [each[:2] for each in wrong(report)] == [("warning", "berlin")]
    assert "the hub itself" in wrong(report)[0][2]


def test_kind_that_fails_is_named_and_nothing_is_concluded_from_its_emptiness() -> None:
    why = "conversion webhook failed (500 InternalError)"
    failing = tuple(
        FailingKind(kind=kind, why=why) for kind in ("nodes", "localqueues.kueue.x-k8s.io")
    )
    report = of_worker(failing=failing, gpu_nodes=(), nodes=0, local_queues=())
    assert wrong(report) == [
        ("blocks", "berlin", f"the API server fails to show nodes: {why}"),
        ("blocks", "berlin", f"the API server fails to show localqueues.kueue.x-k8s.io: {why}"),
    ]
    found = finding(report, wrong(report)[1][2])
    assert "get crd localqueues.kueue.x-k8s.io" in found.change
    assert "get crd" not in finding(report, wrong(report)[0][2]).change


def test_deleted_job_that_only_our_finalizer_keeps_is_named_with_its_cure() -> None:
    held = tuple(HeldObject("jobs.batch", "ml", f"train-{n}") for n in (1, 2))
    report = of_worker(held=held)
    what = (
        "jobs.batch train-1 -n ml and 1 more: deleted, and kept by the finalizer "
        "berthmaster.io/ending"
    )
    assert wrong(report) == [("warning", "berlin", what)]
    assert finding(report, what).change.endswith(
        'patch jobs.batch train-1 -n ml --type merge -p \'{"metadata":{"finalizers":null}}\''
    )
