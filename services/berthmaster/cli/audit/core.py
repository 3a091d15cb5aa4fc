"""The auditor: checks the bus's content against the invariants, and trusts no service's account.

The auditor folds the log with the common fold, which defines applied events. The auditor computes
everything else: promised GPUs, whole gangs, gaps in the chain, and pods in node reports. Facts lag
by their reporter's interval. So a pod in two places is a finding only if both reports last longer
than the tolerance.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from berthmaster.cli.audit.copies import Copies
from berthmaster.cli.audit.promises import Promises
from berthmaster.lib.lifecycle.fold import LOST, Verdict, offer
from berthmaster.lib.lifecycle.pods import least, most
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.fleet import CopyReport, NodeGone, NodeReport
from berthmaster.lib.messages.placement import HUB_CELL, Decision, PodBinding
from berthmaster.lib.messages.workload import (
    Carried,
    Committed,
    JobRequest,
    LimitExceeded,
    Placed,
    Submitted,
    WorkloadEvent,
)

WHOLE: Final = 1000
TOLERANCE_S: Final = 3.0
MAX_FINDINGS: Final = 200


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A violated rule."""

    rule: str
    where: str
    what: str
    sequence: int = 0


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The auditor's result. ``clean`` means no findings."""

    clean: bool
    submitted: int
    succeeded: int
    failed: int
    cancelled: int
    running: int  # claimed, admitted, running, or divided over clusters
    waiting: int  # queued, or placed and not yet claimed
    accounted: bool  # True if the five above add up to ``submitted``
    events: int
    void: int
    decisions: int
    frozen: int  # number of workloads with an unreadable message
    placements: int
    withdrawals: int
    evictions: int
    node_reports: int
    peak_gpu_milli: int  # maximum ever promised of one GPU
    findings: tuple[Finding, ...]
    findings_left_out: int = 0
    carried: int = 0  # number of workloads that `berth recover` copied into this log


class _Presence(NamedTuple):
    """The time since which a node reports pods of an attempt."""

    attempt: int
    since_s: float


