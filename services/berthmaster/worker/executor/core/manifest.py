"""The job object of an attempt for Kubernetes. Pure: an order in, a document out.

Example: an order for workload ``train``, attempt 2, of tenant acme becomes the Job
``train-2-<digest>`` with the labels of the attempt and one pod per index.

Rules of this file:

- lib/jobs/pods.py has the schema, and each kind's file (lib/jobs/kinds) its particularities.
- All or nothing: no pod is created twice, so the first failure ends the attempt.
- Chosen nodes are preferred, never required. HAMi ignores preferences and chooses node and GPU
  itself; the running pods show which.
- Devices are requested in the way of their nodes: by extended resource, by KAI's annotations, or by
  a claim (claims.py).
- A deadline is enforced beside the pods and counts from the order. A job started by the cluster's
  own queueing counts from its start, cannot keep a deadline, and is rejected.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.accelerators.table import (
    KAI_FRACTION,
    KAI_MEMORY,
    MPS_MEMORY,
    MPS_THREADS,
    NVIDIA,
    pieces_of_whole,
)
from berthmaster.lib.engine.fleet.pieces import pieces_of
from berthmaster.lib.engine.fleet.shares import (
    asked_as,
    is_by_kais_memory,
    isolation_of,
    part_of,
    sized_milli,
    takes_milli,
)
from berthmaster.lib.jobs import gangs, rendezvous
from berthmaster.lib.jobs.gangs import GROUP, KAI_MEMBERS, VOLCANO_PREEMPTABLE, Gangs, Group
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.kinds.kind import JobKind, JobPlan
from berthmaster.lib.jobs.kinds.table import kind_of
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB
from berthmaster.lib.jobs.pods import (
    GPU_CLAIM,
    OPENS_GPUS,
    Document,
    Existing,
    pod_spec,
    use_claims,
)
from berthmaster.lib.jobs.templates import apply as templates_apply
from berthmaster.lib.kube import labels
from berthmaster.lib.kueue.names import ELASTIC_JOB, EQUAL_COMPLETIONS, MIN_PARALLELISM, QUEUE_LABEL
from berthmaster.lib.lifecycle.pods import is_elastic, is_set_elastic, least, most
from berthmaster.lib.messages.fleet import Share
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Part, PodSet
from berthmaster.worker.executor.core import claims
from berthmaster.worker.executor.core.affinity import Offers, placing
from berthmaster.worker.executor.core.cluster_protocol import Attempt, CreatePods

PODS: Final = "berthmaster.io/pods"  # annotation: "<pod set>:<count> …", pods that must run
SIZES: Final = "berthmaster.io/pod-bounds"  # annotation: "<pod set>:<min>-<max> …", of elastic jobs
EXPIRES: Final = "berthmaster.io/expires"  # annotation: seconds since 1970
STOPPED: Final = "berthmaster.io/stopped"  # annotation: reason of the executor's stop
LEAVING: Final = "berthmaster.io/leaving"  # annotation of a pod: reason of its coming end
# Annotation: receipt of the placement, signed by the door
RECEIPT: Final = "berthmaster.io/receipt"
MAX_RECEIPT_CHARS: Final = 192 * 1024  # all annotations of an object have 256 KiB
HAMI_POLICY: Final = "hami.io/gpu-scheduler-policy"  # annotation
HAMI_WEBHOOK: Final = "hami.io/webhook"  # label
MAX_AVOIDED: Final = 1024  # hosts in an object, whose size is limited
KAI_QUEUE: Final = "kai.scheduler/queue"  # label of pods
# Label of pods; the default is preemptible
KAI_PREEMPTIBILITY: Final = "kai.scheduler/preemptibility"
_DIGEST_CHARS: Final = 6


class Unmakeable(Exception):
    """No such object can be made here; the text says why, for people. ``of_request``: nor in any
    other cluster."""

    def __init__(self, why: str, *, of_request: bool = False) -> None:
        super().__init__(why)
        self.of_request = of_request


class Style(NamedTuple):
    """The style of job objects in this cluster."""

    kai_scheduler: str = "kai-scheduler"
    kai_queue: str = "default-queue"
    run_as_non_root: bool = False
    scheduler: str = ""  # of pods without GPU sharing by KAI or HAMi; "" = default scheduler
    gangs: Gangs = Gangs.NONE  # gang scheduling of the cluster
    kai_gangs: bool = True  # whether KAI gets gangs
    volcano_scheduler: str = "volcano"  # of all other pods, where Volcano starts the gangs
    volcano_queue: str = "default"
    # Kinds that the cluster serves and the executor creates
    kinds: tuple[JobKind, ...] = (JOB, JOB_SET)

    @property
    def by_volcano(self) -> bool:
        """Whether Volcano's scheduler starts all pods that no other shares GPUs for."""
        return self.gangs is Gangs.VOLCANO or VOLCANO_JOB in self.kinds


