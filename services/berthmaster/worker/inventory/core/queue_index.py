"""Kueue's queues and copies of a cluster, and the changed ones. Pure."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.queues import ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from berthmaster.lib.kueue.workloads import Workload
from berthmaster.lib.messages.fleet import CopyReport, LocalQueueReport, QueueReport, Stamp
from berthmaster.worker.inventory.core.cohorts import CIRCLE, Cohorts
from berthmaster.worker.inventory.core.kinds import WatchedKind
from berthmaster.worker.inventory.core.objects import WaitingPod
from berthmaster.worker.inventory.core.queues import (
    Beside,
    Copy,
    Flavor,
    Queue,
    copy_of,
    copy_report,
    flavor_of,
    local_queue_of,
    queue_of,
    queue_report,
)
from berthmaster.worker.inventory.core.waiting import NOBODY, Owner, WaitingPods

Key = tuple[str, str]
MAX_SUCCEEDED: Final = 10_000  # copies whose completed Jobs are remembered


def _no_owner(key: Key) -> Owner:
    """Return the owner of a copy without a job."""
    return Owner(key[0])


class QueueIndex:
    def __init__(self, cluster: str, problems: Problems) -> None:
        self._cluster = cluster
        self._problems = problems
        self._found: dict[str, ClusterQueue] = {}
        self._queues: dict[str, Queue] = {}
        self._flavors: dict[str, Flavor] = {}
        self._cohort_objects: dict[str, Cohort] = {}
        self._cohorts = Cohorts()
        self._cohorts_in_use: set[str] = set()
        self._local: dict[Key, tuple[str, LocalQueueReport]] = {}
        self._led_by: dict[str, set[Key]] = {}  # ClusterQueue -> its LocalQueues
        self._copies: dict[Key, Copy] = {}
        self._owners: dict[Key, Owner] = {}  # copy -> its job
        self._blocked: dict[Key, str] = {}  # copy -> object with its job's name
        self._succeeded: OrderedDict[Key, set[str]] = OrderedDict()  # copy -> UIDs of Jobs
        self._waiting = WaitingPods()
        self.dirty_queues: dict[str, bool] = {}
        self.dirty_copies: dict[Key, bool] = {}

    # ---- Queries

    @property
    def flavor_labels(self) -> frozenset[str]:
        """Return the node label keys of flavors."""
        return frozenset(key for flavor in self._flavors.values() for key in flavor.labels)

    def queues(self) -> Iterator[str]:
        return iter(self._queues)

    def copies(self) -> Iterator[Key]:
        return iter(self._copies)

    def has_queue(self, name: str) -> bool:
        return name in self._queues

    def has_copy(self, key: Key) -> bool:
        return key in self._copies

    def queue(self, name: str, stamp: Stamp, now_s: float, *, served: bool) -> QueueReport:
        """Return the report of a queue, or of its removal."""
        queue = self._queues.get(name) if served else None
        local = [self._local[key][1] for key in self._led_by.get(name, ())]
        return queue_report(self._cluster, name, queue, local, stamp, now_s)

    def copy(self, key: Key, stamp: Stamp, now_s: float, *, served: bool) -> CopyReport:
        copy = self._copies.get(key) if served else None
        beside = Beside(
            waiting=self._waiting.of(self._owners.get(key, NOBODY)),
            blocked_by=self._blocked.get(key, ""),
            succeeded=len(self._succeeded.get(key, ())),
        )
        return copy_report(self._cluster, *key, copy, beside, stamp, now_s)

    def without_job(self) -> Iterator[tuple[Key, Copy]]:
        """Return the copies for which Kueue has made no job here yet."""
        for key, copy in self._copies.items():
            if self._owners[key] == _no_owner(key) and not copy.finished:
                yield key, copy

    # ---- Changes

    def set_queue(self, found: ClusterQueue) -> None:
        name = found.metadata.name
        before = self._found.get(name)
        self._found[name] = found
        if before is None or before.spec.cohort_name != found.spec.cohort_name:
            self._queues_moved()
        self._work_out(name)

    def drop_queue(self, name: str) -> None:
        before = self._found.pop(name, None)
        self._problems.set(WatchedKind.CLUSTER_QUEUES.value, name, ())
        if self._queues.pop(name, None) is not None:
            self.dirty_queues[name] = True
        if before is not None:
            self._queues_moved()

    def _work_out(self, name: str) -> None:
        queue = queue_of(self._found[name], self._flavors, self._cohorts.path)
        if queue.active and self._cohorts.circular(queue.cohort):
            queue = queue._replace(active=False, reason=CIRCLE)
        if queue != self._queues.get(name):
            self._queues[name] = queue
            self._problems.set(WatchedKind.CLUSTER_QUEUES.value, name, queue.problems)
            self.dirty_queues[name] = True

    def _work_out_all(self) -> None:
        for name in self._found:
            self._work_out(name)

    def set_flavor(self, found: ResourceFlavor) -> None:
        """Apply a flavor. Every queue with it changes."""
        self._flavors[found.metadata.name] = flavor_of(found)
        self._work_out_all()

    def drop_flavor(self, name: str) -> None:
        self._flavors.pop(name, None)
        self._work_out_all()

    def set_cohort(self, found: Cohort) -> None:
        """Apply a cohort. Every queue below it changes."""
        self._cohort_objects[found.metadata.name] = found
        self._arrange_cohorts()

    def drop_cohort(self, name: str) -> None:
        if self._cohort_objects.pop(name, None) is not None:
            self._problems.set(WatchedKind.COHORTS.value, name, ())
            self._arrange_cohorts()

    def _queues_moved(self) -> None:
        """Rearrange cohorts after the set of cohorts with queues changed."""
        in_use = {one.spec.cohort_name or "" for one in self._found.values()}
        if self._cohort_objects and in_use != self._cohorts_in_use:
            self._arrange_cohorts()

    def _arrange_cohorts(self) -> None:
        self._cohorts_in_use = {one.spec.cohort_name or "" for one in self._found.values()}
        wrong = self._cohorts.arrange(self._cohort_objects.values(), self._cohorts_in_use)
        for name, problems in wrong.items():
            self._problems.set(WatchedKind.COHORTS.value, name, problems)
        self._work_out_all()

    def set_local(self, found: LocalQueue) -> None:
        key = (found.metadata.namespace, found.metadata.name)
        now = (found.spec.cluster_queue, local_queue_of(found))
        if now == self._local.get(key):
            return
        self.drop_local(key)
        self._local[key] = now
        self._led_by.setdefault(now[0], set()).add(key)
        self._touch(now[0])

    def drop_local(self, key: Key) -> None:
        before = self._local.pop(key, None)
        if before is not None:
            led = self._led_by[before[0]]
            led.discard(key)
            if not led:
                del self._led_by[before[0]]
            self._touch(before[0])

    def _touch(self, queue: str) -> None:
        if queue in self._queues:
            self.dirty_queues[queue] = True

    def set_copy(self, found: Workload) -> None:
        key = (found.metadata.namespace, found.metadata.name)
        copy, owner = copy_of(found), Owner(key[0], *found.owner)
        if owner != _no_owner(key):
            self._blocked.pop(key, None)
        if copy != self._copies.get(key) or owner != self._owners.get(key):
            self._copies[key] = copy
            self._owners[key] = owner
            self.dirty_copies[key] = True

    def set_blocked(self, key: Key, by: str) -> None:
        """Take over what has the name of a copy's job here; "" = nothing."""
        if key in self._copies and by != self._blocked.get(key, ""):
            self._blocked[key] = by
            self.dirty_copies[key] = True

    def set_sent_job(self, found: HubJob) -> None:
        """Apply a Job created by MultiKueue."""
        name, uid = found.copy_name, found.metadata.uid
        if not name or not found.succeeded:
            return
        key = (found.metadata.namespace, name)
        done = self._succeeded.setdefault(key, set())
        if uid not in done:
            done.add(uid)
            self.dirty_copies[key] = True
        self._succeeded.move_to_end(key)
        if len(self._succeeded) > MAX_SUCCEEDED:
            self._succeeded.popitem(last=False)

    def drop_copy(self, key: Key) -> None:
        self._owners.pop(key, None)
        self._blocked.pop(key, None)
        if self._copies.pop(key, None) is not None:
            self.dirty_copies[key] = True

    def set_waiting(self, found: WaitingPod) -> None:
        """Apply a pod without a node."""
        self._touch_copies_of(self._waiting.put(found))

    def drop_waiting(self, key: Key) -> None:
        self._touch_copies_of(self._waiting.drop(key))

    def _touch_copies_of(self, owner: Owner) -> None:
        if owner != NOBODY:
            self.dirty_copies |= {key: True for key, of in self._owners.items() if of == owner}
