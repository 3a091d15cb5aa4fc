"""Findings in a worker: whether jobs from the hub can be admitted and run there.

Kueue does not report a worker without the namespace or the same-named LocalQueue, or with a stopped
ClusterQueue: the hub's job just stays pending. Berthmaster excludes such a cluster for that queue.
Only a queue without any worker blocks.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from berthmaster.cli.doctor import devices, telemetry
from berthmaster.cli.doctor.facts import HubFacts, LocalQueue, Right, Survey, WorkerFacts
from berthmaster.cli.doctor.findings import (
    AGENT_RELEASE,
    Finding,
    bind,
    install,
    kubectl,
    kueue_version,
    shared,
)
from berthmaster.cli.doctor.gates import set_gate, specified_twice
from berthmaster.cli.doctor.rights import AGENT_ACCOUNT
from berthmaster.lib.accelerators.table import AMD_PRODUCT, INTEL_PRODUCT, NVIDIA, PRODUCT
from berthmaster.lib.accelerators.tpu import ACCELERATOR_LABEL
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.kinds.ray_job import ray_words
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB
from berthmaster.lib.kube.labels import FINALIZER
from berthmaster.lib.kueue.names import MULTIKUEUE

VOLCANO_INSTEAD: Final = (
    " Where executor and inventory have --jobs volcano, these are Jobs of Volcano's."
)
EXECUTOR_ROLE: Final = "berthmaster-executor"
_QUEUE_KINDS: Final = (
    "namespaces",
    "localqueues.kueue.x-k8s.io",
    "clusterqueues.kueue.x-k8s.io",
)
ELASTIC_JOBS: Final = "ElasticJobsViaWorkloadSlices"
ELASTIC_SINCE: Final = (0, 13)
ELASTIC_BY_DEFAULT: Final = (0, 18)
# Vendor, source of the model, and label.
MODEL_SOURCES: Final = (
    ("nvidia", "NVIDIA's GPU feature discovery", PRODUCT),
    ("amd", "AMD's node labeller", AMD_PRODUCT[0]),
    ("intel", "the rules of Intel's device plugin", INTEL_PRODUCT),
    ("tpu", "GKE", ACCELERATOR_LABEL),
)


def findings(worker: WorkerFacts, survey: Survey) -> Iterator[Finding]:
    if worker.unreachable:
        yield Finding(
            level="blocks",
            where=worker.name,
            what=f"the API server is not reached: {worker.unreachable}",
            means="Nothing else of it could be looked at.",
            change=f"{kubectl(worker)} version   # the same way, without us",
        )
        return
    yield from shared(worker, survey, partial(_grants, worker, survey))
    if (twice := specified_twice(worker)) is not None:
        yield twice
    if not worker.fails_to_show("nodes"):
        yield from _nodes(worker)
    yield from devices.findings(worker)
    if worker.held:
        yield _held(worker)
    yield from telemetry.findings(worker, survey.namespace)
    if "v1beta2" in worker.kueue_versions:
        for queue in queues_of(survey.hub):
            if any(each.covers(worker.name, queue) for each in survey.without):
                yield _absent(worker, queue)
            elif not worker.fails_to_show(*_QUEUE_KINDS):
                yield from _queue(worker, queue)
        yield _sizes(worker)
    ray = ray_words(worker.job_kinds)
    yield Finding(level="ok", where=worker.name, what=f"the runtime ray makes {ray}")
    if JOB_SET.name not in worker.job_kinds:
        yield Finding(
            level="note",
            where=worker.name,
            what="JobSet is not installed",
            means="Jobs of several pod sets are not placed here; plain Jobs are."
            + (VOLCANO_INSTEAD if VOLCANO_JOB.name in worker.job_kinds else ""),
            change=f"{kubectl(worker)} apply --server-side -f https://github.com/kubernetes-sigs/"
            "jobset/releases/latest/download/manifests.yaml",
            undo=f"{kubectl(worker)} delete -f https://github.com/kubernetes-sigs/jobset/releases/"
            "latest/download/manifests.yaml",
        )


def _held(worker: WorkerFacts) -> Finding:
    one = worker.held[0]
    more = f" and {len(worker.held) - 1} more" if len(worker.held) > 1 else ""
    named = f"{one.kind} {one.name} -n {one.namespace}"
    return Finding(
        level="warning",
        where=worker.name,
        what=f"{named}{more}: deleted, and kept by the finalizer {FINALIZER}",
        means="Its executor reads from it how the job ended and then lets go of it. None has: it "
        "does not run, has lost its rights in that namespace, or was uninstalled.",
        change="# start that executor; where none will come back:\n"
        f"{kubectl(worker)} patch {named} "
        '--type merge -p \'{"metadata":{"finalizers":null}}\'',
    )


def _sizes(worker: WorkerFacts) -> Finding:
    """Check that its Kueue allows changing the number of a Job's pods, as the executor requests."""
    told = (worker.gates or {}).get(ELASTIC_JOBS)
    version = kueue_version(worker.kueue_image)
    if told is None and version is not None and worker.gates is not None:
        told = version >= ELASTIC_BY_DEFAULT
    jobs = "jobs of one pod set with min_count or max_count"
    if told is not False:
        known = (
            "" if told else f", if its Kueue has elastic jobs (gate {ELASTIC_JOBS}, on from 0.18)"
        )
        return Finding(level="ok", where=worker.name, what=f"{jobs} shrink and grow{known}")
    knows_it = version is None or version >= ELASTIC_SINCE
    change, undo = set_gate(worker, ELASTIC_JOBS, on=True)
    return Finding(
        level="note",
        where=worker.name,
        what=f"{jobs} keep the number that they start with: the gate {ELASTIC_JOBS} is off",
        means="In queues with via: worker they start with fewer pods where quota is short (partial "
        "admission). A Kueue that has elastic jobs lets them shrink for others and grow.",
        change=change if knows_it else "# a Kueue from 0.18 on",
        undo=undo if knows_it else "",
    )