def object_name(attempt: Attempt, kind: JobKind) -> str:
    """Return ``<id>-<attempt>-<digest>``, unique for each tenant, since tenants may share a
    namespace. A long id is cut, and its digest still distinguishes it.
    """
    digest = hashlib.sha256(f"{attempt.tenant}/{attempt.id}".encode()).hexdigest()[:_DIGEST_CHARS]
    tail = f"-{attempt.number}-{digest}"
    head = "j-" if kind.needs_letter and attempt.id[0].isdecimal() else ""
    return head + attempt.id[: kind.max_name_chars - len(head) - len(tail)].rstrip("-") + tail


def document(
    order: CreatePods,
    left_s: int | None,
    offers: Offers,
    style: Style,
    existing: Mapping[str, Existing] = {},
    *,
    resizable: bool = True,
) -> Document:
    """Return the whole object. Raises Unmakeable.

    ``left_s``: maximum run time in seconds. ``existing``: the claims named by the request.
    ``resizable``: whether the cluster's Kueue, if used, allows other numbers of pods.
    """
    request, target = order.request, order.target
    if not request.run.image:
        why = "run.image is missing: a real cluster needs an image to run"
        raise Unmakeable(why, of_request=True)
    if target.via == "hub":
        raise Unmakeable("its queue goes by way of the hub, whose reconciler makes its job")
    if target.via == "worker" and left_s is not None:
        why = "its deadline cannot be kept where the cluster's own queue starts it"
        raise Unmakeable(why, of_request=True)
    kind = kind_of(request, target.via, style.kinds)
    name = object_name(order.attempt, kind)
    if style.gangs in kind.lacks_gangs:
        style = style._replace(gangs=Gangs.NONE)
    peers = rendezvous.peers_of(request, name, kind)
    templates: dict[str, Document] = {}
    pod_templates = []
    for number, pods in enumerate(request.pod_sets):
        devices = _devices(order, pods, offers, style)
        template = ""
        if devices.claim is not None:
            template = f"{kind.part_name(name, number)}-{GPU_CLAIM}"
            templates[template] = devices.claim
        named = {claim: existing.get(claim, "template") for claim in pods.claims}
        pod = _template(order, pods, devices, offers, style)
        kind.complete_pod(pod["spec"], left_s)
        if request.runtime_used is not None:
            templates_apply(pod["spec"], pods, request.runtime_used.template)
        if rendezvous.is_told(request, peers):
            rendezvous.join(pod["spec"], request, peers, number)
        use_claims(pod["spec"], named, template)
        pod_templates.append(pod)
    scheduler = style.scheduler or style.volcano_scheduler
    spec = kind.spec(
        JobPlan(request, pod_templates, left_s, peers.service, style.volcano_queue, scheduler)
    )
    known, told = _identity(order)
    if target.via == "worker":
        spec["suspend"] = True
        known[QUEUE_LABEL] = target.local_queue
    if not kind.is_gang:
        told |= _together(order, name, pod_templates, style)
    if templates:
        told[claims.TEMPLATES] = claims.encode(templates)
    told |= _sizes(order, kind, resizable=resizable)
    if order.stop_after_s is not None and order.asked_at_s is not None:
        told[EXPIRES] = f"{order.asked_at_s + order.stop_after_s:.3f}"
    if peers.service:
        told[rendezvous.SERVICE] = peers.service
    if 0 < len(order.receipt) <= MAX_RECEIPT_CHARS:
        told[RECEIPT] = order.receipt
    return {
        "apiVersion": kind.resource.group_version,
        "kind": kind.resource.kind,
        "metadata": {
            "name": name,
            "namespace": target.namespace,
            "labels": known,
            "annotations": told,
            "finalizers": [labels.FINALIZER],
        },
        "spec": spec,
    }


def kueue_may_resize(order: CreatePods, kind: JobKind) -> bool:
    """Return whether Kueue may allow resizes of such a job, if that Kueue supports them."""
    return order.target.via == "worker" and kind is JOB and is_elastic(order.request)


