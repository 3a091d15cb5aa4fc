"""What a new log begins with: each row of the table, and properties over damaged histories."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.cli.recover.core import UNUSED, UNUSED_NUMBERS, Copy, Held, Plan, plan
from berthmaster.lib.lifecycle.fold import Verdict, fold_history, offer
from berthmaster.lib.lifecycle.states import LIVE, State
from berthmaster.lib.lifecycle.workload import Workload, request_digest
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.door import PlacementReceipt, ProvenAttempt
from berthmaster.lib.messages.placement import Decision, PodBinding, Saw
from berthmaster.lib.messages.workload import (
    Claimed,
    Evicted,
    Placed,
    PodSet,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from tests.support.builders import job

TENANT = "team"
PODS = (PodBinding(pod="main-0", node="n1", gpus=(0,)),)


@dataclass
class Log:
    """A log as it truly was, and what clusters truly hold."""

    events: list[RecordedEvent] = field(default_factory=list)
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    sequence: int = 0
    works: dict[str, Workload] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)

    def add(self, kind: type[WorkloadEvent], name: str, **more: Any) -> None:
        work = self.works.setdefault(name, Workload(tenant=TENANT, id=name))
        self.sequence += 1
        more |= {"tenant": TENANT, "id": name, "after": work.sequence, "at_s": 0.0, "by": "test"}
        event = kind(**more)
        at_s = float(self.sequence)
        assert offer(work, event, self.sequence, at_s) is Verdict.COUNTED, (kind, work.state)
        self.events.append(RecordedEvent(sequence=self.sequence, stored_at_s=at_s, event=event))

    def submit(self, name: str) -> None:
        request = job(name)
        self.add(Submitted, name, request=request, digest=request_digest(request))

    def place(self, name: str, cluster: str) -> None:
        work = self.works[name]
        number = len(self.decisions) + 1
        self.sequence += 1
        self.decisions.append((self.sequence, decision(number, self.sequence - 1)))
        request = work.request
        assert request is not None
        self.add(
            Placed,
            name,
            cluster=cluster,
            attempt=work.attempt + 1,
            pods=PODS,
            request=request,
            decision=number,
        )

    def claim(self, name: str) -> None:
        work = self.works[name]
        placed = work.sequence
        self.add(Claimed, name, cluster=work.cluster, attempt=work.attempt, executor="executor/1")
        self.held[name] = held(work, placed)

    def run(self, name: str) -> None:
        work = self.works[name]
        self.add(Running, name, cluster=work.cluster, attempt=work.attempt, pods=PODS)

    def evict(self, name: str) -> None:
        work = self.works[name]
        self.add(Evicted, name, cluster=work.cluster, attempt=work.attempt, reason="node lost")
        del self.held[name]

    def withdraw(self, name: str) -> None:
        work = self.works[name]
        more = {"cluster": work.cluster, "attempt": work.attempt}
        self.add(Withdrawn, name, **more, reason="not claimed", decision=1)

    def succeed(self, name: str) -> None:
        work = self.works[name]
        self.add(
            Succeeded,
            name,
            cluster=work.cluster,
            attempt=work.attempt,
            digest=work.digest,
            submitted_at_s=work.submitted_at_s,
        )
        del self.held[name]

    def copy(self, last: int | None = None) -> Copy:
        """What it had up to a sequence."""
        end = self.sequence if last is None else last
        return Copy(
            [one for one in self.events if one.sequence <= end],
            [one for one in self.decisions if one[0] <= end],
            end,
        )

    def without(self, first: int, last: int) -> Copy:
        """What is left when these sequences are lost."""
        return Copy(
            [one for one in self.events if not first <= one.sequence <= last],
            [one for one in self.decisions if not first <= one[0] <= last],
            self.sequence,
        )


def decision(number: int, after: int) -> Decision:
    return Decision(
        cell="all",
        number=number,
        after=after,
        decider="test",
        engine="1",
        now_s=0.0,
        settings={},
        saw=Saw(workloads=0, fleet=0, control=0),
    )


def held(work: Workload, placed: int, *, cluster: str = "") -> Held:
    """What an executor holds, with the receipt of its placement."""
    assert work.request is not None
    receipt = PlacementReceipt(
        tenant=work.tenant,
        id=work.id,
        cluster=cluster or work.cluster,
        attempt=work.attempt,
        request=work.request,
        digest=work.digest,
        pods=PODS,
        decision=work.decision,
        sequence=placed,
        submitted_sequence=work.submitted_sequence,
        submitted_at_s=work.submitted_at_s,
        placed_at_s=work.placed_at_s,
    )
    attempt = ProvenAttempt(tenant=work.tenant, id=work.id, attempt=work.attempt, receipt=receipt)
    return Held(cluster or work.cluster, attempt)


def running(cluster: str = "a") -> Log:
    """One job that runs."""
    log = Log()
    log.submit("one")
    log.place("one", cluster)
    log.claim("one")
    log.run("one")
    return log


def planned(log: Log, *copies: Copy, answered: str = "ab", without: str = "", **more: Any) -> Plan:
    """``answered``, ``without``: clusters with names of one letter."""
    more.setdefault("now_s", 1000.0)
    return plan(
        list(copies),
        more.pop("archived", []),
        more.pop("held", log.held.values()),
        answered=frozenset(answered),
        without=frozenset(without),
        **more,
    )


def only(made: Plan) -> Workload:
    """The one workload of the new log, as a reader folds it."""
    (carried,) = made.carried
    work = Workload(tenant=carried.tenant, id=carried.id)
    assert offer(work, carried, made.first + 1, 1000.0) is Verdict.COUNTED
    return work


def test_plan_of_a_whole_log_carries_each_workload_as_it_stood() -> None:
    log = running()
    made = planned(log, log.copy())
    work = only(made)
    assert (work.state, work.cluster, work.attempt, work.pods) == (State.RUNNING, "a", 1, PODS)
    assert work.running_at_s == log.works["one"].running_at_s
    assert made.lines == ()
    assert made.first == log.sequence + UNUSED
    assert [one.number for one in made.decisions] == [1 + UNUSED_NUMBERS]
    assert [one.event for one in made.histories[0].events] == [one.event for one in log.events]


def test_plan_claims_what_was_placed_and_is_held() -> None:
    log = running()
    placed = next(one.sequence for one in log.events if isinstance(one.event, Placed))
    made = planned(log, log.copy(placed))
    assert only(made).state is State.CLAIMED
    assert [one.outcome for one in made.lines] == ["claimed"]


def test_plan_holds_the_pods_by_which_an_elastic_job_has_grown() -> None:
    log = Log()
    request = job("one", pod_sets=(PodSet(gpus=1, max_count=4),))
    log.add(Submitted, "one", request=request, digest=request_digest(request))
    log.place("one", "a")
    log.claim("one")
    log.run("one")
    grown = (*PODS, PodBinding(pod="main-1", node="n2", gpus=(3,)))
    one = log.held["one"]
    log.held["one"] = one._replace(attempt=replace(one.attempt, pods=grown))
    for copy in (log.copy(), Copy()):  # by the history, and by the receipt alone
        work = only(planned(log, copy))
        assert work.pods == grown
        assert work.request is not None
        assert work.request.pod_sets[0].count == 2


def test_plan_takes_what_no_copy_has_from_its_receipt() -> None:
    log = running()
    made = planned(log)
    work = only(made)
    assert (work.state, work.cluster, work.attempt) == (State.CLAIMED, "a", 1)
    assert (work.request, work.digest) == (log.works["one"].request, log.works["one"].digest)
    assert made.first == log.held["one"].attempt.receipt.sequence + UNUSED  # type: ignore[union-attr]
    assert made.decisions[0].number > 1


def test_plan_takes_the_later_attempt_from_its_receipt() -> None:
    log = running()
    end = log.sequence
    log.evict("one")
    log.place("one", "b")
    log.claim("one")
    work = only(planned(log, log.copy(end)))
    assert (work.state, work.cluster, work.attempt) == (State.CLAIMED, "b", 2)


def test_plan_queues_again_what_its_cluster_does_not_hold() -> None:
    log = running()
    made = planned(log, log.copy(), held=[])
    work = only(made)
    assert (work.state, work.attempt, work.pods) == (State.QUEUED, 1, ())
    assert [one.outcome for one in made.lines] == ["queued"]


def test_plan_names_a_cluster_that_is_silent_and_had_placements() -> None:
    log = running()
    assert planned(log, log.copy(), held=[], answered="b").silent == ("a",)
    made = planned(log, log.copy(), held=[], answered="b", without="a")
    assert made.silent == ()
    assert only(made).state is State.QUEUED


def test_plan_names_a_cluster_that_is_silent_and_may_hold_what_is_lost() -> None:
    copies = [running().copy()]
    made = plan(copies, [], [], answered={"a"}, asked={"a", "b", "c"}, without={"c"}, now_s=1.0)
    assert made.silent == ("b",)


def test_plan_lets_an_attempt_that_was_given_back_wait() -> None:
    log = running()
    before = log.held["one"]
    log.evict("one")
    work = only(planned(log, log.copy(), held=[before]))
    assert (work.state, work.attempt) == (State.QUEUED, 1)


def test_plan_cancels_what_two_clusters_hold() -> None:
    log = running()
    other = held(log.works["one"], 3, cluster="b")
    for copies in ([log.copy()], []):
        made = planned(log, *copies, held=[log.held["one"], other])
        assert made.carried == ()
        assert [one.outcome for one in made.lines] == ["cancelled"]
        assert [type(one).__name__ for one in made.tombstones] == ["Cancelled"]


def test_plan_believes_nothing_that_no_receipt_proves() -> None:
    """Else an agent could cancel or take over any job by its name."""
    log = running()
    for name, number in (("one", 1), ("one", 9), ("strange", 1)):
        lie = Held("b", ProvenAttempt(tenant=TENANT, id=name, attempt=number))
        made = planned(log, log.copy(), held=[*log.held.values(), lie])
        assert (only(made).state, only(made).cluster) == (State.RUNNING, "a")
        assert made.tombstones == ()
        assert "unproven" in [one.outcome for one in made.lines]


def test_plan_keeps_endings_that_any_copy_or_the_archive_has() -> None:
    log = running()
    before = log.held["one"]
    end = log.sequence
    log.succeed("one")
    ended = [type(one).__name__ for one in planned(log, log.copy()).tombstones]
    assert ended == ["Succeeded"]
    made = planned(log, log.copy(end), archived=log.events, held=[before])
    assert [type(one).__name__ for one in made.tombstones] == ["Succeeded"]
    assert made.carried == ()
    only_the_end = log.without(1, end)
    made = planned(log, only_the_end, held=[before])
    assert [type(one).__name__ for one in made.tombstones] == ["Succeeded"]


def test_plan_joins_a_backup_with_what_is_left() -> None:
    """A block in the middle is lost, which the backup has; the end is only left in the stream."""
    log = running()
    middle = log.sequence
    log.evict("one")
    log.place("one", "b")
    work = only(planned(log, log.without(2, 4), log.copy(middle), held=[]))
    assert (work.attempt, work.state) == (2, State.QUEUED)  # b answers that it does not hold it
    assert work.evictions == 1


def test_plan_of_a_job_that_was_submitted_again_under_its_id_takes_the_newer() -> None:
    log = running()
    log.succeed("one")
    old = list(log.events)
    again = Log(sequence=log.sequence)
    again.submit("one")
    again.place("one", "b")
    again.claim("one")
    made = planned(again, again.copy(), archived=old)
    assert only(made).cluster == "b"
    made = planned(again, archived=old)  # its log is lost
    assert only(made).cluster == "b"


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Some jobs on two clusters, each somewhere in its life."""
    log = Log()
    for _ in range(draw(st.integers(1, 40))):
        name = f"job-{draw(st.integers(0, 5))}"
        work = log.works.get(name)
        cluster = draw(st.sampled_from("ab"))
        if work is None:
            log.submit(name)
        elif work.state is State.QUEUED:
            log.place(name, cluster)
        elif work.state is State.PLACED:
            draw(st.sampled_from([log.claim, log.claim, log.withdraw]))(name)
        elif work.state is State.CLAIMED:
            draw(st.sampled_from([log.run, log.run, log.evict]))(name)
        elif work.state is State.RUNNING:
            draw(st.sampled_from([log.succeed, log.evict]))(name)
    return log


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Log, list[Copy]]:
    """A log, and what is left of it; perhaps a backup of some time before."""
    log = draw(logs())
    first = draw(st.integers(1, log.sequence + 1))
    last = draw(st.integers(first, log.sequence + 1))
    left = draw(st.sampled_from([log.copy(first - 1), log.without(first, last), Copy()]))
    copies = [left]
    if draw(st.booleans()):
        copies.append(log.copy(draw(st.integers(0, log.sequence))))
    return log, copies


