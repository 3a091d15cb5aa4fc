"""What open jobs are expected to take, and the order that follows: engine/order.py, kept in step.

How long a job will take is settled when it is submitted, by what it states or by what had ended
until then, and stays with it: a job's place is a function of the log and of one outlook, whoever
works it out and when. Sums are whole GPU-milliseconds, so that they come out the same in whatever
order a restored state adds them up.

Of what runs, half of its service counts as still to come: on average that is so, and it needs no
clock.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from berthmaster.engine.order import NO_OUTLOOK, Outlook, Place, gpu_share, outlook, place
from berthmaster.engine.predict import Durations, KindHistory, Sizes
from berthmaster.lifecycle.fold import Key, Workload
from berthmaster.messages.workload import JobRequest

OrderBy = Literal["due", "arrival"]
AS_THEY_CAME: Final = Place(giant=False, due_at_s=0.0)  # of all where only arrival counts
_LONGEST_S: Final = 1e12


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What ``Expectations`` keeps in a snapshot."""

    durations: list[KindHistory] = []
    sizes: list[float] = []
    expected_s: dict[Key, float] = {}  # of open jobs that do not say themselves


class Expectations:
    """Of all open jobs."""

    def __init__(self, learned: Learned | None = None) -> None:
        learned = learned or Learned()
        self.durations = Durations.restored(learned.durations)
        self.sizes = Sizes(learned.sizes)
        self._expected_s = dict(learned.expected_s)
        self._share: dict[Key, float] = {}
        self._service_ms: dict[Key, int] = {}  # GPU-milliseconds
        self._live: dict[Key, bool] = {}  # of those that are counted: it runs, or it waits
        self._sums = {False: 0, True: 0}
        self.seen: Outlook | None = None  # None: jobs go as they came

    def submitted(self, workload: Workload) -> None:
        """A job is new: what will it take?"""
        request = workload.request
        if request is None:
            return
        expected_s = self.durations.expected_s(workload.tenant, request)
        if request.expected_duration_s is None:
            self._expected_s[workload.key] = expected_s
        self.sizes.learn(gpu_share(request) * expected_s)

    def succeeded(self, workload: Workload, at_s: float) -> None:
        """A job has run to its end."""
        if workload.request is not None and workload.running_at_s > 0:
            ran_s = max(0.0, at_s - workload.running_at_s)
            self.durations.learn(workload.tenant, workload.request, ran_s)

    def follow(self, workload: Workload, *, waits: bool) -> None:
        """It waits, or it is live, or neither."""
        name = workload.key
        was = self._live.pop(name, None)
        if was is not None:
            self._sums[was] -= self._service_ms[name]
        request = workload.request
        if workload.ended or request is None:
            self._forget(name)
            return
        if waits or workload.live:
            self._settle(name, request)
            self._live[name] = not waits
            self._sums[not waits] += self._service_ms[name]

    def _settle(self, name: Key, request: JobRequest) -> None:
        if name not in self._service_ms:
            share = self._share[name] = gpu_share(request)
            service_s = share * min(self.expected_s(name, request), _LONGEST_S)
            self._service_ms[name] = round(1000 * service_s)

    def _forget(self, name: Key) -> None:
        self._expected_s.pop(name, None)
        self._share.pop(name, None)
        self._service_ms.pop(name, None)

    def expected_s(self, name: Key, request: JobRequest) -> float:
        """How long an open job will take, as it was settled."""
        if request.expected_duration_s is not None:
            return request.expected_duration_s
        return self._expected_s.get(name, 0.0)

    def place(self, workload: Workload) -> Place:
        """Where a waiting job stands among those of its queue and priority."""
        if self.seen is None or workload.request is None:
            return AS_THEY_CAME
        name = workload.key
        self._settle(name, workload.request)
        service_s = self._service_ms[name] / 1000
        return place(service_s, workload.submitted_at_s, self._share[name], self.seen)

    def look(self, gpus: float, by: OrderBy) -> bool:
        """Take the fleet as it is now. Whether anybody may have another place than before."""
        before = self.seen
        if by == "arrival":
            self.seen = None
        else:
            open_s = (self._sums[False] + self._sums[True] / 2) / 1000
            giant = self.sizes.giant_gpu_s()
            self.seen = outlook(open_s, gpus, giant) if gpus > 0 else NO_OUTLOOK
        return before != self.seen

    def learned(self, waiting: Iterable[Key]) -> Learned:
        """For a snapshot, with what was settled of these jobs."""
        settled: Mapping[Key, float] = self._expected_s
        return Learned(
            durations=self.durations.kept(),
            sizes=self.sizes.kept(),
            expected_s={name: settled[name] for name in waiting if name in settled},
        )
