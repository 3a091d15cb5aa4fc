"""Affinity of pods for kube-scheduler. Pure.

Example: two pods were placed on nodes a and b. Both prefer a and b with weight 100, and the
scheduler may choose other nodes. With ``gpu_models: [A100]`` an A100 node is required.

Rules of this file:

- Chosen nodes are preferred, never required: the scheduler has more information.
- Requirements of the request are required: GPU models and topology. Pods find each other by the
  labels of their attempt, so two jobs never interact.
- "At most k pods a node" is a topology spread in which an empty node always counts: then the skew
  is the number of pods of a node. The kubelet alone chooses the GPUs.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.engine.fleet.models import HOSTNAME
from berthmaster.lib.engine.fleet.pieces import makes_slice
from berthmaster.lib.jobs.pods import Document, one_of, tpu_nodes
from berthmaster.lib.kube import labels
from berthmaster.lib.messages.workload import ONE_NODE, PodSet
from berthmaster.worker.executor.core.offers import Offers

MAX_PREFERRED: Final = 256  # nodes in an object, whose size is limited
CHOSEN_WEIGHT: Final = 100  # of 100, for a chosen node
MODEL_WEIGHT: Final = 40  # for a node with the most preferred model; less for the next ones
MODEL_STEP: Final = 5
FEWEST_WEIGHT: Final = 50  # for a node with pods of the same set
_MORE_THAN_ANY: Final = 2**31 - 1  # nodes


def placing(
    nodes: Sequence[str],
    pods: PodSet,
    pod_sets: Sequence[PodSet],
    known: Mapping[str, str],
    offers: Offers,
    avoided: Sequence[str] = (),
) -> Document:
    """Fields of the specification of a pod. ``nodes``: that were chosen for the set; ``known``: the
    labels of its pods; ``avoided``: names of hosts where it could not start."""
    affinity: Document = {"nodeAffinity": _nodes(nodes, pods, offers, avoided)}
    spec: Document = {"affinity": affinity}
    if makes_slice(pods):
        # The scheduler finds the pool: whole pools form one slice.
        term = _term(tpu.POOL_LABEL, _pods_of(known, [pods.name]))
        affinity["podAffinity"] = {_REQUIRED: [term]}
    topology = pods.topology
    if topology is None or sum(each.count for each in pod_sets) < 2:
        return spec
    mine = dict(known)
    if topology.same:
        theirs = [p.name for p in pod_sets if p.topology and p.topology.same == topology.same]
        key = HOSTNAME if topology.same == ONE_NODE else topology.same
        same = affinity.setdefault("podAffinity", {}).setdefault(_REQUIRED, [])
        same.append(_term(key, _pods_of(mine, theirs)))
    if topology.nodes:
        term = _term(HOSTNAME, _pods_of(mine, [pods.name]))
        preferred = {"weight": FEWEST_WEIGHT, "podAffinityTerm": term}
        affinity.setdefault("podAffinity", {})[_PREFERRED] = [preferred]
    if topology.max_pods_a_node == 1:
        term = _term(HOSTNAME, _pods_of(mine, [pods.name]))
        affinity["podAntiAffinity"] = {_REQUIRED: [term]}
    elif topology.max_pods_a_node:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": topology.max_pods_a_node,
                "minDomains": _MORE_THAN_ANY,  # so an empty node counts as the minimum
                "topologyKey": HOSTNAME,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": _pods_of(mine, [pods.name]),
            }
        ]
    return spec


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def _term(key: str, selector: Document) -> Document:
    return {"topologyKey": key, "labelSelector": selector}


def _pods_of(known: Mapping[str, str], pod_sets: Sequence[str]) -> Document:
    """Return a selector of the pods of these sets in this attempt."""
    whose = {key: known[key] for key in (labels.TENANT, labels.WORKLOAD, labels.ATTEMPT)}
    if len(pod_sets) == 1:
        return {"matchLabels": whose | {labels.POD_SET: pod_sets[0]}}
    among = {"key": labels.POD_SET, "operator": "In", "values": list(pod_sets)}
    return {"matchLabels": whose, "matchExpressions": [among]}


def _nodes(nodes: Sequence[str], pods: PodSet, offers: Offers, avoided: Sequence[str]) -> Document:
    hosts = list(dict.fromkeys(offers.hostname(node) for node in nodes))[:MAX_PREFERRED]
    preferred = [(CHOSEN_WEIGHT, HOSTNAME, hosts)] if hosts else []
    if pods.gpus:
        for rank, model in enumerate(pods.prefer_gpu_models):
            named = offers.labels_of_model(model, pods.gpu_memory_mib)
            preferred += [(MODEL_WEIGHT - MODEL_STEP * rank, key, each) for key, each in named]
    affinity: Document = {}
    if preferred:
        affinity[_PREFERRED] = [
            {"weight": weight, "preference": {"matchExpressions": [one_of(key, values)]}}
            for weight, key, values in preferred
        ]
    if slice_of := tpu_nodes(pods):
        affinity[_REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": slice_of}]}
    if pods.gpus and (pods.gpu_models or pods.gpu_memory_mib):
        terms = [
            {"matchExpressions": [one_of(key, values)]}
            for key, values in offers.models(pods).items()
        ]
        if terms:
            affinity[_REQUIRED] = {"nodeSelectorTerms": terms}
    if avoided:
        elsewhere = {"key": HOSTNAME, "operator": "NotIn", "values": list(avoided)}
        required = affinity.setdefault(_REQUIRED, {"nodeSelectorTerms": [{"matchExpressions": []}]})
        for term in required["nodeSelectorTerms"]:  # alternatives
            term["matchExpressions"].append(elsewhere)
    return affinity
