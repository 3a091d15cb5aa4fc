"""The gate of a request whose queue the clusters govern themselves.

For a queue with ``via: worker`` each cluster's own Kueue is asked for quota and for who is in line.
It does not know yet of placements of ours that it has not let in, those of the draft that is being
made among them, so they are charged here.
"""

from collections.abc import Mapping

from berthmaster.fleetview.gate import Gate
from berthmaster.kueue.asks import Devices, devices_of
from berthmaster.messages.control import QueueSetting
from berthmaster.messages.placement import Target
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.deciding.worker_queue import Said, asked, target_in
from berthmaster.resolver.known.knowledge import Knowledge

Drafted = Mapping[str, list[tuple[Target, JobRequest]]]  # by cluster, of a draft


class WorkerGate(Gate):
    """What the clusters' own queues say of a request."""

    def __init__(
        self, know: Knowledge, request: JobRequest, setting: QueueSetting, drafted: Drafted
    ) -> None:
        self._know = know
        self._request = request
        self._setting = setting
        self._drafted = drafted
        self._said: dict[str, Said] = {}

    def why_not(self, cluster: str) -> str:
        return self._asked(cluster).out

    def in_line(self, cluster: str) -> tuple[int, int, bool] | None:
        return self._asked(cluster).in_line

    def _asked(self, cluster: str) -> Said:
        """What its own queueing says, asked once."""
        said = self._said.get(cluster)
        if said is None:
            known, target = self._know.clusters.peek(cluster), target_in(self._setting, cluster)
            pending, devices = self._pending(cluster), self._devices(cluster)
            said = self._said[cluster] = asked(known, target, self._request, pending, devices)
        return said

    def _pending(self, cluster: str) -> list[tuple[Target, JobRequest]]:
        """Placements of ours that its own queue has not let in."""
        know = self._know
        waiting = (know.open[key] for key in know.derived.unadmitted.get(cluster, ()))
        pending = [(w.target, w.request) for w in waiting if w.request is not None]
        return [*pending, *self._drafted.get(cluster, ())]

    def _devices(self, cluster: str) -> Devices:
        """By what names its nodes hand out their GPUs."""
        fleet = self._know.fleet

        def worked_out() -> Devices:
            return devices_of(map(fleet.report_at, fleet.slots_of(cluster)))

        return self._know.derived.table.note(("devices", cluster), worked_out)
