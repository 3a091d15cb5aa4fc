"""The Job on the hub for a request of a queue that uses MultiKueue. Pure.

The Job is suspended and managed by MultiKueue, so no pod runs on the hub. Its labels name tenant
and workload. Its pods carry no labels of Berthmaster: the worker counts their usage as unmanaged,
as placements made there directly must see. ResourceClaimTemplates are those of the worker's
namespace, which nothing on the hub can check.
"""

from collections.abc import Iterable
from typing import Any, Final

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.engine.fleet.gpus import labels_of
from berthmaster.lib.engine.fleet.pieces import makes_slice, pieces_of
from berthmaster.lib.jobs import rendezvous
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.kind import JobPlan
from berthmaster.lib.jobs.pods import one_of, pod_spec, tpu_nodes, use_claims
from berthmaster.lib.jobs.templates import apply
from berthmaster.lib.kube.labels import JOB_NAME, TENANT, WORKLOAD, value
from berthmaster.lib.kueue.asks import asked_resource
from berthmaster.lib.kueue.jobs import job_name
from berthmaster.lib.kueue.names import MULTIKUEUE, QUEUE_LABEL
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.requests.queues import by_hub_refusal

HUB: Final = "hub"  # the hub's own entry of a queue's places
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def unmakeable(workload: Workload) -> str:
    """Return why the Job cannot be created, or ""."""
    request = workload.request
    if request is None or not request.run.image:
        return "run.image is missing: a real cluster needs an image to run"
    refusal = by_hub_refusal(request)
    return f"{refusal.field}: {refusal.expected}" if refusal is not None else ""


def place_of(queue: str, setting: QueueSetting | None) -> QueuePlace:
    """Namespace, account and LocalQueue of a queue on the hub."""
    places = setting.places if setting is not None else {}
    place = places.get(HUB) or places.get("*") or QueuePlace()
    if place.local_queue:
        return place
    return QueuePlace(
        namespace=place.namespace, service_account=place.service_account, local_queue=queue
    )


def manifest(
    workload: Workload, setting: QueueSetting | None, nodes: Iterable[NodeReport]
) -> tuple[str, dict[str, Any]]:
    """Return namespace and manifest of a makeable Job. ``nodes``: the fleet's, for labels of GPU
    models.
    """
    request = workload.request
    assert request is not None
    place = place_of(request.queue, setting)
    whole = {TENANT: workload.tenant, WORKLOAD: workload.id}
    labels = {name: value(text) for name, text in whole.items()}
    labels[QUEUE_LABEL] = place.local_queue
    annotations = {name: text for name, text in whole.items() if labels[name] != text}
    pod = {"spec": _pod(workload.tenant, request, place, nodes)}
    body: dict[str, Any] = {
        "apiVersion": JOB.resource.group_version,
        "kind": JOB.resource.kind,
        "metadata": {
            "name": job_name(workload.tenant, workload.id),
            "namespace": place.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {"suspend": True, "managedBy": MULTIKUEUE, **JOB.spec(JobPlan(request, [pod]))},
    }
    return place.namespace, body


def _pod(
    tenant: str, request: JobRequest, place: QueuePlace, nodes: Iterable[NodeReport]
) -> dict[str, Any]:
    job, pods = job_name(tenant, request.id), request.pod_sets[0]
    devices = {name: str(number) for name, number in pieces_of(pods)}
    if pods.gpus:
        devices[asked_resource(pods)] = str(pods.gpus)
    account = place.service_account
    spec = pod_spec(request.run, pods, tenant=tenant, account=account, devices=devices)
    use_claims(spec, dict.fromkeys(pods.claims, "template"))
    affinity: dict[str, Any] = {}
    terms = []
    if pods.gpus and pods.gpu_models:
        terms = [
            {"matchExpressions": [one_of(key, values)]}
            for key, values in labels_of(nodes, pods.gpu_models, 0, pods.gpu_resource).items()
        ]
    elif of_tpus := tpu_nodes(pods):
        terms = [{"matchExpressions": of_tpus}]
    if terms:
        affinity["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": terms}}
    if makes_slice(pods):  # any pool: Job controllers write the addresses
        mine = {"labelSelector": {"matchLabels": {JOB_NAME: job}}}
        affinity["podAffinity"] = {_REQUIRED: [{"topologyKey": tpu.POOL_LABEL} | mine]}
    if affinity:
        spec["affinity"] = affinity
    if request.runtime_used is not None:
        apply(spec, pods, request.runtime_used.template)
        rendezvous.join(spec, request, rendezvous.peers_of(request, job), 0)
    return spec
