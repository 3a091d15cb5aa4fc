"""What is found on a hub: its manager's configuration, and what MultiKueue consists of.

The texts follow Kueue 0.16 to 0.19. A trap that Kueue itself is silent about is told here before
anybody walks into it.
"""

from collections.abc import Iterator
from typing import Final

from berthmaster.doctor.facts import HubFacts, ManagerConfig, Survey
from berthmaster.doctor.findings import Finding, kubectl, kueue_version, shared
from berthmaster.kueue.names import ALL_AT_ONCE, CHECK_CONTROLLER, INCREMENTAL, MULTIKUEUE

BUILT_IN: Final = ("", INCREMENTAL, ALL_AT_ONCE)
OURS: Final = "berthmaster.io/dispatcher"
OCM_ADDON: Final = "open-cluster-management.io/placement"
CHECKS_GATE_FROM: Final = (0, 16, 6)  # from then on nothing is copied before every check is Ready
MERGE_GATE: Final = "WorkloadRequestUseMergePatch"
MANAGED_BY_GATE: Final = "MultiKueueBatchJobWithManagedBy"
OBEYS_ORDER: Final = (0, 19)
_HINTS: Final = {
    "BadKubeConfig": "The Secret that it names, in Kueue's namespace, must hold a kubeconfig under "
    "the key kubeconfig.",
    "InsecureKubeConfig": "Kueue takes no tokenFile, exec, insecure-skip-tls-verify or path of a "
    "CA: put token and CA themselves into the kubeconfig.",
    "BadClusterProfile": "clusterProfileRef needs an alpha gate of Kueue; a kubeconfig works.",
    "ClientConnectionFailed": "The hub does not reach the worker, or the token is no longer valid.",
}


def findings(hub: HubFacts, survey: Survey) -> Iterator[Finding]:
    """All of one hub."""
    if hub.unreachable:
        yield Finding(
            level="blocks",
            where=hub.name,
            what=f"the hub's API server is not reached: {hub.unreachable}",
            means="Nothing else of it could be looked at.",
            change=f"{kubectl(hub)} version   # the same way, without us",
        )
        return
    yield from shared(hub, survey, f"overlays/{survey.mode}")
    if "v1beta2" not in hub.kueue_versions:
        return
    yield from _manager(hub, survey)
    yield from _checks(hub)
    yield from _placement_checks(hub)
    yield from _clusters(hub, survey)
    yield from _queues(hub)


# ---- the manager's configuration


def _manager(hub: HubFacts, survey: Survey) -> Iterator[Finding]:
    config = hub.manager
    if config is None:
        yield Finding(
            level="note" if survey.mode == "observe" else "warning",
            where=hub.name,
            what="the manager's configuration was not found or may not be read",
            means="Whether its dispatcher and gates suit this mode is not known. It is looked for "
            "in the ConfigMap kueue-manager-config of kueue-system.",
            change=f"{kubectl(hub)} -n kueue-system get configmaps   # where yours is",
        )
        return
    if config.problem:
        yield Finding(
            level="warning",
            where=hub.name,
            what=f"the manager's configuration cannot be read: {config.problem}",
            change=f"{kubectl(hub)} -n kueue-system get configmap kueue-manager-config -o yaml",
        )
        return
    yield from {"observe": _observe, "order": _order, "dispatch": _dispatch}[survey.mode](
        hub, config
    )
    if config.gates.get(MANAGED_BY_GATE) is False:
        yield Finding(
            level="warning",
            where=hub.name,
            what=f"the gate {MANAGED_BY_GATE} is off",
            means="The hub's Job controller then runs Jobs here as well as on the worker, unless "
            "they stay suspended.",
            change=_edit(hub, f"featureGates:\n  {MANAGED_BY_GATE}: true"),
            undo=_edit(hub, f"featureGates:\n  {MANAGED_BY_GATE}: false"),
        )


