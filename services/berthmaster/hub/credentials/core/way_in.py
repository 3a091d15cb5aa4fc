"""The manifests that an operator applies in a worker without Open Cluster Management. Pure.

The manifests create an account for one hub and one cluster, with rights limited by name. The
account may create the one account for Kueue, and change and delete only that. The account may issue
tokens for Kueue's account and for itself. The account needs MultiKueue's own rights, because RBAC
grants only rights that the granter has, and the account has neither ``escalate`` nor ``bind``. RBAC
cannot limit creation by name. An account under another name gets at most these rights and cannot be
deleted again.
"""

from collections.abc import Sequence
from typing import Any, Final

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.rights import Rule, rules

Body = dict[str, Any]
_RBAC: Final = "rbac.authorization.k8s.io"


def documents(hub: str, cluster: str, *, namespace: str, frameworks: Sequence[str]) -> list[Body]:
    """Return the manifests.

    ``hub`` is the hub's id: the uid of its namespace kube-system. ``namespace`` is Berthmaster's in
    the worker.
    """
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
        # Empty Secrets to which tokens are bound: deleting a Secret ends its token.
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
