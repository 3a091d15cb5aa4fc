"""The rights of each side's service account, by mode: deploy's RBAC files as access reviews.

A test checks these rights on real API servers after applying the chart.
"""

from collections.abc import Sequence
from typing import Final

from berthmaster.cli.doctor.facts import Mode, Right
from berthmaster.lib.kube.resources import (
    JOBS,
    RESOURCE_CLAIM_TEMPLATES,
    SERVICES,
    VOLCANO_JOBS,
    VOLCANO_POD_GROUPS,
    Resource,
)

HUB_ACCOUNT: Final = "berth-hub"
DISPATCHING_ROLE: Final = "berthmaster-multikueue-dispatching"
AGENT_ACCOUNT: Final = "berth-agent"
_KUEUE: Final = "kueue.x-k8s.io"
_READ: Final = ("get", "list", "watch")


# Optional rights (deploy/chart/templates/hub-rights.yaml) are not checked.
_SAY: Final = ("create", "", "events", "to say on an object what is in its way")
_DISPATCH: Final = (("patch", _KUEUE, "workloads/status", "to nominate"), _SAY)


def _read(group: str, *resources: str, namespace: str = "", why: str = "") -> list[Right]:
    return [
        Right(verb=verb, group=group, resource=resource, namespace=namespace, why=why)
        for resource in resources
        for verb in _READ
    ]


def _identity(why: str) -> Right:
    """Return the right to read the UID that identifies an API server."""
    return Right(verb="get", group="", resource="namespaces", name="kube-system", why=why)


def hub_rights(mode: Mode, namespaces: Sequence[str]) -> list[Right]:
    """Return the hub's rights; writes of the dispatch mode only in these namespaces."""
    seen = "to see what Kueue does"
    rights = _read(
        _KUEUE,
        *("workloads", "localqueues", "clusterqueues", "admissionchecks"),
        *("multikueueconfigs", "multikueueclusters"),
        why=seen,
    )
    rights += _read("batch", "jobs", why="to see what a Workload is for")
    rights.append(_identity("to tell this hub from others"))
    rights += [
        Right(verb=verb, group=group, resource=resource, namespace=namespace, why=why)
        for namespace in (namespaces if mode == "dispatch" else ())
        for verb, group, resource, why in _DISPATCH
    ]
    return rights


def agent_rights(
    namespaces: Sequence[str],
    *,
    claims: bool = False,
    groups: Sequence[Resource] = (),
    volcano_jobs: bool = False,
) -> list[Right]:
    """Return a worker's rights; jobs only in these namespaces.

    ``claims``: devices are claimed there (DRA). ``groups``: objects for gangs. ``volcano_jobs``:
    Volcano's own Jobs are served.
    """
    seen = "to report what is free"
    rights = _read("", "nodes", "pods", why=seen)
    rights.append(_identity("to tell this cluster from others"))
    queues = ("clusterqueues", "cohorts", "localqueues", "resourceflavors", "workloads")
    rights += _read(_KUEUE, *queues, why="to report quota")
    rights += _read("batch", "jobs", why="to tell what the GPUs of each job do")
    if claims:
        kinds = ("resourceslices", "resourceclaims", "deviceclasses")
        rights += _read("resource.k8s.io", *kinds, why="to report devices that are claimed")
    made = [(SERVICES, "to let the pods of gangs find each other")]
    made += [(RESOURCE_CLAIM_TEMPLATES, "to claim devices")] if claims else []
    made += [(group, "to start gangs together") for group in groups]
    run = [(JOBS, "to run jobs")]
    run += [(VOLCANO_JOBS, "to run jobs of Volcano's")] if volcano_jobs else []
    told = [VOLCANO_POD_GROUPS] if volcano_jobs or VOLCANO_POD_GROUPS in groups else []
    for namespace in namespaces:
        for kind, why in run:
            verbs = ("create", "get", "list", "watch", "patch", "delete")
            rights += _on(kind, *verbs, namespace=namespace, why=why)
        for kind in told:
            rights += _on(kind, "list", "watch", namespace=namespace, why="to say why gangs wait")
        for kind, why in made:
            rights += _on(kind, "create", "get", namespace=namespace, why=why)
        rights.append(
            Right(
                verb="get",
                group="",
                resource="namespaces",
                namespace=namespace,
                name=namespace,
                why="to let go of jobs whose namespace is being deleted",
            )
        )
        rights.append(
            Right(
                verb="get",
                group="",
                resource="pods/log",
                namespace=namespace,
                why="to show what jobs write",
            )
        )
    return rights


def _on(kind: Resource, *verbs: str, namespace: str, why: str) -> list[Right]:
    return [
        Right(verb=verb, group=kind.group, resource=kind.plural, namespace=namespace, why=why)
        for verb in verbs
    ]
