"""Kueue's objects as the API server sends them: names and conditions."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

GROUP = "kueue.x-k8s.io"
API_VERSION = f"{GROUP}/v1beta2"
MULTIKUEUE = f"{GROUP}/multikueue"  # controller of the check, and value of a Job's managedBy
QUEUE_LABEL = f"{GROUP}/queue-name"


def condition_of(obj: Obj, kind: str) -> Obj | None:
    """Return one condition of the status, or None."""
    for condition in obj.get("status", {}).get("conditions") or ():
        if condition["type"] == kind:
            return dict(condition)
    return None


def is_true(obj: Obj, kind: str) -> bool:
    """Return whether a condition exists and is True."""
    condition = condition_of(obj, kind)
    return condition is not None and condition["status"] == "True"
