"""The gate of a request whose queue the clusters govern themselves.

For a queue with ``via: worker`` each cluster's own Kueue is asked for quota and for who is in line.
It does not know yet of placements of ours that it has not let in, those of the draft that is being
made among them, so they are charged here.
"""

from collections.abc import Callable, Mapping, Sequence

from berthmaster.control.resolver.core.deciding.worker_queue import Freed, Said, asked, target_in
from berthmaster.lib.engine.fleetview.components import Gate
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.kueue.asks import Devices, devices_of
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import JobRequest

# Of a cluster: placements of ours that its own queue has not let in.
Pending = Callable[[str], list[tuple[Target, JobRequest]]]


class WorkerGate(Gate):
    """What the clusters' own queues say of a request."""

    via = "worker"

    def __init__(
        self,
        view: FleetView,
        request: JobRequest,
        setting: QueueSetting,
        pending: Pending,
        freed: Mapping[str, Sequence[Freed]],
    ) -> None:
        """``freed``: by cluster, what is taken to have left its queues."""
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
        """What its own queueing says, asked once."""
        said = self._said.get(cluster)
        if said is None:
            known, target = self._view.clusters.peek(cluster), target_in(self._setting, cluster)
            pending, devices = self._pending(cluster), self._devices(cluster)
            freed = self._freed.get(cluster, ())
            said = asked(known, target, self._request, pending, devices, freed)
            self._said[cluster] = said
        return said

    def _devices(self, cluster: str) -> Devices:
        """By what names its nodes hand out their GPUs."""
        fleet = self._view.fleet

        def worked_out() -> Devices:
            return devices_of(map(fleet.report_at, fleet.slots_of(cluster)))

        return self._view.derived.table.note(("devices", cluster), worked_out)