class Auditor:
    """Audits log and node reports. Pass the log, then the reports, in order, then read the
    report."""

    def __init__(
        self,
        *,
        tolerance_s: float = TOLERANCE_S,
    ) -> None:
        self._tolerance_s = tolerance_s
        self._workloads: dict[Key, Workload] = {}
        self._verdicts: Counter[Verdict] = Counter()
        self._counts: Counter[str] = Counter()
        self._promises = Promises()
        self._decisions: dict[str, tuple[int, int]] = {}  # cell -> number, sequence
        self._choices: dict[tuple[str, int], set[tuple[Key, int]]] = {}
        self._present: dict[tuple[str, str], dict[Key, _Presence]] = defaultdict(dict)
        self._nodes_of: dict[Key, set[tuple[str, str]]] = defaultdict(set)
        self._last_report_s = 0.0
        self._copies = Copies()
        self._parts: dict[Key, set[Key]] = {}  # parts of the jobs that are divided now
        self._frozen: set[Key] = set()
        self._findings: list[Finding] = []
        self._lost: dict[Key, int] = {}  # workloads with missing events -> sequence after the gap
        self._left_out = 0

    def _find(self, rule: str, where: str, what: str, sequence: int = 0) -> None:
        if len(self._findings) >= MAX_FINDINGS:
            self._left_out += 1
            return
        self._findings.append(Finding(rule=rule, where=where, what=what, sequence=sequence))

    # The log

    def on_event(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        is_astray: bool = False,
    ) -> None:
        """Apply one event, in stream order. ``is_astray``: its subject names another workload."""
        name = key(event.tenant, event.id)
        workload = self._workloads.get(name)
        if workload is None:
            workload = self._workloads[name] = Workload(tenant=event.tenant, id=event.id)
        had_ended = workload.ended
        last = workload.sequence
        verdict = offer(workload, event, sequence, stored_at_s, void=is_astray)
        self._verdicts[verdict] += 1
        kind = type(event).__name__
        if is_astray:
            self._find("no forged event", name, f"{kind} of another under its subject", sequence)
        if verdict is Verdict.IMPOSSIBLE:
            state = workload.state.value
            rule = "one ending" if had_ended else "life cycle"
            self._find(rule, name, f"{kind} while {state}", sequence)
        if verdict is Verdict.COUNTED and isinstance(event, Carried):
            self._lost.pop(name, None)
        elif last < event.after < sequence and not (is_astray or had_ended):
            self._lost.setdefault(name, sequence)
        if verdict is not Verdict.COUNTED:
            return
        self._counts[kind] += 1
        if isinstance(event, Placed):
            self._check_choice(event, name, sequence)
            if event.cell != HUB_CELL:  # in a hub cell Kueue admits all or none, and names no pods
                self._check_whole(event.request, event.pods, name, sequence)
        if isinstance(event, LimitExceeded):
            what = f"attempt {event.attempt}: {event.limit} {event.used} of {event.granted} granted"
            self._find("shares are held", name, what, sequence)
        self._check_parts(workload, event, sequence)
        self._copies.on_workload(workload, stored_at_s)
        self._check_gpus(workload, sequence)
        self._promises.on_workload(workload, sequence, stored_at_s)

    def on_decision(self, decision: Decision, sequence: int) -> None:
        """Apply one decision of a chain, in stream order with the events."""
        self._counts["Decision"] += 1
        number, after = self._decisions.get(decision.cell, (0, 0))
        if decision.number != number + 1 and number:
            what = f"decision {decision.number} follows {number}"
            self._find("decision chain", decision.cell, what, sequence)
        if number and decision.after != after:
            what = (
                f"decision {decision.number} names {decision.after}, not {after}, as the one before"
            )
            self._find("decision chain", decision.cell, what, sequence)
        self._decisions[decision.cell] = (decision.number, sequence)
        self._choices[decision.cell, decision.number] = {
            (key(c.tenant, c.id), c.attempt) for c in decision.placements
        }

    def _check_choice(self, placed: Placed, name: Key, sequence: int) -> None:
        choices = self._choices.get((placed.cell, placed.decision))
        if choices is not None and (name, placed.attempt) not in choices:
            what = f"placed by decision {placed.decision}, which does not say so"
            self._find("decision chain", name, what, sequence)

    def _check_whole(
        self, request: JobRequest, pods: Iterable[PodBinding], name: Key, sequence: int
    ) -> None:
        bound = Counter(b.pod.rpartition("-")[0] for b in pods)
        wanted = {p.name: p.count for p in request.pod_sets}
        allowed = all(least(p) <= bound[p.name] <= most(p) for p in request.pod_sets)
        if not allowed or bound.keys() - wanted.keys():
            self._find("gangs are whole", name, f"{dict(bound)} of {wanted}", sequence)

    def _check_parts(self, workload: Workload, event: WorkloadEvent, sequence: int) -> None:
        """Check the parts of a divided job.

        The job has exactly its parts. All parts start together or none does. The job does nothing
        else before its parts end.
        """
        name = workload.key
        part = workload.request.part if workload.request is not None else None
        if isinstance(event, Submitted) and part is not None:
            job = self._workloads.get(key(workload.tenant, part.job))
            if job is None or workload.id not in {each.id for each in job.parts}:
                self._find("parts belong to a job", name, f"{part.job} has no such part", sequence)
            else:
                self._parts.setdefault(job.key, set()).add(name)
        if isinstance(event, Committed) and workload.parts:
            for each in workload.parts:
                other = self._workloads.get(key(workload.tenant, each.id))
                if other is None or not (other.committed and other.state is State.CLAIMED):
                    what = f"committed without {each.id}"
                    self._find("parts start together", name, what, sequence)
        if name in self._parts and workload.state is not State.DIVIDED:
            open_ = sorted(p for p in self._parts.pop(name) if not self._workloads[p].ended)
            if open_:
                what = f"{type(event).__name__} while {', '.join(open_)} have not ended"
                self._find("a job ends after its parts", name, what, sequence)

    def _check_gpus(self, workload: Workload, sequence: int) -> None:
        """Check that each pod has the requested number of GPUs."""
        if not workload.live or workload.request is None:
            return
        sets = {p.name: p for p in workload.request.pod_sets}
        for binding in workload.pods:
            pods = sets.get(binding.pod.rpartition("-")[0])
            if pods is not None and binding.gpus and len(set(binding.gpus)) != pods.gpus:
                what = f"{binding.pod} has {len(set(binding.gpus))} of {pods.gpus} GPUs"
                self._find("gangs are whole", workload.key, what, sequence)

    def on_damage(self, what: str, sequence: int = 0) -> None:
        """Report data loss of a stream, or a stream with another incarnation."""
        self._find("the logs are whole", "", what, sequence)

    def on_unreadable(self, subject: str, what: str, sequence: int) -> None:
        """Report a message that this version cannot read; its workload may be frozen."""
        self._find("every message can be read", subject, what, sequence)

    def on_frozen(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Report an unreadable event, which freezes its workload."""
        name = key(tenant, workload_id)
        self._frozen.add(name)
        self._find("no workload is frozen", name, f"an event cannot be read: {why}", sequence)

    def on_unreadable_decision(self, cell: str, sequence: int) -> None:
        """Count an unreadable decision, because it has a number in its chain too."""
        number, _ = self._decisions.get(cell, (0, 0))
        self._decisions[cell] = (number + 1, sequence)

    # Node reports

    def on_copy(self, report: CopyReport, stored_at_s: float) -> None:
        """Apply the state of a copy in a MultiKueue worker, in stream order."""
        self._copies.on_copy(report, stored_at_s)

    def on_fact(self, cluster: str, stored_at_s: float) -> None:
        """Note any fact of a cluster, in stream order: the cluster is not silent."""
        self._copies.on_fact(cluster, stored_at_s)

    def on_node(self, report: NodeReport | NodeGone, sequence: int, stored_at_s: float) -> None:
        """Apply one node report, in stream order."""
        self._last_report_s = max(self._last_report_s, stored_at_s)
        where = (report.cluster, report.node)
        if isinstance(report, NodeGone):
            for name in self._present.pop(where, {}):
                self._nodes_of[name].discard(where)
            return
        self._counts["NodeReport"] += 1
        self._promises.on_node(report, stored_at_s)
        self._check_room(report, sequence)
        now: dict[Key, _Presence] = {}
        before = self._present[where]
        for pod in report.pods:
            name = key(pod.tenant, pod.workload)
            earlier = before.get(name)
            since_s = stored_at_s
            if earlier is not None and earlier.attempt == pod.attempt:
                since_s = earlier.since_s
            now[name] = _Presence(pod.attempt, since_s)
        for name in before.keys() - now.keys():
            self._nodes_of[name].discard(where)
        self._present[where] = now
        for name in now:
            self._nodes_of[name].add(where)
            self._check_alone(name, sequence, stored_at_s)

    def _check_room(self, report: NodeReport, sequence: int) -> None:
        """Check a node's own report: no more is allocated than the node has."""
        where = f"{report.cluster}/{report.node}"
        held: Counter[int] = Counter(
            {g.index: g.withheld_milli + g.foreign_milli for g in report.gpus}
        )
        for pod in report.pods:
            for index in pod.gpus:
                held[index] += pod.gpu_milli
        listed = {g.index for g in report.gpus}
        for index, milli in held.items():
            if milli > WHOLE and index in listed:
                self._find(
                    "no GPU is over-committed", f"{where}/{index}", f"{milli} milli", sequence
                )
        for what, used, foreign, of in (
            ("CPU milli", "cpu_milli", report.foreign.cpu_milli, report.allocatable.cpu_milli),
            ("MiB", "memory_mib", report.foreign.memory_mib, report.allocatable.memory_mib),
        ):
            total = foreign + sum(getattr(pod, used) for pod in report.pods)
            if total > of:
                self._find("no node is over-filled", where, f"{total} of {of} {what}", sequence)

    def _check_alone(self, name: Key, sequence: int, now_s: float) -> None:
        """Check that only one attempt of a workload exists, apart from overlapping reports."""
        there = [self._present[where][name] for where in self._nodes_of[name]]
        if len({p.attempt for p in there}) < 2:
            return
        newest = max(p.attempt for p in there)
        began_s = min(p.since_s for p in there if p.attempt == newest)
        if now_s - began_s > self._tolerance_s:
            attempts = sorted({p.attempt for p in there})
            self._find("none runs twice at once", name, f"attempts {attempts}", sequence)

    # The report

    def report(self, *, final_s: float | None = None) -> AuditReport:
        """Return the findings.

        ``final_s`` is the server's time of reading the log. With it, the auditor also checks for
        leftovers: pods of ended attempts.
        """
        if final_s is not None:
            self._check_leftovers(final_s)
            self._check_strangers(final_s)
        peak_milli, excesses = self._promises.judge()
        for gpu, milli, name, sequence in excesses:
            where, what = "/".join(map(str, gpu)), f"{milli} milli promised, the last to {name}"
            self._find("no GPU is promised twice", where, what, sequence)
        for name, sequence in self._lost.items():
            self._find("none is lost", name, f"{LOST}, before {sequence}", sequence)
        for found in self._copies.contradictions():
            self._find("runs where the hub says", found.name, found.what)
        for found in self._copies.repeated():
            self._find("succeeded once", found.name, found.what)
        states = Counter(w.state for w in self._workloads.values())
        ended = {s: states[s] for s in (State.SUCCEEDED, State.FAILED, State.CANCELLED)}
        begun = (State.DIVIDED, State.CLAIMED, State.ADMITTED, State.RUNNING)
        running = sum(states[state] for state in begun)
        waiting = states[State.QUEUED] + states[State.PLACED]
        submitted = len(self._workloads)
        if strange := states[State.NEW]:
            self._find("none is lost", "", f"{strange} workloads have events and no submission")
        return AuditReport(
            clean=not self._findings,
            submitted=submitted,
            succeeded=ended[State.SUCCEEDED],
            failed=ended[State.FAILED],
            cancelled=ended[State.CANCELLED],
            running=running,
            waiting=waiting,
            accounted=sum(ended.values()) + running + waiting == submitted,
            events=self._verdicts.total(),
            void=self._verdicts[Verdict.VOID],
            decisions=self._counts["Decision"],
            frozen=len(self._frozen | self._lost.keys()),
            carried=self._counts["Carried"],
            placements=self._counts["Placed"],
            withdrawals=self._counts["Withdrawn"],
            evictions=self._counts["Evicted"],
            node_reports=self._counts["NodeReport"],
            peak_gpu_milli=peak_milli,
            findings=tuple(self._findings),
            findings_left_out=self._left_out,
        )

    def _check_strangers(self, final_s: float) -> None:
        """Report pods on nodes whose workloads are missing in the log."""
        for where, pods in self._present.items():
            for name, presence in pods.items():
                known = name in self._workloads or presence.since_s + self._tolerance_s > final_s
                if not known:  # a newer pod may have been submitted after the read of the log
                    what = f"pods of {name} attempt {presence.attempt}, of which no log tells"
                    self._find("the logs are whole", "/".join(where), what)

    def _check_leftovers(self, final_s: float) -> None:
        """Report pods on nodes whose attempt ended long ago."""
        for where, pods in self._present.items():
            for name, presence in pods.items():
                workload = self._workloads.get(name)
                if workload is None:
                    continue
                if presence.since_s >= final_s:
                    continue  # newer than the known state of its workload
                over = not workload.live or presence.attempt != workload.attempt
                if over and final_s - workload.changed_at_s > 2 * self._tolerance_s:
                    self._find(
                        "what ended is gone",
                        "/".join(where),
                        f"pods of {name} attempt {presence.attempt}; it is {workload.state}",
                    )
