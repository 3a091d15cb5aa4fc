"""What a stream of events adds up to."""

from collections import Counter

from berthmaster.cli.demo.load import LoadResult, account
from berthmaster.cli.demo.stats import Latency, WorkloadStats, WorkloadSummary
from berthmaster.client.following import SeenEvent
from berthmaster.lib.messages.workload import (
    Cancelled,
    Claimed,
    Evicted,
    JobRequest,
    Placed,
    PodSet,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

EIGHT = PodSet(count=2, gpus=4)


class Log:
    """Stores events of workloads one after the other, a second apart."""

    def __init__(self, stats: WorkloadStats) -> None:
        self.stats = stats
        self.sequence = 0
        self.last: dict[str, int] = {}
        self.now_s = 1000.0

    def store(
        self, kind: type[WorkloadEvent], id: str, *, after: int | None = None, **more: object
    ) -> None:
        self.sequence += 1
        self.now_s += 1
        event = kind(
            tenant="t",
            id=id,
            after=self.last.get(id, 0) if after is None else after,
            at_s=0,
            by="test",
            **more,  # type: ignore[arg-type]
        )
        if after is None:
            self.last[id] = self.sequence
        self.stats.take(SeenEvent(sequence=self.sequence, stored_at_s=self.now_s, event=event))

    def submit(self, id: str) -> None:
        request = JobRequest(id=id, pod_sets=(EIGHT,))
        self.store(Submitted, id, request=request, digest="d")

    def place(self, id: str, cluster: str, attempt: int = 1) -> None:
        request = JobRequest(id=id, pod_sets=(EIGHT,))
        self.store(
            Placed, id, cluster=cluster, attempt=attempt, pods=(), request=request, decision=1
        )

    def run(self, id: str, cluster: str, attempt: int = 1) -> None:
        self.store(Claimed, id, cluster=cluster, attempt=attempt, executor="e")
        self.store(Running, id, cluster=cluster, attempt=attempt, pods=())

    def end(self, kind: type[WorkloadEvent], id: str, attempt: int) -> None:
        self.store(kind, id, attempt=attempt, digest="d", submitted_at_s=0)


def test_a_life_is_counted_with_its_latencies() -> None:
    stats = WorkloadStats()
    log = Log(stats)
    log.submit("a")  # at 1001
    log.submit("b")
    log.place("a", "berlin")  # at 1003
    log.run("a", "berlin")  # running at 1005
    log.submit("c")
    log.store(Cancelled, "c", attempt=0, digest="d", submitted_at_s=0)
    assert stats.summary() == WorkloadSummary(
        submitted=3,
        placed_at_least_once=1,
        states={"queued": 1, "running": 1, "cancelled": 1},
        waiting=1,
        running=1,
        ended=1,
        evictions=0,
        void_events=0,
        impossible_events=0,
        missed_events=0,
        gpus_held=8.0,
        latencies={
            "submit_to_placed": Latency(count=1, p50_s=2, p99_s=2, max_s=2),
            "placed_to_running": Latency(count=1, p50_s=2, p99_s=2, max_s=2),
            "submit_to_running": Latency(count=1, p50_s=4, p99_s=4, max_s=4),
        },
    )
    assert stats.summary().balanced
    assert stats.held_by_cluster() == {"berlin": 8.0}
    assert [recent.waited_s for recent in stats.recent] == [2.0]


def test_an_evicted_job_waits_again_and_its_first_placement_counts() -> None:
    stats = WorkloadStats()
    log = Log(stats)
    log.submit("a")
    log.place("a", "berlin")
    log.run("a", "berlin")
    log.store(Evicted, "a", cluster="berlin", attempt=1, reason="the node died")
    log.place("a", "paris", attempt=2)
    log.run("a", "paris", attempt=2)
    log.end(Succeeded, "a", attempt=2)
    summary = stats.summary()
    assert (summary.evictions, summary.states) == (1, {"succeeded": 1})
    assert summary.latencies["submit_to_running"] == Latency(count=1, p50_s=3, p99_s=3, max_s=3)


def test_a_void_event_changes_nothing_but_its_count() -> None:
    stats = WorkloadStats()
    log = Log(stats)
    log.submit("a")
    log.store(
        Placed,
        "a",
        after=0,  # decided before it was submitted: it lost a race
        cluster="x",
        attempt=1,
        pods=(),
        request=JobRequest(id="a"),
        decision=1,
    )
    summary = stats.summary()
    assert (summary.void_events, summary.states) == (1, {"queued": 1})


def test_a_tally_of_some_workloads_passes_over_the_rest() -> None:
    stats = WorkloadStats(only=["a"])
    log = Log(stats)
    log.submit("a")
    log.submit("b")
    assert (stats.known, stats.sequence) == (1, 2)


def test_an_account_balances_only_if_nothing_is_missing() -> None:
    stats = WorkloadStats()
    log = Log(stats)
    for name in ("a", "b"):
        log.submit(name)
    log.place("a", "berlin")
    result = LoadResult(offered=3, accepted=3)
    states = Counter({str(state): count for state, count in stats.states.items()})
    short = account(result, states, expected={"a", "b", "lost"}, seen={"a", "b"})
    assert (short.balanced, short.missing_ids, short.submitted) == (False, ("lost",), 3)
    right = account(result, states, expected={"a", "b"}, seen={"a", "b"})
    assert (right.balanced, right.running, right.waiting) == (True, 1, 1)
