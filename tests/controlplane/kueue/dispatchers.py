"""Which clusters a Workload is offered to: AllAtOnce, Incremental, or somebody else's program.

Incremental nominates the first few clusters in the order of the MultiKueueConfig and a few more
after each round; a nomination once made stays. AllAtOnce is part of the group's look (multikueue).
With any other name nothing is nominated here: whoever has that name does it.
"""

from __future__ import annotations

import time

from berthmaster.kubernetes import resources
from tests.controlplane.kueue import lifecycle
from tests.controlplane.kueue.clusters import Cluster
from tests.controlplane.kueue.objects import MULTIKUEUE, Key, Obj, is_deleting, status_of
from tests.controlplane.kueue.writing import Writer

GROUP = "kueue.x-k8s.io"
ALL_AT_ONCE = f"{GROUP}/multikueue-dispatcher-all-at-once"
INCREMENTAL = f"{GROUP}/multikueue-dispatcher-incremental"


def check_of(local: Cluster, workload: Obj) -> Obj | None:
    """The state of the Workload's MultiKueue check, if it has one."""
    for state in lifecycle.checks_of(workload):
        check = local.get(resources.ADMISSION_CHECKS, ("", state["name"]))
        if check is not None and check["spec"]["controllerName"] == MULTIKUEUE:
            return state
    return None


def clusters_of(local: Cluster, check_name: str) -> list[str] | None:
    """The clusters of a check's config, in its order; None if there is no config."""
    check = local.get(resources.ADMISSION_CHECKS, ("", check_name))
    parameters = (check or {}).get("spec", {}).get("parameters")
    if not parameters:
        return None
    config = local.get(resources.MULTIKUEUE_CONFIGS, ("", parameters["name"]))
    return None if config is None else list(config["spec"]["clusters"])


def wants_nomination(workload: Obj, check: Obj | None) -> bool:
    """Quota is there, the check waits, and no cluster is chosen."""
    return (
        check is not None
        and check["state"] == "Pending"
        and not workload.get("status", {}).get("clusterName")
        and lifecycle.has_quota(workload)
        and not lifecycle.is_finished(workload)
        and not is_deleting(workload)
    )


class Incremental:
    """A few clusters now, a few more after each round."""

    def __init__(self, local: Cluster, writer: Writer, *, step: int, round_s: float) -> None:
        self._local = local
        self._writer = writer
        self._step = step
        self._round_s = round_s
        self._began_s: dict[Key, float] = {}  # a restart of the manager begins a new round

    async def look(self, key: Key) -> float | None:
        """Nominate if it is time; how many seconds until the next round."""
        workload = self._local.get(resources.WORKLOADS, key)
        if workload is None:
            self._began_s.pop(key, None)
            return None
        check = check_of(self._local, workload)
        if check is None or not wants_nomination(workload, check):
            if not lifecycle.has_quota(workload):
                self._began_s.pop(key, None)
            return None
        names = clusters_of(self._local, check["name"]) or []
        now_s = time.monotonic()
        if (began_s := self._began_s.get(key)) is not None:
            left_s = began_s + self._round_s - now_s
            if left_s > 0:
                return left_s
        nominated = list(workload["status"].get("nominatedClusterNames") or ())
        more = [name for name in names if name not in nominated][: self._step]
        if not more:
            return None

        def change(copy: Obj, _now: str) -> None:
            status_of(copy)["nominatedClusterNames"] = nominated + more

        await self._writer.admission(workload, change)
        self._began_s[key] = now_s
        return self._round_s