def _grants(worker: WorkerFacts, survey: Survey, missing: tuple[Right, ...]) -> tuple[str, str]:
    """Return only the missing grants: the agent's roles, and in a namespace its executor's."""
    change, undo = [], []
    made, taken_back = install(worker, survey.namespace, AGENT_RELEASE, "role=worker")
    if not worker.installed or any(not right.namespace for right in missing):
        change.append(made)
    for namespace in sorted({right.namespace for right in missing if right.namespace}):
        account = f"{survey.namespace}:{AGENT_ACCOUNT}"
        bound, unbound = bind(worker, namespace, EXECUTOR_ROLE, account)
        change.append(bound)
        undo.append(unbound)
    if not worker.installed:
        undo.append(taken_back)
    return "\n".join(change), "\n".join(undo)


def across(survey: Survey) -> Iterator[Finding]:
    """Yield findings across clusters: clusters with two names, queues that lead nowhere."""
    there = [worker for worker in survey.workers if not worker.unreachable]
    yield from _twice(there)
    if survey.hub is not None and survey.hub.uid:
        yield from (_own_worker(one) for one in there if one.uid == survey.hub.uid)
    if survey.hub is None or not there:
        return
    if any(worker.fails_to_show(*_QUEUE_KINDS) for worker in there):
        return  # the queue may lead there
    for queue in queues_of(survey.hub):
        if not any(obstacle(worker, queue) == "" for worker in there):
            yield Finding(
                level="blocks",
                where=survey.hub.name,
                what=f"no worker can take LocalQueue {queue.namespace}/{queue.name}",
                means="Its jobs would wait for ever; each worker's own finding says what it lacks.",
            )


