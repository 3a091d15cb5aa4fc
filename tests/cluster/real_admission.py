"""Admission of others' webhooks in a plane: a server on loopback, registered by its path."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Admission(NamedTuple):
    """One path of a server, and what is asked of it."""

    path: str
    changes: bool  # it may change what it is asked about
    resource: str  # <group>/<version>/<plural>; of Kubernetes' first kinds the group is empty
    operations: Sequence[str] = ("CREATE", "UPDATE")


def configuration(name: str, url: str, ca: Path, of: Admission) -> dict[str, Any]:
    """As an installer registers it: what it cannot be asked about is refused."""
    group, version, plural = of.resource.split("/")
    rule = {"apiGroups": [group], "apiVersions": [version], "resources": [plural]}
    kind = "Mutating" if of.changes else "Validating"
    told = base64.b64encode(ca.read_bytes()).decode()
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{kind.lower()}.{plural}.{group or 'core'}",
                "rules": [rule | {"operations": list(of.operations)}],
                "clientConfig": {"url": f"{url}{of.path}", "caBundle": told},
                "admissionReviewVersions": ["v1"],
                "sideEffects": "NoneOnDryRun",
                "failurePolicy": "Fail",
                "timeoutSeconds": 10,
            }
        ],
    }
