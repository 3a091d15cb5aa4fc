"""Compares the log's clusters of Workloads (``clusterName`` of the hub) with the workers' copies.

Kueue creates a copy of a Workload in every nominated cluster, starts the job in one of them and
names that cluster. If Kueue names another cluster, or two copies keep running, only the workers
report that.

A copy that is removed late is no finding. Two findings exist: a copy that runs beside the named
cluster's copy for longer than the tolerance, and a successful end without a running copy while
another cluster's copy succeeded. Example: the log says running in w1 from 10 s to 50 s, and w2
reports its copy as admitted from 12 s to 49 s: w2's copy runs beside w1's. The copy of a silent
cluster counts until the cluster's last report, because its later state is unknown.

A completed job must not run again. Each inventory counts the completed Jobs of one copy name, and
starts from 0 with its process: 1, 2, then 1 after a restart are three.

Only Workloads by users of the hub are compared: the log has no Kueue name of the others.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.fleet import CopyReport

TOLERANCE_S: Final = 10.0  # seconds for a late report, plus Kueue's removal of a copy
SILENT_S: Final = 10.0
IN_PLACE: Final = (State.ADMITTED, State.RUNNING)

CopyKey = tuple[str, str]  # namespace, name: the same on hub and worker


class Span(NamedTuple):
    """A time span of a state in a cluster."""

    cluster: str
    from_s: float
    until_s: float

    def overlap_s(self, other: "Span") -> float:
        """Return the seconds in which both spans overlap."""
        return min(self.until_s, other.until_s) - max(self.from_s, other.from_s)


class Contradiction(NamedTuple):
    name: Key
    what: str


class Copies:
    """Compares log and copies. Pass the log, then the facts, each in order, then read the
    results."""

    def __init__(self, tolerance_s: float = TOLERANCE_S) -> None:
        self._tolerance_s = tolerance_s
        self._names: dict[CopyKey, Key] = {}
        self._named: dict[Key, list[Span]] = {}  # clusters according to the log
        self._since: dict[Key, tuple[str, float]] = {}
        self._ended_in: dict[Key, str] = {}  # cluster of a successful end
        self._ran: dict[Key, list[Span]] = {}  # clusters according to the copies
        self._running: dict[tuple[str, CopyKey], float] = {}  # (cluster, copy) -> start
        self._copies_in: dict[str, set[CopyKey]] = {}  # running copies, by cluster
        self._finished_in: dict[Key, set[str]] = {}
        self._heard_at_s: dict[str, float] = {}
        # (cluster, copy) -> last reported number
        self._counted: dict[tuple[str, CopyKey], int] = {}
        self._succeeded: dict[Key, Counter[str]] = {}  # number of completions, by cluster

    def on_workload(self, workload: Workload, at_s: float) -> None:
        """Apply a workload after an applied event."""
        name, origin = workload.key, workload.origin
        if origin is not None and origin.system == "kueue":
            self._names[origin.namespace, origin.name] = name
        now = workload.cluster if workload.state in IN_PLACE else ""
        cluster, since_s = self._since.get(name, ("", 0.0))
        if cluster != now:
            if cluster:
                self._named.setdefault(name, []).append(Span(cluster, since_s, at_s))
            self._since[name] = (now, at_s)
        if workload.state is State.SUCCEEDED:
            self._ended_in[name] = workload.cluster

    def on_fact(self, cluster: str, at_s: float) -> None:
        heard_s = self._heard_at_s.get(cluster, at_s)
        self._heard_at_s[cluster] = at_s
        if at_s - heard_s > SILENT_S:
            for copy in list(self._copies_in.get(cluster, ())):
                self._stop(cluster, copy, heard_s)
                self._start(cluster, copy, at_s)

    def on_copy(self, report: CopyReport, at_s: float) -> None:
        self.on_fact(report.cluster, at_s)
        copy = (report.namespace, report.workload)
        name = self._names.get(copy)
        if name is None:
            return
        before = self._counted.get((report.cluster, copy), 0)
        self._counted[report.cluster, copy] = report.succeeded
        if report.succeeded != before:
            grown = report.succeeded - (before if report.succeeded > before else 0)
            self._succeeded.setdefault(name, Counter())[report.cluster] += grown
        if report.finished:
            self._finished_in.setdefault(name, set()).add(report.cluster)
        if report.running and not report.gone:
            self._start(report.cluster, copy, at_s)
        else:
            self._stop(report.cluster, copy, at_s)

    def contradictions(self) -> Iterator[Contradiction]:
        for cluster, copies in self._copies_in.items():
            for copy in list(copies):
                self._stop(cluster, copy, self._heard_at_s[cluster])
        for name, (cluster, since_s) in self._since.items():
            if cluster:
                self._named.setdefault(name, []).append(Span(cluster, since_s, float("inf")))
        for name, ran in self._ran.items():
            yield from self._beside(name, ran)
        for name, finished in self._finished_in.items():
            named = self._ended_in.get(name, "")
            ran_in = finished | {span.cluster for span in self._ran.get(name, ())}
            if named and named not in ran_in:
                where = ", ".join(sorted(finished))
                what = f"ended well in {named} by the hub, and its copy in {where}"
                yield Contradiction(name, what)

    def repeated(self) -> Iterator[Contradiction]:
        """Yield jobs that have completed more than once."""
        for name, times in self._succeeded.items():
            if times.total() > 1:
                where = ", ".join(f"{cluster} {n}" for cluster, n in sorted(times.items()) if n)
                yield Contradiction(name, f"{times.total()} times: in {where}")

    def _beside(self, name: Key, ran: list[Span]) -> Iterator[Contradiction]:
        told: set[tuple[str, str]] = set()
        for named in self._named.get(name, ()):
            for span in ran:
                one, other = named.cluster, span.cluster
                if one == other or (one, other) in told:
                    continue
                seconds = named.overlap_s(span)
                if seconds > self._tolerance_s:
                    told.add((one, other))
                    what = f"in {one} by the hub, and {other} ran its copy for {seconds:.0f} s"
                    yield Contradiction(name, what)

    def _start(self, cluster: str, copy: CopyKey, at_s: float) -> None:
        self._running.setdefault((cluster, copy), at_s)
        self._copies_in.setdefault(cluster, set()).add(copy)

    def _stop(self, cluster: str, copy: CopyKey, at_s: float) -> None:
        since_s = self._running.pop((cluster, copy), None)
        self._copies_in.get(cluster, set()).discard(copy)
        if since_s is not None:
            self._ran.setdefault(self._names[copy], []).append(Span(cluster, since_s, at_s))