def _twice(workers: list[WorkerFacts]) -> Iterator[Finding]:
    """Yield API servers that are named twice."""
    first: dict[str, WorkerFacts] = {}
    for worker in workers:
        other = first.setdefault(worker.uid, worker) if worker.uid else worker
        if other is not worker:
            yield Finding(
                level="blocks",
                where=worker.name,
                what=f"{worker.name} and {other.name} are one cluster: the namespace kube-system "
                f"has the UID {worker.uid} in both",
                means="Its capacity counts once, under the name that reported first; the other "
                "name takes no jobs.",
                change=f"# name it once: leave out {worker.name} or {other.name}, or correct its "
                "context",
            )


def _own_worker(worker: WorkerFacts) -> Finding:
    return Finding(
        level="warning",
        where=worker.name,
        what="this worker is the hub itself: both have the same namespace kube-system",
        means="Kueue does not support a hub that is its own worker: Workloads that MultiKueue "
        "sends there would be its own copies.",
        change="# leave it out of the workers, or correct its context",
    )


def queues_of(hub: HubFacts | None) -> list[LocalQueue]:
    """Return the hub's LocalQueues that lead to workers."""
    if hub is None:
        return []
    checks = {check.name for check in hub.checks if check.controller == MULTIKUEUE}
    queues = {one.name for one in hub.cluster_queues if checks & set(one.checks)}
    return [one for one in hub.local_queues if one.cluster_queue in queues]


def obstacle(worker: WorkerFacts, queue: LocalQueue) -> str:
    """Return why this worker cannot admit jobs of a hub's LocalQueue; "" = it can."""
    if queue.namespace not in worker.namespaces:
        return f"there is no namespace {queue.namespace}"
    same = (queue.namespace, queue.name)
    local = next((one for one in worker.local_queues if (one.namespace, one.name) == same), None)
    if local is None:
        return f"there is no LocalQueue {queue.name} in {queue.namespace}"
    target = next((one for one in worker.cluster_queues if one.name == local.cluster_queue), None)
    if target is None:
        return f"LocalQueue {queue.name} leads to {local.cluster_queue}, which is not there"
    if target.stopped:
        return f"ClusterQueue {target.name} is stopped (stopPolicy {target.stopped})"
    if local.stopped:
        return f"LocalQueue {queue.name} is stopped (stopPolicy {local.stopped})"
    if target.state.active is False:
        why = target.state.message or target.state.reason
        return f"ClusterQueue {target.name} is not active: {why}"
    if local.state.active is False:  # after its ClusterQueue, the most frequent cause
        return f"LocalQueue {queue.name} is not active: {local.state.message or local.state.reason}"
    if target.gpu_quota is None:
        return f"ClusterQueue {target.name} covers no GPUs"
    return "" if any(target.gpu_quota.values()) else f"ClusterQueue {target.name} has no GPU quota"


def _queue(worker: WorkerFacts, queue: LocalQueue) -> Iterator[Finding]:
    name = f"{queue.namespace}/{queue.name}"
    why = obstacle(worker, queue)
    if not why:
        yield Finding(level="ok", where=worker.name, what=f"LocalQueue {name} can admit GPU jobs")
        return
    change, undo = _remedy(worker, queue)
    yield Finding(
        level="warning",
        where=worker.name,
        what=f"jobs of {name} cannot run here: {why}",
        means="The hub would wait in silence; we leave this cluster out for that queue.",
        change=change,
        undo=undo,
    )


def _absent(worker: WorkerFacts, queue: LocalQueue) -> Finding:
    name = f"{queue.namespace}/{queue.name}"
    if why := obstacle(worker, queue):
        what = f"jobs of {name} do not run here, as was said: {why}"
        return Finding(level="ok", where=worker.name, what=what)
    return Finding(
        level="warning",
        where=worker.name,
        what=f"LocalQueue {name} can admit GPU jobs, and was said to be left out here",
        means="Kueue sends there whatever is nominated; a queue that shall get nothing must not "
        "be there.",
        change=f"{kubectl(worker)} -n {queue.namespace} delete localqueue {queue.name}",
        undo="# apply the same LocalQueue again",
    )


