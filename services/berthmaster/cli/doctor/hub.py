"""Findings on a hub: its manager's configuration, and MultiKueue's objects.

The texts follow Kueue 0.16 to 0.19. Failure states that Kueue does not report are reported here in
advance.
"""

from collections.abc import Iterator
from typing import Final

from berthmaster.cli.doctor import nominations
from berthmaster.cli.doctor.facts import (
    HubFacts,
    ManagerConfig,
    Right,
    StrandedJob,
    Survey,
    WorkerFacts,
)
from berthmaster.cli.doctor.findings import (
    HUB_RELEASE,
    Finding,
    bind,
    edit_manager,
    install,
    kubectl,
    kueue_version,
    shared,
)
from berthmaster.cli.doctor.gates import set_gate, specified_twice
from berthmaster.cli.doctor.rights import DISPATCHING_ROLE, HUB_ACCOUNT
from berthmaster.cli.doctor.worker import queues_of
from berthmaster.lib.kube.resources import JOBS
from berthmaster.lib.kueue.jobs import FIELD as TTL_FIELD
from berthmaster.lib.kueue.jobs import LOST_S, POLICY_FILE
from berthmaster.lib.kueue.names import (
    ALL_AT_ONCE,
    CHECK_CONTROLLER,
    DISPATCHER,
    INCREMENTAL,
    MULTIKUEUE,
    QUEUE_LABEL,
)
from berthmaster.lib.kueue.versions import CHECKS_FIRST, ENDED_JOBS, WORKER_CLIENTS

BUILT_IN: Final = ("", INCREMENTAL, ALL_AT_ONCE)
OCM_ADDON: Final = "open-cluster-management.io/placement"
MANAGED_BY_GATE: Final = "MultiKueueBatchJobWithManagedBy"
_HINTS: Final = {
    "BadKubeConfig": "The Secret that it names, in Kueue's namespace, must hold a kubeconfig under "
    "the key kubeconfig.",
    "InsecureKubeConfig": "Kueue takes no tokenFile, exec, insecure-skip-tls-verify or path of a "
    "CA: put token and CA themselves into the kubeconfig.",
    "BadClusterProfile": "clusterProfileRef needs an alpha gate of Kueue; a kubeconfig works.",
    "ClientConnectionFailed": "The hub does not reach the worker, or the token is no longer valid.",
}


def findings(hub: HubFacts, survey: Survey) -> Iterator[Finding]:
    if hub.unreachable:
        yield Finding(
            level="blocks",
            where=hub.name,
            what=f"the hub's API server is not reached: {hub.unreachable}",
            means="Nothing else of it could be looked at.",
            change=f"{kubectl(hub)} version   # the same way, without us",
        )
        return
    yield from shared(hub, survey, lambda missing: _grants(hub, survey, missing))
    if (twice := specified_twice(hub)) is not None:
        yield twice
    if "v1beta2" not in hub.kueue_versions:
        return
    yield from nominations.findings(hub, survey)  # first, because the dispatcher's name comes later
    yield from _manager(hub, survey)
    yield from _checks(hub)
    yield from _placement_checks(hub, survey)
    yield from _clusters(hub, survey)
    yield from _queues(hub)
    yield from _stranded(hub)
    yield from _early_deleted(hub, survey)


def _grants(hub: HubFacts, survey: Survey, missing: tuple[Right, ...]) -> tuple[str, str]:
    """Return a release for cluster-wide rights, and a binding per namespace."""
    change, undo = [], []
    values = ("role=hub", f"hub.mode={survey.mode}")
    installed, uninstalled = install(hub, survey.namespace, HUB_RELEASE, *values)
    if any(not right.namespace for right in missing):
        change.append(installed)
    account = f"{survey.namespace}:{HUB_ACCOUNT}"
    for namespace in sorted({right.namespace for right in missing if right.namespace}):
        made, taken_back = bind(hub, namespace, DISPATCHING_ROLE, account)
        change.append(made)
        undo.append(taken_back)
    if any(not right.namespace for right in missing):
        undo.append(uninstalled)
    return "\n".join(change), "\n".join(undo)


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
    if config.keeps_finished:
        yield Finding(
            level="note",
            where=hub.name,
            what="Workloads that are over are kept for ever: no objectRetentionPolicies",
            means="After a restart the manager looks at every one of them, and at its copies, "
            "before it comes to what waits: 348 of them cost 57 s.",
            change=edit_manager(
                hub, "objectRetentionPolicies:\n  workloads:\n    afterFinished: 1h"
            ),
            undo=edit_manager(hub, "objectRetentionPolicies:\n  workloads: (remove this line)"),
        )
    yield from (_observe if survey.mode == "observe" else _dispatch)(hub, config)
    if config.gates.get(MANAGED_BY_GATE) is False:
        change, undo = set_gate(hub, MANAGED_BY_GATE, on=True)
        yield Finding(
            level="warning",
            where=hub.name,
            what=f"the gate {MANAGED_BY_GATE} is off",
            means="The hub's Job controller then runs Jobs here as well as on the worker, unless "
            "they stay suspended.",
            change=change,
            undo=undo,
        )
    yield from _worker_clients(hub, config)