@settings(max_examples=300, deadline=None)
@given(damaged())
def test_nothing_that_a_cluster_holds_is_lost_or_doubled(case: tuple[Log, list[Copy]]) -> None:
    log, copies = case
    made = planned(log, *copies)
    assert made.silent == ()
    carried = {one.id: one.workload for one in made.carried}
    assert len(carried) == len(made.carried)
    ended = {one.id for one in made.tombstones}
    assert not ended & carried.keys()
    for name, one in log.held.items():
        work = carried[name]  # nothing contradicts it, so it is not cancelled
        assert work.state in LIVE - {State.PLACED}
        assert (work.cluster, work.attempt) == (one.cluster, one.attempt.attempt)
    live = {name for name, work in carried.items() if work.state in LIVE}
    assert live == log.held.keys()
    lost = {one.id for one in made.lines if one.outcome == "lost"}
    for name in log.works:
        events = [e.event for copy in copies for e in copy.events if e.event.id == name]
        assert not events or name in carried or name in ended or name in lost
        if name in lost:  # what begins a job is in no copy
            assert not any(isinstance(each, Submitted | Placed) for each in events)
    for name in ended:
        assert log.works[name].ended
    assert made.first > log.sequence
    assert all(one.number > len(log.decisions) for one in made.decisions)


@settings(max_examples=200, deadline=None)
@given(logs())
def test_a_whole_log_is_carried_over_as_it_is(log: Log) -> None:
    made = planned(log, log.copy())
    for one in made.carried:
        before, _ = fold_history(
            TENANT, one.id, [each for each in log.events if each.event.id == one.id]
        )
        if before.state is State.PLACED:
            assert one.workload.state is State.QUEUED  # nobody holds it
            continue
        for name in type(one.workload).__struct_fields__:
            assert getattr(one.workload, name) == getattr(before, name), name
    ended = {name for name, work in log.works.items() if work.ended}
    assert {one.id for one in made.tombstones} == ended
