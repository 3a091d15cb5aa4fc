"""Attempts whose number of pods may be changed, by cluster: kept for speed. On most days there is
none, and whoever looks for one knows at once."""

from collections.abc import Iterable

from berthmaster.lib.lifecycle.sizes import is_elastic
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import JobRequest


def may_resize(workload: Workload) -> bool:
    """Whether a decision may change it now: one that runs, that no Kueue governs or one that lets
    it, that is on no way out and has no other change before it."""
    request = workload.request
    return (
        workload.state is State.RUNNING
        and request is not None
        and is_elastic(request)
        and (workload.target.via == "direct" or _kueue_lets(workload, request))
        and workload.origin is None
        and not (workload.cancel_requested or workload.leaving or workload.resizing)
    )


def _kueue_lets(workload: Workload, request: JobRequest) -> bool:
    """Whether its worker's Kueue lets its number change, which it does of plain Jobs alone,
    whatever an executor says."""
    return workload.target.via == "worker" and workload.resizable and len(request.pod_sets) == 1


class Elastic:
    def __init__(self) -> None:
        self._here: dict[str, dict[Key, None]] = {}
        self._where: dict[Key, str] = {}

    def follow(self, workload: Workload, *, frozen: bool) -> None:
        name = workload.key
        if frozen or not may_resize(workload):
            if name in self._where:
                self.drop(name)
        elif name not in self._where:
            self._where[name] = workload.cluster
            self._here.setdefault(workload.cluster, {})[name] = None

    def drop(self, name: Key) -> None:
        """It may not be changed (any more)."""
        cluster = self._where.pop(name, None)
        if cluster is not None:
            del self._here[cluster][name]
            if not self._here[cluster]:
                del self._here[cluster]

    def clusters(self) -> list[str]:
        """Those with any."""
        return sorted(self._here)

    def among(self, cluster: str) -> Iterable[Key]:
        """Those in a cluster, in their order."""
        return sorted(self._here.get(cluster, ()))

    def names(self) -> Iterable[Key]:
        return self._where
