"""Kubernetes objects as plain mappings: names, keys, conditions. Pure.

The stand-in keeps objects as the API server sends them, since a field that it does not know must
survive a copy to a worker. Rules of this file: nothing here awaits, and nothing reads a clock;
times come in as RFC 3339 text.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

Obj = dict[str, Any]
Key = tuple[str, str]  # namespace ("" where there is none), name

GROUP = "kueue.x-k8s.io"
API_VERSION = f"{GROUP}/v1beta2"
MULTIKUEUE = f"{GROUP}/multikueue"  # controller of the check, and value of a Job's managedBy
QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"
PREBUILT = f"{GROUP}/prebuilt-workload-name"  # an annotation: a label could be too short
ORIGIN_LABEL = f"{GROUP}/multikueue-origin"
POD_SET_LABEL = f"{GROUP}/podset"
WORKLOAD_ANNOTATION = f"{GROUP}/workload"
JOB_UID_LABEL = f"{GROUP}/job-uid"
IN_USE_FINALIZER = f"{GROUP}/resource-in-use"


def key_of(obj: Obj) -> Key:
    """Namespace and name."""
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def labels_of(obj: Obj) -> dict[str, str]:
    """The labels, empty where there are none."""
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels


def prebuilt_of(job: Obj) -> str | None:
    """The Workload that came before this Job, from a hub."""
    name: str | None = (job["metadata"].get("annotations") or {}).get(PREBUILT)
    return name


def status_of(obj: Obj) -> Obj:
    """The status, made if it is not there yet, so that a transition can write into it."""
    status: Obj = obj.setdefault("status", {})
    return status


def version_of(obj: Obj) -> int:
    """The resource version as a number: from Kubernetes 1.35 on they may be compared within a
    kind."""
    return int(obj["metadata"].get("resourceVersion", "0"))


def is_deleting(obj: Obj) -> bool:
    """Deletion was asked for; only finalizers keep it."""
    return "deletionTimestamp" in obj["metadata"]


def controller_of(obj: Obj) -> Obj | None:
    """The owner reference of the controller."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None


def text_of(seconds: float) -> str:
    """A point in time as Kubernetes writes it: whole seconds, UTC."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """The reverse of text_of; takes fractions too, as other writers may send them."""
    return dt.datetime.fromisoformat(text).timestamp()


def condition_of(obj: Obj, kind: str) -> Obj | None:
    """One condition of the status."""
    for condition in obj.get("status", {}).get("conditions") or ():
        if condition["type"] == kind:
            return dict(condition)
    return None


def is_true(obj: Obj, kind: str) -> bool:
    """Whether a condition is there and True."""
    condition = condition_of(obj, kind)
    return condition is not None and condition["status"] == "True"


def set_condition(obj: Obj, kind: str, *, true: bool, reason: str, message: str, now: str) -> bool:
    """Set one condition; its time of transition moves only when its status does. True if anything
    changed."""
    conditions: list[Obj] = status_of(obj).setdefault("conditions", [])
    new = {
        "type": kind,
        "status": "True" if true else "False",
        "reason": reason,
        "message": message[:32768],
        "lastTransitionTime": now,
        "observedGeneration": obj["metadata"].get("generation", 0),
    }
    for index, old in enumerate(conditions):
        if old["type"] != kind:
            continue
        if old["status"] == new["status"]:
            new["lastTransitionTime"] = old["lastTransitionTime"]
        if {**old, "observedGeneration": 0} == {**new, "observedGeneration": 0}:
            return False
        conditions[index] = new
        return True
    conditions.append(new)
    return True


def remove_condition(obj: Obj, kind: str) -> bool:
    """Take a condition away. True if it was there."""
    conditions: list[Obj] = status_of(obj).get("conditions") or []
    kept = [condition for condition in conditions if condition["type"] != kind]
    status_of(obj)["conditions"] = kept
    return len(kept) < len(conditions)


def merge_difference(old: Obj, new: Obj) -> Obj:
    """The JSON merge patch that makes `new` of `old`: a null takes a field away, whoever owns
    it."""
    patch: Obj = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := merge_difference(before, value):
                patch[name] = inner
        elif name not in old or value != before:
            patch[name] = value
    return patch