def _worker_clients(hub: HubFacts, config: ManagerConfig) -> Iterator[Finding]:
    """Yield the finding that Kueue's calls to workers are few, where the version is known."""
    version = kueue_version(hub.kueue_image)
    if version is None or WORKER_CLIENTS.on(version, config.gates):
        return
    change, undo = "", ""
    if WORKER_CLIENTS.known(version):
        change, undo = set_gate(hub, WORKER_CLIENTS.name, on=True)
    off = "is off" if change else f"is missing; Kueue {WORKER_CLIENTS.since} have the gate"
    yield Finding(
        level="note",
        where=hub.name,
        what=f"Kueue makes 5 calls a second to a worker: the gate {WORKER_CLIENTS.name} {off}",
        means="Under 80 Jobs at once, 14 s passed at the median between nomination and admission.",
        change=change,
        undo=undo,
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
            change=edit_manager(hub, "multiKueue:\n  dispatcherName: (remove this line)"),
            undo=edit_manager(hub, f"multiKueue:\n  dispatcherName: {config.dispatcher}"),
        )


def _dispatch(hub: HubFacts, config: ManagerConfig) -> Iterator[Finding]:
    if config.dispatcher in BUILT_IN:
        yield Finding(
            level="blocks",
            where=hub.name,
            what=f"the dispatcher is {_named(config)}; dispatch needs one that is not Kueue's",
            means="Kueue then waits for our nominations, in all MultiKueue queues of this hub: "
            "set hub.mode=dispatch of our chart first, then change this.",
            change=edit_manager(hub, f"multiKueue:\n  dispatcherName: {DISPATCHER}"),
            undo=edit_manager(hub, _before(config)),
        )
    else:
        what = f"Kueue leaves dispatching to {config.dispatcher}"
        yield Finding(level="ok", where=hub.name, what=what)


def _named(config: ManagerConfig) -> str:
    """Return the dispatcher's name for users."""
    return config.dispatcher.rpartition("/")[2] or "AllAtOnce, the default"


def _before(config: ManagerConfig) -> str:
    if not config.dispatcher:
        return "multiKueue:\n  dispatcherName: (remove this line)"
    step = f"\n  incrementalDispatcherConfig:\n    stepSize: {config.step_size}"
    return f"multiKueue:\n  dispatcherName: {config.dispatcher}{step if config.step_size else ''}"


# ---- MultiKueue's objects


def _checks(hub: HubFacts) -> Iterator[Finding]:
    ours = [check for check in hub.checks if check.controller == MULTIKUEUE]
    if not ours:
        config = next(iter(hub.configs)) if len(hub.configs) == 1 else "NAME"
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
  parameters: {{apiGroup: kueue.x-k8s.io, kind: MultiKueueConfig, name: {config}}}
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


def _placement_checks(hub: HubFacts, survey: Survey) -> Iterator[Finding]:
    """Yield findings of Berthmaster's checks, and of the replaced controller's."""
    for check in hub.checks:
        if check.controller == CHECK_CONTROLLER and check.state.active is None:
            yield Finding(
                level="blocks",
                where=hub.name,
                what=f"AdmissionCheck {check.name} has no controller",
                means="Its queues admit nothing. A check with a Placement is for `berth serve "
                "admission`, one with a ConfigMap for `berth serve multikueue --mode dispatch`.",
                change=install(hub, survey.namespace, HUB_RELEASE, "hub.services={admission}")[0],
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
                    change="# docs/integrations/ocm-kueue-addon.md: a check of "
                    f"controllerName {CHECK_CONTROLLER} over the same Placement takes its place.",
                )