def counts_text(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{count}" for name, count in counts.items())


def _sizes(order: CreatePods, kind: JobKind, *, resizable: bool) -> dict[str, str]:
    """Annotations by the number of pods: how many must run, and how many may."""
    sets = order.request.pod_sets
    told = {PODS: counts_text({pods.name: pods.count for pods in sets})}
    if is_elastic(order.request):
        told[SIZES] = " ".join(f"{p.name}:{least(p)}-{most(p)}" for p in sets)
        if kueue_may_resize(order, kind):
            told |= {ELASTIC_JOB: "true"} if resizable else _partly_admitted(sets[0])
    return told


def _partly_admitted(pods: PodSet) -> dict[str, str]:
    """Return annotations with which Kueue may admit fewer pods than requested if quota is short.
    Kueue never allows this together with elastic jobs.
    """
    if least(pods) >= pods.count:
        return {}
    return {MIN_PARALLELISM: str(least(pods)), EQUAL_COMPLETIONS: "true"}


def _array_env(order: CreatePods) -> dict[str, str]:
    index = order.request.array_index
    return {} if index is None else {"BERTH_ARRAY_INDEX": str(index)}


def _part_env(part: Part | None) -> dict[str, str]:
    """Return environment variables about the divided job."""
    if part is None:
        return {}
    return {
        "BERTH_JOB": part.job,
        "BERTH_PART": str(part.number),
        "BERTH_PARTS": str(len(part.clusters)),
        "BERTH_PART_CLUSTERS": " ".join(part.clusters),
        "BERTH_PART_PODS": " ".join(map(str, part.pods)),
        "BERTH_PART_OFFSET": str(sum(part.pods[: part.number])),
    }


def _sizes_env(pods: PodSet) -> dict[str, str]:
    """Return environment variables about an elastic pod set: its size at creation and its bounds.
    The job's rendezvous knows the present members.
    """
    if not is_set_elastic(pods):
        return {}
    return {
        "BERTH_COUNT": str(pods.count),
        "BERTH_MIN_COUNT": str(least(pods)),
        "BERTH_MAX_COUNT": str(most(pods)),
    }


def _together(
    order: CreatePods, name: str, templates: Sequence[Document], style: Style
) -> dict[str, str]:
    """Return annotations for gang scheduling, and add the group to the templates. Elastic sets
    count with their minimum.
    """
    if sum(each.count for each in order.request.pod_sets) < 2:
        return {}
    pods = sum(least(each) for each in order.request.pod_sets)
    by_kai = [each["spec"].get("schedulerName") == style.kai_scheduler for each in templates]
    if all(by_kai):
        return {KAI_MEMBERS: str(pods)} if style.kai_gangs else {}
    if any(by_kai) or style.gangs is Gangs.NONE:
        return {}  # two schedulers have no gang in common
    queue = style.volcano_queue if style.gangs is Gangs.VOLCANO else ""
    group = Group(style.gangs, pods, queue)
    for each in templates:
        gangs.join(group, name, each)
    return {GROUP: group.text}


def _identity(order: CreatePods) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels, and annotations for values that are no valid labels."""
    tenant, workload, number = order.attempt
    whole = {
        labels.TENANT: tenant,
        labels.WORKLOAD: workload,
        labels.ATTEMPT: str(number),
        labels.EXECUTOR: order.executor,
    }
    short = {key: labels.value(text) for key, text in whole.items()}
    return short, {key: text for key, text in whole.items() if short[key] != text}


class _Devices(NamedTuple):
    """How the pods of a set request devices."""

    counted: Mapping[str, int] = {}  # extended resources
    annotations: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    claim: Document | None = None  # content of each pod's claim
    by: str = ""  # kai or hami, if it allocates the GPUs
    isolation: str = ""  # isolation of a GPU fraction


def _devices(order: CreatePods, pods: PodSet, offers: Offers, style: Style) -> _Devices:
    others = dict(pieces_of(pods))
    if not pods.gpus:
        return _Devices(others)
    nodes = nodes_of(order, pods)
    if pods.gpu_milli == 1000:
        claim, whole = offers.whole(seats_of(order, pods), pods)
        if not whole:
            wanted = ", ".join(pods.gpu_models) or pods.gpu_resource or "enough"
            raise Unmakeable(
                f"the nodes chosen for pod set {pods.name} have no such GPUs: {wanted}"
            )
        if claim is not None:
            return _claimed(others, claims.of_whole(nodes, pods, claim, offers))
        by = "hami" if offers.are_hamis(nodes) else ""
        return _Devices(others | {whole: pods.gpus * pieces_of_whole(whole)}, by=by)
    share = offers.share(nodes, pods)
    if share is None:
        raise Unmakeable(f"no node of pod set {pods.name} offers such a part of a GPU")
    isolation = isolation_of(share)
    if share.claim is not None:
        made = _claimed(others, claims.of_part(nodes, pods, share, offers))
        return made._replace(isolation=isolation)
    memories_mib = offers.memories_mib(nodes)
    if share.kind == "kai":
        made = _by_kai(others, pods, share, memories_mib)
        return made._replace(isolation=isolation)
    counted = asked_as(share, pods, memories_mib)
    return _Devices(
        others | counted,
        env=_held_to_less(share, pods, memories_mib),
        by="hami" if share.kind == "hami" else "",
        isolation=isolation,
    )


def _claimed(others: Mapping[str, int], asked: Document) -> _Devices:
    """The driver hands in what the claim got. An image that says ``all``, as CUDA's do, would have
    an old container runtime hand in the rest."""
    return _Devices(others, env={OPENS_GPUS: "void"}, claim=asked)


def _by_kai(
    others: Mapping[str, int], pods: PodSet, share: Share, memories_mib: Sequence[int]
) -> _Devices:
    milli = takes_milli(share, part_of(pods), min(memories_mib, default=0))
    if milli >= 1000:  # all of it is no fraction, and has more memory than KAI would hand out
        return _Devices({**others, NVIDIA: 1}, by="kai")
    if is_by_kais_memory(share, pods):
        return _Devices(others, {KAI_MEMORY: str(pods.gpu_memory_mib)}, by="kai")
    return _Devices(others, {KAI_FRACTION: f"{milli / 1000:g}"}, by="kai")


def _held_to_less(share: Share, pods: PodSet, memories_mib: Sequence[int]) -> dict[str, str]:
    """Return limits for a pod under MPS that requests less than its replica."""
    if share.kind != "shared" or isolation_of(share) != "memory":
        return {}
    least_mib = min(memories_mib, default=0)
    if pods.gpu_memory_mib and not least_mib:
        return {}  # unknown share of the GPU
    milli = sized_milli(part_of(pods), least_mib)
    env = {}
    if (percent := -(-milli // 10)) < share.milli // 10:
        env[MPS_THREADS] = str(percent)
    part_mib = -(-milli * least_mib // 1000)
    if 0 < part_mib < share.memory_mib:
        env[MPS_MEMORY] = f"0={part_mib}M"
    return env


def _checkpoint_env(order: CreatePods) -> dict[str, str]:
    told = order.checkpoint
    if told is None:
        return {}
    return {"BERTH_CHECKPOINT_URI": told.uri, "BERTH_CHECKPOINT_STEP": str(told.step)}


def nodes_of(order: CreatePods, pods: PodSet) -> list[str]:
    """Return the chosen nodes of a set's pods."""
    return [binding.node for binding in seats_of(order, pods)]


def seats_of(order: CreatePods, pods: PodSet) -> list[PodBinding]:
    """Return the places of the pods of a set."""
    return [binding for binding in order.pods if binding.pod.rpartition("-")[0] == pods.name]


def _template(
    order: CreatePods, pods: PodSet, devices: _Devices, offers: Offers, style: Style
) -> Document:
    known, told = _identity(order)
    known[labels.POD_SET] = pods.name
    told |= devices.annotations
    if devices.isolation:
        told[labels.ISOLATION] = devices.isolation
    scheduler = style.scheduler
    if style.by_volcano:
        scheduler = style.scheduler or style.volcano_scheduler
    if devices.by == "kai":
        scheduler = style.kai_scheduler
    elif devices.by == "hami":
        scheduler = ""  # HAMi sets its own
        told[HAMI_POLICY] = "binpack"  # over the GPUs of a node, as chosen
    elif style.by_volcano and not order.request.preemptible:
        told[VOLCANO_PREEMPTABLE] = "false"  # the default of Volcano is preemptible
    if scheduler == style.kai_scheduler:
        known[KAI_QUEUE] = style.kai_queue
        if not order.request.preemptible:
            known[KAI_PREEMPTIBILITY] = "non-preemptible"
    spec = pod_spec(
        order.request.run,
        pods,
        tenant=order.attempt.tenant,
        account=order.target.service_account,
        devices={name: str(amount) for name, amount in devices.counted.items()},
        env={
            **_array_env(order),
            **_part_env(order.request.part),
            **_sizes_env(pods),
            **_checkpoint_env(order),
            **devices.env,
        },
    )
    avoided: list[str] = []
    if NVIDIA in devices.counted and devices.by != "hami":
        # HAMi's nodes advertise each GPU several times, and only pods of its scheduler can start
        # there. That scheduler sees no other nodes.
        avoided = offers.hosts_of_hami()[:MAX_AVOIDED]
    if avoided:
        known[HAMI_WEBHOOK] = "ignore"
    spec |= placing(nodes_of(order, pods), pods, order.request.pod_sets, known, offers, avoided)
    if style.run_as_non_root:
        spec["securityContext"]["runAsNonRoot"] = True
    if scheduler:
        spec["schedulerName"] = scheduler
    if order.request.grace_s is not None:
        spec["terminationGracePeriodSeconds"] = math.ceil(order.request.grace_s)
    metadata: Document = {"labels": known}
    if told:
        metadata["annotations"] = told
    return {"metadata": metadata, "spec": spec}