def _observe(hub: HubFacts, config: ManagerConfig) -> Iterator[Finding]:
    if config.dispatcher in BUILT_IN:
        yield Finding(
            level="ok",
            where=hub.name,
            what=f"Kueue dispatches by itself ({_named(config)}), as observe wants",
        )
    else:
        yield Finding(
            level="warning",
            where=hub.name,
            what=f"dispatcherName is {config.dispatcher}: no dispatcher of Kueue's",
            means="In the mode observe we nominate nothing. Unless somebody else does, no Workload "
            "of MultiKueue moves.",
            change=_edit(hub, "multiKueue:\n  dispatcherName: (remove this line)"),
            undo=_edit(hub, f"multiKueue:\n  dispatcherName: {config.dispatcher}"),
        )


def _order(hub: HubFacts, config: ManagerConfig) -> Iterator[Finding]:
    version = kueue_version(hub.kueue_image)
    if version is not None and version[:2] < OBEYS_ORDER:
        yield Finding(
            level="blocks",
            where=hub.name,
            what="this Kueue's Incremental dispatcher does not obey a MultiKueueConfig's order",
            means="It does from 0.19 on. observe and dispatch work with this version.",
            change="Upgrade Kueue to 0.19 or later, or use the mode dispatch.",
        )
    if config.dispatcher == INCREMENTAL and config.step_size == 1:
        yield Finding(
            level="ok",
            where=hub.name,
            what="Incremental with a step of 1, as the mode order wants",
        )
        return
    step = f" with a step of {config.step_size or 3}" if config.dispatcher == INCREMENTAL else ""
    yield Finding(
        level="blocks",
        where=hub.name,
        what=f"the dispatcher is {_named(config)}{step}; order needs Incremental with a step of 1",
        means="Kueue then tries one cluster after another in the order that we keep. It holds for "
        "all MultiKueue queues of this hub.",
        change=_edit(
            hub,
            f"multiKueue:\n  dispatcherName: {INCREMENTAL}\n"
            "  incrementalDispatcherConfig:\n    stepSize: 1",
        ),
        undo=_edit(hub, _before(config)),
    )


def _dispatch(hub: HubFacts, config: ManagerConfig) -> Iterator[Finding]:
    if config.dispatcher in BUILT_IN:
        yield Finding(
            level="blocks",
            where=hub.name,
            what=f"the dispatcher is {_named(config)}; dispatch needs one that is not Kueue's",
            means="Kueue then waits for our nominations, in all MultiKueue queues of this hub: "
            "start `berth serve hub --mode dispatch` first, then change this.",
            change=_edit(hub, f"multiKueue:\n  dispatcherName: {OURS}"),
            undo=_edit(hub, _before(config)),
        )
    else:
        what = f"Kueue leaves dispatching to {config.dispatcher}"
        yield Finding(level="ok", where=hub.name, what=what)
    if config.gates.get(MERGE_GATE) is True:
        yield Finding(level="ok", where=hub.name, what=f"the gate {MERGE_GATE} is on")
    elif hub.merge_policies:
        listed = ", ".join(hub.merge_policies)
        yield Finding(
            level="ok",
            where=hub.name,
            what=f"a MutatingAdmissionPolicy looks after nominations ({listed})",
        )
    else:
        yield Finding(
            level="blocks",
            where=hub.name,
            what=f"the gate {MERGE_GATE} is off and no MutatingAdmissionPolicy replaces it",
            means="A job would be admitted and RUN on the worker while the hub shows it as pending "
            "for ever: Kueue could not clear the field that we have written.",
            change=_edit(hub, f"featureGates:\n  {MERGE_GATE}: true"),
            undo=_edit(hub, f"featureGates:\n  {MERGE_GATE}: false"),
        )


def _named(config: ManagerConfig) -> str:
    """The dispatcher as people know it."""
    return config.dispatcher.rpartition("/")[2] or "AllAtOnce, the default"