def _waits_for_all_checks(hub: HubFacts) -> bool:
    """Return whether this Kueue waits for all checks, assumed unless its version is older."""
    version = kueue_version(hub.kueue_image)
    return version is None or version >= CHECKS_FIRST


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
            named = {each.name for each in survey.workers}
            free = sorted(
                each.name
                for each in hub.clusters
                if each.name in listed and each.fleet_name not in named
            )
            target = free[0] if len(free) == 1 else "NAME"
            annotate = f"{kubectl(hub)} annotate multikueuecluster {target} berthmaster.io/cluster"
            listed_names = ", ".join(sorted(by_fleet_name)) or "none"
            yield Finding(
                level="blocks",
                where=hub.name,
                what=f"worker {worker.name} is in no MultiKueueConfig under this name",
                means="What its agent reports belongs to no cluster of Kueue's; those are: "
                f"{listed_names}.",
                change="# name it as Kueue does: "
                f"--worker NAME={worker.context or worker.name} here and --cluster NAME for its "
                f"agent; or, with NAME as Kueue has it:\n{annotate}={worker.name}",
                undo=f"{annotate}-",
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
            why = queue.state.message or queue.state.reason
            stop = f"is stopped (stopPolicy {queue.stopped})"
            yield Finding(
                level="warning",
                where=hub.name,
                what=f"ClusterQueue {queue.name} "
                + (stop if queue.stopped else f"admits nothing: {why}"),
            )
    for local in hub.local_queues:
        if local.cluster_queue in queues and local.stopped:
            yield Finding(
                level="warning",
                where=hub.name,
                what=f"LocalQueue {local.namespace}/{local.name} is stopped "
                f"(stopPolicy {local.stopped})",
            )
    leading = [one for one in hub.local_queues if one.cluster_queue in queues]
    if queues and not leading:
        yield Finding(
            level="warning",
            where=hub.name,
            what="no LocalQueue leads to a ClusterQueue of MultiKueue",
            means="Nobody can submit there yet.",
        )


def _stranded(hub: HubFacts) -> Iterator[Finding]:
    """Yield jobs that the hub's Job controller leaves to MultiKueue, but no queue brings there."""
    by_queue: dict[tuple[str, str], list[StrandedJob]] = {}
    for job in hub.stranded:
        by_queue.setdefault((job.namespace, job.queue), []).append(job)
    for (namespace, queue), jobs in sorted(by_queue.items()):
        named = ", ".join(job.name for job in jobs[:3])
        more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
        where = f"queue {queue}, which does not lead to MultiKueue" if queue else "no queue"
        yield Finding(
            level="warning",
            where=hub.name,
            what=f"Jobs of {namespace} with managedBy {MULTIKUEUE} are in {where}: {named}{more}",
            means="Nobody runs them: the hub's Job controller leaves them to MultiKueue, and "
            "Kueue sends nothing that has not MultiKueue's check.",
            **_rescue(hub, jobs),
        )


def _rescue(hub: HubFacts, jobs: list[StrandedJob]) -> dict[str, str]:
    """Return the change to a queue with workers. A job that Kueue already started cannot move."""
    namespace, before = jobs[0].namespace, jobs[0].queue
    known = [one.name for one in queues_of(hub) if one.namespace == namespace]
    label = f"{kubectl(hub)} -n {namespace} label --overwrite"
    if len(known) != 1:
        there = ", ".join(known) or "none; make one"
        return {"change": f"# LocalQueues of {namespace} that lead to MultiKueue: {there}"}
    change, undo = [], []
    for job in jobs:
        if job.suspended:
            change.append(f"{label} job {job.name} {QUEUE_LABEL}={known[0]}")
            back = f"={before}" if before else "-"
            undo.append(f"{label} job {job.name} {QUEUE_LABEL}{back}")
        else:
            change.append(
                f"# {job.name} is not suspended any more: delete it and submit it to {known[0]}"
            )
    return {"change": "\n".join(change), "undo": "\n".join(undo)}


def _early_deleted(hub: HubFacts, survey: Survey) -> Iterator[Finding]:
    """Yield jobs that may run twice, because a worker deletes them before the hub reads their
    end."""
    gate = hub.manager is not None and hub.manager.gates.get(ENDED_JOBS.name) is True
    jobs = [one for one in hub.early_deleted if not (gate and one.kind == JOBS.kind)]
    lacking = [one for one in survey.workers if all(each.idle for each in one.keeping)]
    if not jobs or (survey.workers and not lacking):
        return
    named = ", ".join(f"{one.kind} {one.namespace}/{one.name}" for one in jobs[:3])
    more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
    change, undo = _keep_ended(hub, lacking)
    yield Finding(
        level="warning",
        where=hub.name,
        what=f"jobs of MultiKueue with a {TTL_FIELD} below {LOST_S} may run again: {named}{more}",
        means="Kueue copies the field. A worker may delete the ended job before the hub reads its "
        f"end, and the hub runs it again. A policy in the workers prevents that. So does the gate "
        f"{ENDED_JOBS.name} of the hub's Kueue, for Jobs alone (from {ENDED_JOBS.since} on).",
        change=change,
        undo=undo,
    )


def _keep_ended(hub: HubFacts, lacking: list[WorkerFacts]) -> tuple[str, str]:
    able = [one for one in lacking if one.serves_policies]
    change = [f"{kubectl(one)} apply -f {POLICY_FILE}" for one in able]
    undo = [f"{kubectl(one)} delete -f {POLICY_FILE}" for one in able]
    if not lacking:
        change.append(f"# for each worker: kubectl --context WORKER apply -f {POLICY_FILE}")
    elif len(able) < len(lacking):
        unable = ", ".join(one.name for one in lacking if not one.serves_policies)
        if _knows_gate(hub):
            made, taken_back = set_gate(hub, ENDED_JOBS.name, on=True)
            change.append(f"# {unable}: its Kubernetes has no such policies (1.36 has)\n{made}")
            undo.append(taken_back)
        else:
            change.append(
                f"# {unable}: its Kubernetes has no such policies (1.36 has), and this "
                f"Kueue has no such gate; leave {TTL_FIELD} out of these jobs"
            )
    return "\n".join(change), "\n".join(undo)


def _knows_gate(hub: HubFacts) -> bool:
    """Return whether this Kueue surely has the gate: an unknown gate stops the manager."""
    version = kueue_version(hub.kueue_image)
    return version is not None and ENDED_JOBS.known(version)
