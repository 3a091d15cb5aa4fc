"""Steps as writes: what stands in the objects then. Pure.

The pods of an attempt are labelled on their way to the member by an OverridePolicy of the binding's
own, so that the member's inventory knows them as ours and nobody charges them twice. A Job's
template always has labels to add to: the API server gives it its own, and Karmada takes those away
after the overriding. It stands some time before the binding is let go, as Karmada would make the
Job without it otherwise, and a Job's template cannot be changed.
"""

from typing import Any, Final

import msgspec

from berthmaster.hub.karmada.core.instructions import PutBinding, PutCondition, PutOverride
from berthmaster.hub.karmada.core.objects import APPLIED, ATTEMPT, OVER, SCHEDULED, ResourceBinding
from berthmaster.hub.karmada.core.requests import POD_SET
from berthmaster.hub.karmada.core.steps import Hold, Say
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.objects import timestamp
from berthmaster.lib.kube.resources import OVERRIDE_POLICIES, RESOURCE_BINDINGS
from berthmaster.lib.lifecycle.workload import Workload

MAX_MESSAGE: Final = 1024
_POD_LABELS: Final = "/spec/template/metadata/labels/"


def hold(binding: ResourceBinding, step: Hold, ref: str) -> PutBinding:
    """It goes nowhere."""
    told = {OVER: step.over} if step.over else {}
    return PutBinding(ref, binding, told, {"suspension": {"scheduling": True}, "clusters": None})


def release(binding: ResourceBinding, work: Workload, ref: str) -> PutBinding:
    """It goes to the cluster of its attempt."""
    spec = {
        "suspension": {"scheduling": False},
        "clusters": [{"name": work.cluster, "replicas": binding.spec.replicas}],
    }
    applied = msgspec.json.encode(binding.spec.placement_as_written or {}).decode()
    told = {ATTEMPT: str(work.attempt), APPLIED: applied}
    return PutBinding(ref, binding, told, spec)


def label(binding: ResourceBinding, work: Workload, ref: str) -> PutOverride:
    meta, of = binding.metadata, binding.spec.resource
    told = {
        labels.TENANT: work.tenant,
        labels.WORKLOAD: work.id,
        labels.ATTEMPT: str(work.attempt),
        labels.POD_SET: POD_SET,
    }
    policy = {
        "apiVersion": OVERRIDE_POLICIES.group_version,
        "kind": OVERRIDE_POLICIES.kind,
        "metadata": {
            "name": work.id,
            "namespace": meta.namespace,
            "ownerReferences": [
                {
                    "apiVersion": RESOURCE_BINDINGS.group_version,
                    "kind": RESOURCE_BINDINGS.kind,
                    "name": meta.name,
                    "uid": meta.uid,
                }
            ],
        },
        "spec": {
            "resourceSelectors": [{"apiVersion": of.api_version, "kind": of.kind, "name": of.name}],
            "overrideRules": [
                {
                    "overriders": {
                        "plaintext": [
                            {
                                "path": _POD_LABELS + name.replace("/", "~1"),
                                "operator": "add",
                                "value": text,
                            }
                            for name, text in told.items()
                        ]
                    }
                }
            ],
        },
    }
    return PutOverride(ref, binding, policy)


def say(binding: ResourceBinding, step: Say, ref: str, now_s: float) -> PutCondition:
    """Karmada's condition beside all others as they stand."""
    stands = binding.scheduled
    status = "True" if step.scheduled else "False"
    since = timestamp(now_s)
    if stands is not None and stands.status == status and stands.last_transition_time:
        since = stands.last_transition_time
    mine = {
        "type": SCHEDULED,
        "status": status,
        "reason": step.reason,
        "message": step.message[:MAX_MESSAGE],
        "lastTransitionTime": since,
    }
    others = (binding.status and binding.status.conditions) or ()
    kept = [_whole(msgspec.to_builtins(one)) for one in others if one.type != SCHEDULED]
    return PutCondition(ref, binding, (mine, *kept), step.scheduled)


def _whole(condition: dict[str, Any]) -> dict[str, Any]:
    """With what the API requires and a struct leaves out where it is empty."""
    return {"reason": "", "message": "", **condition}
