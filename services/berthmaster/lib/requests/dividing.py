"""Whether a job can be divided as it asks, and which ids only parts of such jobs have. Pure."""

from typing import Final

from berthmaster.lib.lifecycle.sizes import is_set_elastic
from berthmaster.lib.lifecycle.workload import division_of
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.explain import invalid
from berthmaster.lib.messages.workload import Divide, JobRequest

MAX_ID_CHARS: Final = 40  # of a job that may be divided: the ids of its parts are longer


def id_fault(request: JobRequest) -> Refusal | None:
    """Why it cannot have this id, if so."""
    if division_of(request.id) is not None:
        right = "an id that does not end as those of parts of divided jobs do: --<number>-<number>"
        return invalid(["id"], request.id, right)
    if request.divide is not None and len(request.id) > MAX_ID_CHARS:
        right = f"at most {MAX_ID_CHARS} characters, as the job may be divided (divide)"
        return invalid(["id"], request.id, right)
    return None


def divide_fault(request: JobRequest) -> Refusal | None:
    """The first field that does not go with being divided, if any."""
    how = request.divide
    if how is None:
        return None
    if len(request.pod_sets) > 1:
        right = "nothing: of a job with several pod sets none can be divided"
        return invalid(["divide"], _told(how), right)
    pods = request.pod_sets[0]
    if how.min_part > pods.count:
        right = f"at most count, which is {pods.count}"
        return invalid(["divide", "min_part"], how.min_part, right)
    if is_set_elastic(pods):
        right = "nothing: a job whose number of pods changes (min_count, max_count) stays together"
        return invalid(["divide"], _told(how), right)
    if pods.tpu_topology:
        right = f"nothing: the pods make one slice {pods.tpu_topology} (tpu_topology)"
        return invalid(["divide"], _told(how), right)
    if pods.topology is not None and pods.topology.same:
        right = f"nothing: all pods are to be in one place (topology.same {pods.topology.same})"
        return invalid(["divide"], _told(how), right)
    return _weights_fault(request, how) or _address_fault(how)


def _weights_fault(request: JobRequest, how: Divide) -> Refusal | None:
    if how.weights and how.by != "weight":
        right = f"nothing, as by is {how.by}"
        return invalid(["divide", "weights"], f"{len(how.weights)} clusters", right)
    for cluster in how.weights:
        if request.clusters and cluster not in request.clusters:
            right = f"one of clusters: {', '.join(request.clusters)}"
            return invalid(["divide", "weights"], cluster, right)
    return None


def _address_fault(how: Divide) -> Refusal | None:
    if how.address and not how.gang:
        right = "nothing, as gang is false: pods that need no others need no address of theirs"
        return invalid(["divide", "address"], how.address, right)
    return None


def via_refusal(setting: QueueSetting, request: JobRequest) -> Refusal | None:
    """Why jobs of this queue cannot be divided, if so."""
    if request.divide is None or setting.via == "direct":
        return None
    where = "the hub's Kueue" if setting.via == "hub" else "the Kueue of one cluster"
    right = f"nothing: {where} starts the jobs of the queue {setting.queue!r} (via {setting.via})"
    return invalid(["divide"], _told(request.divide), right)


def _told(how: Divide) -> str:
    return f"by {how.by}"
