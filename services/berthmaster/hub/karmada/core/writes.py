"""Steps as writes: the wanted state of the objects. Pure.

An OverridePolicy per binding labels the pods of an attempt on their way to the member. Thereby the
member's inventory attributes the pods to Berthmaster, and no quota is charged twice. A Job's
template always has labels for the policy to extend: the API server adds its own, and Karmada
removes those after overriding. The policy exists some time before the binding's release. Otherwise
Karmada would create the Job without the labels, and a Job's template is immutable.
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
    """Suspend the scheduling of a binding."""
    told = {OVER: step.over} if step.over else {}
    return PutBinding(ref, binding, told, {"suspension": {"scheduling": True}, "clusters": None})


def release(binding: ResourceBinding, work: Workload, ref: str) -> PutBinding:
    """Send the binding to the cluster of its attempt."""
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
    """Set Karmada's condition, and keep all others."""
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
    """Add the fields that the API requires and a struct omits when empty."""
    return {"reason": "", "message": "", **condition}
