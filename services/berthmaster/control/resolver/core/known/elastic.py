"""Attempts with a variable number of pods, by cluster. Usually there are none, and a search is over
at once.
"""

from collections.abc import Iterable

from berthmaster.lib.lifecycle.sizes import is_elastic
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import JobRequest


def may_resize(workload: Workload) -> bool:
    """Return whether a decision may resize the attempt: running, allowed by its Kueue if any, not
    leaving, and without a pending resize.
    """
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
    """Return whether the worker's Kueue allows a resize: of plain Jobs only, whatever the executor
    reports.
    """
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
        """Remove an attempt."""
        cluster = self._where.pop(name, None)
        if cluster is not None:
            del self._here[cluster][name]
            if not self._here[cluster]:
                del self._here[cluster]

    def clusters(self) -> list[str]:
        return sorted(self._here)

    def among(self, cluster: str) -> Iterable[Key]:
        return sorted(self._here.get(cluster, ()))

    def names(self) -> Iterable[Key]:
        return self._where