def _before(config: ManagerConfig) -> str:
    if not config.dispatcher:
        return "multiKueue:\n  dispatcherName: (remove this line)"
    step = f"\n  incrementalDispatcherConfig:\n    stepSize: {config.step_size}"
    return f"multiKueue:\n  dispatcherName: {config.dispatcher}{step if config.step_size else ''}"


def _edit(hub: HubFacts, yaml: str) -> str:
    """How a line of the manager's configuration is changed, and what makes it read it."""
    return (
        f"{kubectl(hub)} -n kueue-system edit configmap kueue-manager-config\n"
        "# in controller_manager_config.yaml:\n"
        f"{yaml}\n"
        f"{kubectl(hub)} -n kueue-system rollout restart deployment kueue-controller-manager"
    )


# ---- what MultiKueue consists of


def _checks(hub: HubFacts) -> Iterator[Finding]:
    ours = [check for check in hub.checks if check.controller == MULTIKUEUE]
    if not ours:
        yield Finding(
            level="blocks",
            where=hub.name,
            what="there is no AdmissionCheck of MultiKueue",
            means="Without one, nothing is sent to a worker.",
            change=f"""{kubectl(hub)} apply -f - <<EOF
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {{name: multikueue}}
spec:
  controllerName: {MULTIKUEUE}
  parameters: {{apiGroup: kueue.x-k8s.io, kind: MultiKueueConfig, name: NAME}}
EOF""",
            undo=f"{kubectl(hub)} delete admissioncheck multikueue",
        )
    for check in ours:
        if not check.config or check.config not in hub.configs:
            what = f"names the MultiKueueConfig {check.config}, which is not there"
            yield Finding(
                level="blocks",
                where=hub.name,
                what=f"AdmissionCheck {check.name} "
                + (what if check.config else "names no MultiKueueConfig"),
                means="Its queues admit nothing.",
                change=f"{kubectl(hub)} edit admissioncheck {check.name}   # spec.parameters",
            )
        elif check.state.active is False:
            yield Finding(
                level="blocks",
                where=hub.name,
                what=f"AdmissionCheck {check.name} is not active: "
                f"{check.state.message or check.state.reason}",
                means="Its queues admit nothing until it is.",
            )
        else:
            said = "active" if check.state.active else "there; its controller has said nothing yet"
            what = f"AdmissionCheck {check.name} is {said}"
            yield Finding(
                level="ok" if check.state.active else "warning", where=hub.name, what=what
            )


def _placement_checks(hub: HubFacts) -> Iterator[Finding]:
    """Checks of our own controller, and those of the one that it succeeds."""
    for check in hub.checks:
        if check.controller == CHECK_CONTROLLER and check.state.active is None:
            yield Finding(
                level="blocks",
                where=hub.name,
                what=f"AdmissionCheck {check.name} has no controller",
                means="Its queues admit nothing. A check with a Placement is for `berth serve "
                "admission`, one with a ConfigMap for `berth serve multikueue --mode dispatch`.",
                change=f"kubectl apply -k deploy/kubernetes/admission\n{kubectl(hub)} -n "
                "berth-system edit configmap berth-hub   # BERTH_HUB_ALSO: admission\n"
                f"{kubectl(hub)} -n berth-system rollout restart statefulset berth-hub",
            )
        elif check.controller == CHECK_CONTROLLER and check.state.active is False:
            yield Finding(
                level="blocks",
                where=hub.name,
                what=f"AdmissionCheck {check.name} is not active: "
                f"{check.state.reason}: {check.state.message}",
                means="Its queues admit nothing until it is; what runs goes on.",
            )
        elif check.controller == OCM_ADDON and _waits_for_all_checks(hub):
            users = [queue.name for queue in hub.cluster_queues if check.name in queue.checks]
            for queue in users:
                yield Finding(
                    level="blocks",
                    where=hub.name,
                    what=f"ClusterQueue {queue} asks AdmissionCheck {check.name} of OCM's "
                    "kueue-addon, which sets no Workload's check",
                    means="From Kueue 0.16.6 on nothing is sent before every check is Ready: its "
                    "Workloads wait for ever.",
                    change="docs/coming-from-ocm-kueue-addon.md: a check of "
                    f"controllerName {CHECK_CONTROLLER} over the same Placement takes its place.",
                )


