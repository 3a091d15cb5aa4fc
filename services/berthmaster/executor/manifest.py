"""The job object of an attempt, as Kubernetes wants it. Pure: an order in, a document out.

Rules of this file:

- The schema is fixed: see kubernetes/pods.py.
- One pod set is a Job, several are a JobSet with a Job each. All or nothing: no pod is made twice
  (``backoffLimit`` 0), so the first failure ends the attempt.
- Where pods were placed is preferred and never required: the scheduler sees what we do not.
- A deadline is enforced beside the pods and counts from when it was asked for. A job that the
  cluster's own queueing starts counts from its start, so it cannot keep one, and is not made.
"""

import hashlib
from typing import Final, NamedTuple

from berthmaster.accelerators.table import KAI_FRACTION, NVIDIA
from berthmaster.engine.fleet.shares import asked_as
from berthmaster.executor.affinity import placing
from berthmaster.executor.cluster_protocol import Attempt, CreatePods
from berthmaster.executor.offers import Offers
from berthmaster.kubernetes import labels
from berthmaster.kubernetes.pods import Document, pod_spec
from berthmaster.kubernetes.resources import JOB_SETS, JOBS, Resource
from berthmaster.kueue.names import QUEUE_LABEL
from berthmaster.messages.workload import PodSet

PODS: Final = "berthmaster.io/pods"  # annotation: "<pod set>:<count> …", what must run
EXPIRES: Final = "berthmaster.io/expires"  # annotation: seconds since 1970
STOPPED: Final = "berthmaster.io/stopped"  # annotation: why we stopped it
MAX_JOB_CHARS: Final = 58  # a pod's host name is the Job's with its index, at most 63
MAX_JOB_SET_CHARS: Final = 46  # and of a JobSet: -s15-0-4095 and five random characters
_DIGEST_CHARS: Final = 6


class Unmakeable(Exception):
    """No such object can be made here; the text says why, for people."""


class Style(NamedTuple):
    """How this cluster wants its job objects."""

    gpu_resource: str = NVIDIA
    kai_scheduler: str = "kai-scheduler"
    kai_queue: str = "default"
    run_as_non_root: bool = False
    scheduler: str = ""  # of pods that neither KAI nor HAMi shares GPUs for; "" = the usual one


def kind_of(order: CreatePods) -> Resource:
    """What the attempt's object is."""
    return JOBS if len(order.request.pod_sets) == 1 else JOB_SETS


def object_name(attempt: Attempt, kind: Resource) -> str:
    """``<id>-<attempt>-<digest>``: the same for one attempt, another for each tenant, since tenants
    may share a namespace. A long id is cut; its digest still tells it apart."""
    digest = hashlib.sha256(f"{attempt.tenant}/{attempt.id}".encode()).hexdigest()[:_DIGEST_CHARS]
    tail = f"-{attempt.number}-{digest}"
    limit = MAX_JOB_SET_CHARS if kind is JOB_SETS else MAX_JOB_CHARS
    return attempt.id[: limit - len(tail)].rstrip("-") + tail


def document(order: CreatePods, left_s: int | None, offers: Offers, style: Style) -> Document:
    """The whole object. ``left_s``: seconds that its pods may run. Raises Unmakeable."""
    request, target = order.request, order.target
    if not request.run.image:
        raise Unmakeable("run.image is missing: a real cluster needs an image to run")
    if target.via == "hub":
        raise Unmakeable("its queue goes by way of the hub, whose reconciler makes its job")
    if target.via == "worker" and left_s is not None:
        raise Unmakeable("its deadline cannot be kept where the cluster's own queue starts it")
    kind = kind_of(order)
    specs = [_job_spec(order, pods, left_s, offers, style) for pods in request.pod_sets]
    spec: Document
    if kind is JOBS:
        spec = specs[0]
    else:
        spec = {
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {"name": f"s{number}", "replicas": 1, "template": {"spec": each}}
                for number, each in enumerate(specs)
            ],
        }
    known, told = _identity(order)
    if target.via == "worker":
        spec["suspend"] = True
        known[QUEUE_LABEL] = target.local_queue
    told[PODS] = " ".join(f"{pods.name}:{pods.count}" for pods in request.pod_sets)
    if order.stop_after_s is not None and order.asked_at_s is not None:
        told[EXPIRES] = f"{order.asked_at_s + order.stop_after_s:.3f}"
    return {
        "apiVersion": kind.group_version,
        "kind": kind.kind,
        "metadata": {
            "name": object_name(order.attempt, kind),
            "namespace": target.namespace,
            "labels": known,
            "annotations": told,
        },
        "spec": spec,
    }


def _identity(order: CreatePods) -> tuple[dict[str, str], dict[str, str]]:
    """Labels, and annotations for what does not fit into one."""
    tenant, workload, number = order.attempt
    whole = {
        labels.TENANT: tenant,
        labels.WORKLOAD: workload,
        labels.ATTEMPT: str(number),
        labels.EXECUTOR: order.executor,
    }
    short = {key: labels.value(text) for key, text in whole.items()}
    return short, {key: text for key, text in whole.items() if short[key] != text}


def _job_spec(
    order: CreatePods, pods: PodSet, left_s: int | None, offers: Offers, style: Style
) -> Document:
    spec: Document = {
        "parallelism": pods.count,
        "completions": pods.count,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": _template(order, pods, offers, style),
    }
    if left_s is not None:
        spec["activeDeadlineSeconds"] = left_s
    return spec


def _template(order: CreatePods, pods: PodSet, offers: Offers, style: Style) -> Document:
    known, told = _identity(order)
    known[labels.POD_SET] = pods.name
    devices: dict[str, str] = {}
    scheduler = style.scheduler
    nodes = [b.node for b in order.pods if b.pod.rpartition("-")[0] == pods.name]
    if pods.gpus and pods.gpu_milli < 1000:
        share = offers.share(nodes, pods)
        if share is None:
            raise Unmakeable(f"no node of pod set {pods.name} offers such a part of a GPU")
        if share.kind == "kai":
            told[KAI_FRACTION] = f"{offers.part_milli(nodes, pods) / 1000:g}"
            known["kai.scheduler/queue"] = style.kai_queue
            scheduler = style.kai_scheduler
        else:
            milli = offers.part_milli(nodes, pods)
            asked = asked_as(share, pods, milli, style.gpu_resource)
            devices = {name: str(amount) for name, amount in asked.items()}
            scheduler = "" if share.kind == "hami" else scheduler  # HAMi brings its own
    elif pods.gpus:
        usual = pods.gpu_resource or style.gpu_resource
        devices = {offers.whole_gpu(nodes, usual): str(pods.gpus)}
    account = order.target.service_account
    tenant = order.attempt.tenant
    run = order.request.run
    spec = pod_spec(run, pods, tenant=tenant, account=account, devices=devices)
    spec |= placing(nodes, pods, order.request.pod_sets, known, offers)
    if style.run_as_non_root:
        spec["securityContext"]["runAsNonRoot"] = True
    if scheduler:
        spec["schedulerName"] = scheduler
    metadata: Document = {"labels": known}
    if told:
        metadata["annotations"] = told
    return {"metadata": metadata, "spec": spec}