def _local_queue(worker: WorkerFacts, queue: LocalQueue) -> str:
    """Return a LocalQueue to the same-named ClusterQueue, or to the only one with GPUs."""
    with_gpus = [one.name for one in worker.cluster_queues if one.gpu_quota]
    same = queue.cluster_queue in [one.name for one in worker.cluster_queues]
    target = queue.cluster_queue if same else with_gpus[0] if len(with_gpus) == 1 else "NAME"
    existing = ", ".join(one.name for one in worker.cluster_queues) or "none yet"
    return f"""{kubectl(worker)} apply -f - <<EOF
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: {queue.name}, namespace: {queue.namespace}}}
spec: {{clusterQueue: {target}}}   # there are: {existing}
EOF"""


def _remedy(worker: WorkerFacts, queue: LocalQueue) -> tuple[str, str]:
    command = kubectl(worker)
    namespace = queue.namespace
    if namespace not in worker.namespaces:
        create = f"{command} create namespace {namespace}\n{_local_queue(worker, queue)}"
        return create, f"{command} delete namespace {namespace}"
    same = (namespace, queue.name)
    local = next((one for one in worker.local_queues if (one.namespace, one.name) == same), None)
    if local is None:
        return (
            _local_queue(worker, queue),
            f"{command} -n {namespace} delete localqueue {queue.name}",
        )
    target = next((one for one in worker.cluster_queues if one.name == local.cluster_queue), None)
    if target is not None and target.stopped:
        patch = f"{command} patch clusterqueue {target.name} --type merge -p "
        go = patch + """'{"spec":{"stopPolicy":"None"}}'"""
        return go, patch + f"""'{{"spec":{{"stopPolicy":"{target.stopped}"}}}}'"""
    if target is not None and target.state.active is not False:
        edit = f"{command} edit clusterqueue {target.name}   # spec.resourceGroups: {NVIDIA}"
        return edit, "# take the quota back the same way"
    return f"{command} describe clusterqueue {local.cluster_queue}", ""


def _nodes(worker: WorkerFacts) -> Iterator[Finding]:
    if not worker.gpu_nodes and not worker.drivers:
        yield Finding(
            level="warning",
            where=worker.name,
            what=f"none of its {worker.nodes} nodes offers GPUs",
            means="GPU jobs are not sent here until one does; with autoscaling it ranks behind "
            "clusters that have nodes.",
            change="# if it has GPUs: install NVIDIA's or AMD's GPU operator, or their device "
            "plugins; TPUs come with GKE's nodes",
        )
        return
    if not worker.gpu_nodes:
        return  # claimed devices are not counted: reading.py
    gpus = sum(node.gpus for node in worker.gpu_nodes)
    nodes = {node.name: node.ready for node in worker.gpu_nodes}
    ready = sum(nodes.values())
    what = f"{gpus} GPUs on {len(nodes)} nodes, {ready} of them ready"
    yield Finding(level="ok" if ready else "warning", where=worker.name, what=what)
    for vendor, discovery, label in MODEL_SOURCES:
        nameless = [n.name for n in worker.gpu_nodes if n.vendor == vendor and not n.model]
        if not nameless:
            continue
        more = f" and {len(nameless) - 3} more" if len(nameless) > 3 else ""
        each = " ".join(nameless)
        yield Finding(
            level="warning",
            where=worker.name,
            what=f"no label says which {'TPU' if vendor == 'tpu' else 'GPU'}: "
            f"{', '.join(nameless[:3])}{more}",
            means="Jobs that ask for a model, and scores by model, leave these nodes out.",
            change=f"# {discovery} sets {label}; or by hand, with the model's name:\n"
            f"{kubectl(worker)} label node {each} {label}=MODEL",
            undo=f"{kubectl(worker)} label node {each} {label}-",
        )
