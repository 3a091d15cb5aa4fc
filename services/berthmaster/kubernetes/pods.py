"""The pods that we make, whoever makes them: one fixed schema. Pure.

What people ask for fills in image, command, arguments, environment, amounts, tolerations and labels
of nodes, and nothing else: nothing privileged, nothing of the host, no Secret but the tenant's own,
no rights in the cluster but those of an account that the queue names.
"""

from collections.abc import Mapping
from typing import Any, Final

from berthmaster.messages.workload import PodSet, RunSpec, Toleration

CONTAINER: Final = "main"
Document = dict[str, Any]


def pod_spec(
    run: RunSpec, pods: PodSet, *, tenant: str, account: str, devices: Mapping[str, str]
) -> Document:
    """The specification of one pod. ``tenant``: whose Secrets it may read. ``account``: a service
    account, "" = the namespace's own, whose token is not handed in then. ``devices``: extended
    resources and how many of each."""
    amounts = {"cpu": f"{pods.cpu_milli}m", "memory": f"{pods.memory_mib}Mi"}
    spec: Document = {
        "restartPolicy": "Never",
        "containers": [_container(run, tenant, amounts | dict(devices), dict(devices))],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "enableServiceLinks": False,
        # Whoever needs the cluster's API says so by naming an account in the queue.
        "automountServiceAccountToken": bool(account),
    }
    if account:
        spec["serviceAccountName"] = account
    if pods.tolerations:
        spec["tolerations"] = [_toleration(each) for each in pods.tolerations]
    if pods.node_labels:
        spec["nodeSelector"] = dict(pods.node_labels)
    return spec


def _container(
    run: RunSpec, tenant: str, requests: dict[str, str], limits: dict[str, str]
) -> Document:
    made: Document = {
        "name": CONTAINER,
        "image": run.image,
        "resources": {"requests": requests, "limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "privileged": False},
    }
    if run.command:
        made["command"] = list(run.command)
    if run.args:
        made["args"] = list(run.args)
    env: list[Document] = [{"name": name, "value": run.env[name]} for name in sorted(run.env)]
    for name, of in sorted(run.secret_env.items()):
        reference = {"name": f"{tenant}.{of.name}", "key": of.key}
        env.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    if env:
        made["env"] = env
    return made


def _toleration(toleration: Toleration) -> dict[str, str]:
    made = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    return {name: text for name, text in made.items() if text}
