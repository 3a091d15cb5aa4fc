"""What a person applies in a worker without Open Cluster Management, so that we get in there. Pure.

An account for one hub and one cluster, with rights by name: it may make the one account that Kueue
will use, change and delete that and nothing of others, and give tokens to it and to itself. It
holds MultiKueue's own rights, since nobody can hand on what he has not: it has neither ``escalate``
nor ``bind``. Creating cannot be limited by name; what is made under another name can have no more
rights than these, and cannot be deleted again.
"""

from collections.abc import Sequence
from typing import Any, Final

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.rights import Rule, rules

Body = dict[str, Any]
_RBAC: Final = "rbac.authorization.k8s.io"


def documents(hub: str, cluster: str, *, namespace: str, frameworks: Sequence[str]) -> list[Body]:
    """``hub``: its id (the uid of its namespace kube-system). ``namespace``: ours in the worker."""
    name, made = names.bootstrap(hub, cluster), names.account(hub, cluster)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    found = [
        _object("v1", "Namespace", namespace, "", labels=labels),
        _object("v1", "ServiceAccount", name, namespace, automountServiceAccountToken=False),
        *_granted("ClusterRole", name, "", subject, _everywhere(made, namespace, frameworks)),
        *_granted("Role", name, namespace, subject, _inside(name, made)),
    ]
    for one in found[1:]:
        one["metadata"]["annotations"] = {names.CLUSTER: cluster}
    return found


def _everywhere(made: str, namespace: str, frameworks: Sequence[str]) -> list[Rule]:
    kinds = ["clusterroles", "clusterrolebindings"]
    return [
        _rule(_RBAC, kinds, ["create"]),
        _rule(_RBAC, kinds, ["get", "patch", "delete"], [made]),
        _rule("", ["namespaces"], ["get"], [namespace]),
        *rules(frameworks),
    ]


def _inside(name: str, made: str) -> list[Rule]:
    return [
        _rule("", ["serviceaccounts"], ["create"]),
        _rule("", ["serviceaccounts"], ["get", "patch", "delete"], [made]),
        _rule("", ["serviceaccounts/token"], ["create"], [made, name]),
        # Empty ones, to which tokens are bound: deleting one ends its token.
        _rule("", ["secrets"], ["list", "create", "delete"]),
    ]


def _rule(
    group: str, resources: list[str], verbs: list[str], resource_names: list[str] | None = None
) -> Rule:
    named = {"resourceNames": resource_names} if resource_names else {}
    return {"apiGroups": [group], "resources": resources, **named, "verbs": verbs}


def _granted(
    kind: str, name: str, namespace: str, subject: Body, granted: list[Rule]
) -> list[Body]:
    role = {"apiGroup": _RBAC, "kind": kind, "name": name}
    version = f"{_RBAC}/v1"
    return [
        _object(version, kind, name, namespace, rules=granted),
        _object(version, f"{kind}Binding", name, namespace, roleRef=role, subjects=[subject]),
    ]


def _object(
    version: str,
    kind: str,
    name: str,
    namespace: str,
    *,
    labels: dict[str, str] | None = None,
    **more: object,
) -> Body:
    ours = {
        "app.kubernetes.io/part-of": "berthmaster",
        "app.kubernetes.io/component": "bootstrap",
        **(labels or {}),
    }
    where = {"namespace": namespace} if namespace else {}
    meta = {"name": name, **where, "labels": ours}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **more}