def _waits_for_all_checks(hub: HubFacts) -> bool:
    """Unless this Kueue is known to be older."""
    version = kueue_version(hub.kueue_image)
    return version is None or version >= CHECKS_GATE_FROM


def _clusters(hub: HubFacts, survey: Survey) -> Iterator[Finding]:
    known = {cluster.name: cluster for cluster in hub.clusters}
    for config, names in sorted(hub.configs.items()):
        for name in names:
            if name not in known:
                yield Finding(
                    level="warning",
                    where=hub.name,
                    what=f"MultiKueueConfig {config} names {name}, which is no MultiKueueCluster",
                    means="Kueue cannot send there, and we leave it out.",
                    change=f"{kubectl(hub)} edit multikueueconfig {config}   # only once nothing "
                    "runs there",
                )
    for cluster in hub.clusters:
        if cluster.state.active is not True:
            why = cluster.state.message or cluster.state.reason or "Kueue has said nothing yet"
            yield Finding(
                level="warning",
                where=hub.name,
                what=f"MultiKueueCluster {cluster.name} is not active: {why}",
                means=_HINTS.get(cluster.state.reason, "Nothing is sent there until it is."),
                change=f"{kubectl(hub)} describe multikueuecluster {cluster.name}",
            )
    listed = {name for names in hub.configs.values() for name in names}
    by_fleet_name = {cluster.fleet_name for cluster in hub.clusters if cluster.name in listed}
    for worker in survey.workers:
        if worker.name not in by_fleet_name:
            listed_names = ", ".join(sorted(by_fleet_name)) or "none"
            yield Finding(
                level="blocks",
                where=hub.name,
                what=f"worker {worker.name} is in no MultiKueueConfig under this name",
                means="What its agent reports belongs to no cluster of Kueue's; those are: "
                f"{listed_names}.",
                change=f"Name it as Kueue does, with --worker NAME={worker.context or worker.name} "
                f"here and --cluster NAME for its agent; or\n{kubectl(hub)} annotate "
                f"multikueuecluster NAME berthmaster.io/cluster={worker.name}",
                undo=f"{kubectl(hub)} annotate multikueuecluster NAME berthmaster.io/cluster-",
            )


def _queues(hub: HubFacts) -> Iterator[Finding]:
    checks = {check.name for check in hub.checks if check.controller == MULTIKUEUE}
    queues = {one.name: one for one in hub.cluster_queues if checks & set(one.checks)}
    if checks and not queues:
        yield Finding(
            level="blocks",
            where=hub.name,
            what="no ClusterQueue uses the AdmissionCheck of MultiKueue",
            means="Nothing is sent to a worker.",
            change=f"{kubectl(hub)} edit clusterqueue NAME   # spec.admissionChecksStrategy:\n"
            f"#   admissionChecks: [{{name: {min(checks)}}}]",
        )
    for queue in queues.values():
        if queue.stopped or queue.state.active is False:
            why = f"stopPolicy {queue.stopped}" if queue.stopped else queue.state.message
            yield Finding(
                level="warning",
                where=hub.name,
                what=f"ClusterQueue {queue.name} admits nothing: {why or queue.state.reason}",
            )
    leading = [one for one in hub.local_queues if one.cluster_queue in queues]
    if queues and not leading:
        yield Finding(
            level="warning",
            where=hub.name,
            what="no LocalQueue leads to a ClusterQueue of MultiKueue",
            means="Nobody can submit there yet.",
        )
