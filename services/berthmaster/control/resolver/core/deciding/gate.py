"""The gate of a request with a queue that clusters govern.

For a queue with ``via: worker`` each cluster's own Kueue gives quota and pending jobs. Its reports
lack placements that it has not admitted, including those of the draft, so the gate charges these.
"""

from collections.abc import Callable, Mapping, Sequence

from berthmaster.control.resolver.core.deciding.worker_queue import Freed, Said, asked, target_in
from berthmaster.lib.engine.fleetview.components import Gate
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.kueue.asks import Devices, devices_of
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import JobRequest

# Placements in a cluster that its own queue has not admitted.
Pending = Callable[[str], list[tuple[Target, JobRequest]]]


class WorkerGate(Gate):
    """State of the clusters' own queues for a request."""

    via = "worker"

    def __init__(
        self,
        view: FleetView,
        request: JobRequest,
        setting: QueueSetting,
        pending: Pending,
        freed: Mapping[str, Sequence[Freed]],
    ) -> None:
        """``freed``: pods assumed to have left the queues of each cluster."""
        self._view = view
        self._freed = freed
        self._request = request
        self._setting = setting
        self._pending = pending
        self._said: dict[str, Said] = {}

    def why_not(self, cluster: str) -> str:
        return self._asked(cluster).out

    def in_line(self, cluster: str) -> tuple[int, int, bool] | None:
        return self._asked(cluster).in_line

    def _asked(self, cluster: str) -> Said:
        """Return the cached state of a cluster's own queue."""
        said = self._said.get(cluster)
        if said is None:
            known, target = self._view.clusters.peek(cluster), target_in(self._setting, cluster)
            pending, devices = self._pending(cluster), self._devices(cluster)
            freed = self._freed.get(cluster, ())
            said = asked(known, target, self._request, pending, devices, freed)
            self._said[cluster] = said
        return said

    def _devices(self, cluster: str) -> Devices:
        """Return the resource names of the cluster's GPUs."""
        fleet = self._view.fleet

        def worked_out() -> Devices:
            return devices_of(map(fleet.report_at, fleet.slots_of(cluster)))

        return self._view.derived.table.note(("devices", cluster), worked_out)
