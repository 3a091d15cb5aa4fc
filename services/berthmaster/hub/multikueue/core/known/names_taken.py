"""In which clusters another object has the name of a Workload's job, as the log says. Pure.

Kueue can make no job there. An attempt that ends for it has a reason that begins with
``NAME_TAKEN``, so that every replica and every later process run leaves the cluster out, for this
Workload alone. Somebody may remove that object: five minutes later the cluster may be tried again.

Example: ``evicted`` of job-train from w1 at 100 s, with "name taken: w1 has another Job
team/train". Until 400 s job-train is not sent to w1.
"""

from typing import Final

from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.workload import Evicted, WorkloadEvent

NAME_TAKEN: Final = "name taken"
LAST_FOR_S: Final = 300.0


def taken_words(cluster: str, blocked_by: str) -> str:
    """Return the reason of an attempt that ends for an object such as "Job team/train"."""
    kind, _, name = blocked_by.partition(" ")
    return f"{NAME_TAKEN}: {cluster} has another {kind} of this name ({name})"


class NamesTaken:
    def __init__(self) -> None:
        self._found: dict[Key, dict[str, tuple[float, str]]] = {}  # -> cluster -> time, text

    def learn(self, event: WorkloadEvent, at_s: float) -> None:
        """Apply an event of the log."""
        if isinstance(event, Evicted) and event.reason.startswith(NAME_TAKEN):
            words = event.reason.removeprefix(f"{NAME_TAKEN}: {event.cluster} ")
            name = key(event.tenant, event.id)
            self._found.setdefault(name, {})[event.cluster] = (at_s, words)

    def forget(self, name: Key) -> None:
        """Drop an ended workload."""
        self._found.pop(name, None)

    def why_not(self, name: Key, cluster: str, now_s: float) -> str:
        """Return why a workload cannot go to a cluster, or ""."""
        at_s, words = self._found.get(name, {}).get(cluster, (float("-inf"), ""))
        return words if now_s < at_s + LAST_FOR_S else ""
