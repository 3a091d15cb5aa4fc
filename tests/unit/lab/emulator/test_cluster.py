"""Emulated kubelets never hold more than there is, and a kill changes nothing."""

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.lab.emulator.journal import Journal, JournalError, read_journal
from berthmaster.lab.emulator.kubelet import EmulatedNode, Refusal
from berthmaster.lab.emulator.records import DECODER, ENCODER, GpuUse
from berthmaster.lab.emulator.world import Phase
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    CreatePods,
    DeletePods,
    PodsCompleted,
    PodsExpired,
    PodsFailed,
    PodsFound,
    PodsGone,
    PodsRefused,
    PodsRunning,
    StopPods,
)

SPEC = ClusterSpec(
    "berlin",
    "eu-central",
    (
        NodeSpec("n1", 16_000, 65_536, 2, "T4"),
        NodeSpec("n2", 32_000, 65_536, 4, "T4"),
        NodeSpec("cpu", 8_000, 16_384, 0, ""),
    ),
)
WILD = Nature(
    seed=3,
    speed=2,
    failure_share=0.3,
    start_delay_s=1,
    foreign_share=0.3,
    foreign_duration_s=40,
    dead_gpu_share=0.2,
    gpu_deaths_per_hour=20,
    gpu_repair_s=60,
    node_flaps_per_hour=60,
)


def create(
    name: str,
    pods: tuple[PodBinding, ...],
    *,
    gpus: int = 1,
    milli: int = 1000,
    cpu_milli: int = 1000,
    lasts_s: float = 100.0,
    stop_after_s: float | None = None,
    number: int = 1,
) -> CreatePods:
    pod_set = PodSet(count=len(pods), cpu_milli=cpu_milli, gpus=gpus, gpu_milli=milli)
    request = JobRequest(id=name, pod_sets=(pod_set,), expected_duration_s=lasts_s)
    return CreatePods(Attempt("acme", name, number), "executor/berlin", pods, request, stop_after_s)


def pod(index: int, node: str, *gpus: int) -> PodBinding:
    return PodBinding(pod=f"main-{index}", node=node, gpus=gpus)


class Kubelets(RuleBasedStateMachine):
    """Whatever is asked of it in whatever order."""

    @initialize(wild=st.booleans())
    def begin(self, wild: bool) -> None:
        self.nature = WILD if wild else Nature()
        self.now_s = 1000.0
        self.number = 0
        self.lines: list[bytes] = []
        self.cluster = EmulatedCluster(SPEC, self.nature, self.now_s)
        self.known: list[Attempt] = []
        self.keep()

    def keep(self) -> None:
        self.lines += [ENCODER.encode(record) for record in self.cluster.take_journal()]

    @rule(
        places=st.lists(
            st.tuples(
                st.sampled_from(["n1", "n2", "cpu", "gone"]),
                st.lists(st.integers(-1, 4), max_size=3),
            ),
            min_size=1,
            max_size=4,
        ),
        gpus=st.integers(0, 3),
        milli=st.sampled_from([300, 500, 1000]),
        cpu_milli=st.sampled_from([0, 1000, 9000]),
        lasts_s=st.floats(1, 300),
        stop_after_s=st.none() | st.floats(1, 100),
    )
    def create_pods(
        self,
        places: list[tuple[str, list[int]]],
        gpus: int,
        milli: int,
        cpu_milli: int,
        lasts_s: float,
        stop_after_s: float | None,
    ) -> None:
        self.number += 1
        pods = tuple(pod(i, node, *named) for i, (node, named) in enumerate(places))
        order = create(
            f"job-{self.number}",
            pods,
            gpus=gpus,
            milli=milli if gpus == 1 else 1000,
            cpu_milli=cpu_milli,
            lasts_s=lasts_s,
            stop_after_s=stop_after_s,
        )
        first = self.cluster.perform(order, self.now_s)
        self.known.append(order.attempt)
        state = self.cluster.world.state()
        assert self.cluster.perform(order, self.now_s) == first  # again: the same answer
        assert self.cluster.world.state() == state
        self.keep()

    @rule(pick=st.integers(0, 1000), how=st.sampled_from([StopPods, DeletePods]))
    def end_pods(self, pick: int, how: type[StopPods] | type[DeletePods]) -> None:
        if self.known:
            self.cluster.perform(how(self.known[pick % len(self.known)], "enough"), self.now_s)
            self.keep()

    @rule(seconds=st.floats(0, 200))
    def let_time_pass(self, seconds: float) -> None:
        self.now_s += seconds
        self.cluster.advance(self.now_s)
        self.keep()

    @rule(compacted=st.booleans())
    def kill_and_restart(self, compacted: bool) -> None:
        before = self.cluster.world.state()
        if compacted:
            self.lines = [ENCODER.encode(record) for record in self.cluster.world.snapshot()]
        records = [DECODER.decode(line) for line in self.lines]
        self.cluster = EmulatedCluster(SPEC, self.nature, self.now_s, records)
        self.cluster.advance(self.now_s)
        assert self.cluster.world.state() == before
        self.keep()

    @invariant()
    def no_node_holds_more_than_it_has_and_every_amount_is_accounted_for(self) -> None:
        if not hasattr(self, "cluster"):
            return
        world = self.cluster.world
        for node in world.nodes.values():
            uses = [seat.use for seat in node.pods.values()]
            uses += [came.use for came in node.foreign.values()]
            assert node.cpu_free_milli == node.spec.cpu_milli - sum(u.cpu_milli for u in uses) >= 0
            used_mib = sum(u.memory_mib for u in uses)
            assert node.memory_free_mib == node.spec.memory_mib - used_mib >= 0
            for index, free in enumerate(node.gpu_free_milli):
                assert free == 1000 - sum(u.gpu_milli for u in uses if index in u.gpus) >= 0
        held = {(g.attempt, name) for g in world.groups.values() for name in g.held}
        assert held == {pod for node in world.nodes.values() for pod in node.pods}


Kubelets.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestKubelets = Kubelets.TestCase


@pytest.mark.parametrize(
    ("use", "wanted", "answer"),
    [
        (GpuUse(64_001, 0), 0, Refusal.CPU),
        (GpuUse(0, 262_145), 0, Refusal.MEMORY),
        (GpuUse(1000, 1024), 0, GpuUse(1000, 1024)),
        (GpuUse(0, 0, 500), 1, GpuUse(0, 0, 500, (1,))),  # beside what runs, before an empty GPU
        (GpuUse(0, 0, 1000), 1, GpuUse(0, 0, 1000, (2,))),
        (GpuUse(0, 0, 1000), 2, Refusal.GPU),
        (GpuUse(0, 0, 600, (1,)), 1, Refusal.GPU),
        (GpuUse(0, 0, 500, (1,)), 1, GpuUse(0, 0, 500, (1,))),
        (GpuUse(0, 0, 100, (3,)), 1, Refusal.GPU_UNHEALTHY),
        (GpuUse(0, 0, 100, (4,)), 1, Refusal.GPU),
        (GpuUse(0, 0, 1000, (2, 2)), 2, Refusal.INVALID),
        (GpuUse(0, 0, 1000, (2,)), 2, Refusal.INVALID),
    ],
)
def test_a_kubelet_counts_cpu_memory_and_every_gpu(
    use: GpuUse, wanted: int, answer: GpuUse | Refusal
) -> None:
    node = EmulatedNode(NodeSpec("n", 64_000, 262_144, 4, "T4"))
    node.take(GpuUse(0, 0, 1000, (0,)))
    node.take(GpuUse(0, 0, 500, (1,)))
    node.gpu_back_s[3] = 99.0  # dead
    assert node.admit(use, wanted) == answer


def test_a_node_that_is_not_ready_refuses_everything() -> None:
    node = EmulatedNode(NodeSpec("n", 64_000, 262_144, 4, "T4"))
    node.ready_s = 5.0
    assert node.admit(GpuUse(), 0) is Refusal.NODE_NOT_READY


def test_pods_run_for_their_duration_divided_by_the_speed_and_may_start_late() -> None:
    cluster = EmulatedCluster(SPEC, Nature(speed=10, start_delay_s=2), 1000)
    order = create("a", (pod(0, "n1"),), lasts_s=100)
    assert cluster.perform(order, 1000) == []
    assert cluster.advance(1001.9) == []
    assert cluster.advance(1002) == [
        PodsRunning(order.attempt, (PodBinding(pod="main-0", node="n1", gpus=(0,)),))
    ]
    assert cluster.advance(1011.9) == []
    assert cluster.advance(1012) == [PodsCompleted(order.attempt)]
    assert cluster.world.nodes["n1"].gpu_free_milli == [1000, 1000]
    assert cluster.perform(order, 1013) == [PodsCompleted(order.attempt)]  # asked again


def test_a_duration_that_nobody_states_is_the_workloads_own_wherever_and_whenever_it_runs() -> None:
    request = JobRequest(id="a", pod_sets=(PodSet(gpus=1),))

    def ends(now_s: float, number: int, seed: int) -> float:
        cluster = EmulatedCluster(SPEC, Nature(seed=seed), now_s)
        attempt = Attempt("acme", "a", number)
        cluster.perform(CreatePods(attempt, "e", (pod(0, "n1"),), request, None), now_s)
        assert cluster.next_due_s is not None
        return round(cluster.next_due_s - now_s, 6)

    assert ends(0, 1, 1) == ends(5000, 2, 1)
    assert ends(0, 1, 1) != ends(0, 1, 2)


def test_an_object_that_is_made_again_has_nothing_of_the_one_before() -> None:
    cluster = EmulatedCluster(SPEC, Nature(start_delay_s=10), 0)
    order = create("a", (pod(0, "n1"),), lasts_s=100)
    for now_s in (0, 6, 60):  # deleted while it starts, and while it runs
        cluster.perform(DeletePods(order.attempt, ""), now_s)
        cluster.perform(order, now_s)
        cluster.advance(now_s + 9.9)
        assert cluster.world.groups[order.attempt].phase is Phase.STARTING
        cluster.advance(now_s + 50)
        assert cluster.world.groups[order.attempt].phase is Phase.RUNNING
        if now_s == 0:
            cluster = EmulatedCluster(SPEC, Nature(start_delay_s=10), 0)
            cluster.perform(order, 0)
    assert cluster.advance(169.9) == []
    assert cluster.advance(170) == [PodsCompleted(order.attempt)]


def test_a_failed_pod_leaves_the_rest_of_its_gang_running_until_it_is_stopped() -> None:
    cluster = EmulatedCluster(SPEC, Nature(failure_share=1), 0)
    order = create("a", (pod(0, "n1"), pod(1, "n2")), lasts_s=100)
    cluster.perform(order, 0)
    assert cluster.advance(100) == [
        PodsFailed(order.attempt, "pod a-1-main-0 exited with 1", exit_code=1)
    ]
    assert cluster.world.nodes["n1"].gpu_free_milli == [1000, 1000]
    assert cluster.world.nodes["n2"].gpu_free_milli == [0, 1000, 1000, 1000]
    assert cluster.perform(StopPods(order.attempt, "failed"), 101) == [
        PodsGone(order.attempt, "failed")
    ]
    assert cluster.world.nodes["n2"].gpu_free_milli == [1000] * 4


def test_a_deadline_ends_the_rest_of_a_failed_gang_also_after_a_restart() -> None:
    """Its executor may be away for hours, and by then the gang is placed anew elsewhere."""
    nature = Nature(seed=1, failure_share=1.0)
    order = create("gang", (pod(0, "n1"), pod(1, "n1")), lasts_s=30, stop_after_s=60)
    for killed in (False, True):
        cluster = EmulatedCluster(SPEC, nature, 1000.0)
        cluster.perform(order, 1000.0)
        [failed] = [e for e in cluster.advance(1040.0) if isinstance(e, PodsFailed)]
        if killed:
            cluster = EmulatedCluster(SPEC, nature, 1050.0, cluster.take_journal())
        group = cluster.world.groups[order.attempt]
        assert list(group.held) == ["main-1"]
        assert cluster.advance(1061.0) == []  # its executor knows already how it ended
        assert group.held == {}
        assert cluster.found("executor/berlin") == [PodsFound(order.attempt), failed]


def test_an_order_that_is_carried_out_late_does_not_let_pods_outlive_their_deadline() -> None:
    """Its executor stood still in between; by then the job may have been placed elsewhere."""
    cluster = EmulatedCluster(SPEC, Nature(), 1000.0)
    order = create("late", (pod(0, "n1"),), lasts_s=100, stop_after_s=60)._replace(asked_at_s=900.0)
    cluster.perform(order, 1000.0)
    assert cluster.advance(1000.0) == [PodsExpired(order.attempt)]
    in_time = order._replace(attempt=Attempt("acme", "in-time", 1), asked_at_s=990.0)
    cluster.perform(in_time, 1000.0)
    assert cluster.advance(1049.0) == []
    assert cluster.advance(1050.0) == [PodsExpired(in_time.attempt)]


def test_everything_that_happened_is_told_to_an_executor_that_was_away() -> None:
    nature = Nature()
    cluster = EmulatedCluster(SPEC, nature, 0)
    orders = [
        create("done", (pod(0, "n1"),), lasts_s=10),
        create("late", (pod(0, "n2"),), lasts_s=100, stop_after_s=20),
        create("long", (pod(0, "n2"),), lasts_s=1000),
        create("none", (pod(0, "gone"),)),
        create("stop", (pod(0, "n2"),)),
    ]
    for order in orders:
        cluster.perform(order, 0)
    done, late, long, none, stop = (order.attempt for order in orders)
    cluster.perform(StopPods(stop, "cancelled"), 5)

    later = EmulatedCluster(SPEC, nature, 50, cluster.take_journal())
    later.advance(50)
    assert later.found("executor/other") == []
    assert later.found("executor/berlin") == [
        PodsFound(done),
        PodsCompleted(done),
        PodsFound(late),
        PodsExpired(late),
        PodsFound(long),
        PodsRunning(long, (PodBinding(pod="main-0", node="n2", gpus=(1,)),)),
        PodsFound(none),
        PodsRefused(none, "NodeUnknown: pod main-0 on gone"),
        PodsFound(stop),
        PodsGone(stop, "cancelled"),
    ]


def test_pods_on_a_node_that_the_fleet_no_longer_has_are_refused_at_the_restart() -> None:
    cluster = EmulatedCluster(SPEC, Nature(), 0)
    order = create("a", (pod(0, "n1"),))
    cluster.perform(order, 0)
    smaller = SPEC._replace(nodes=SPEC.nodes[1:])
    later = EmulatedCluster(smaller, Nature(), 1, cluster.take_journal())
    assert later.found("executor/berlin") == [
        PodsFound(order.attempt),
        PodsRefused(order.attempt, "NodeGone: n1"),
    ]


def test_foreign_pods_keep_about_their_share_of_the_gpus_and_come_and_go() -> None:
    nodes = tuple(NodeSpec(f"n{i}", 96_000, 393_216, 8, "G2") for i in range(50))
    nature = Nature(foreign_share=0.2, foreign_duration_s=100)
    cluster = EmulatedCluster(ClusterSpec("c", "eu", nodes), nature, 0)
    shares = []
    for now_s in range(0, 3000, 50):
        cluster.advance(now_s)
        shares.append(cluster.world.foreign_gpu_milli / 400_000)
    assert 0.15 < sum(shares) / len(shares) < 0.25
    assert min(shares) != max(shares)


def test_gpus_that_die_later_come_back_as_those_that_were_dead_at_first() -> None:
    nodes = tuple(NodeSpec(f"n{i}", 96_000, 393_216, 8, "G2") for i in range(10))
    nature = Nature(seed=3, gpu_deaths_per_hour=20, gpu_repair_s=60)
    cluster = EmulatedCluster(ClusterSpec("c", "eu", nodes), nature, 0)
    dead = []
    for now_s in range(0, 3000, 10):
        cluster.advance(now_s)
        back_s = [at for node in cluster.world.nodes.values() for at in node.gpu_back_s]
        dead.append(sum(at > now_s for at in back_s))
    # 80 GPUs, each dead for a minute 20 times an hour: one in four.
    assert 10 < sum(dead) / len(dead) < 30


def test_the_journal_file_survives_a_torn_last_line_and_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "c.journal"
    cluster = EmulatedCluster(SPEC, WILD, 0)
    journal = Journal(path, compact_at_bytes=20_000)
    journal.begin(cluster.world.snapshot())
    cluster.take_journal()
    for turn in range(400):
        order = create("a", (pod(0, "n1"),), number=turn + 1)
        cluster.perform(order, turn)
        cluster.perform(DeletePods(order.attempt, ""), turn)
        journal.write(cluster.take_journal(), cluster.world.snapshot)
    journal.close()
    assert path.stat().st_size < 20_000
    with path.open("ab") as file:
        file.write(b'["made","acme","b"')
    again = EmulatedCluster(SPEC, WILD, 400, read_journal(path))
    assert again.world.state() == cluster.world.state()


def test_a_journal_that_is_not_ours_is_refused_by_name_and_line(tmp_path: Path) -> None:
    path = tmp_path / "c.journal"
    assert read_journal(path) == []
    path.write_text('["left",1]\nhello\n')
    with pytest.raises(JournalError, match=r"c\.journal, line 2"):
        read_journal(path)
    with pytest.raises(JournalError, match="cannot write"):
        Journal(tmp_path / "c.journal" / "x")


def test_two_emulators_do_not_share_a_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "c.journal")
    with pytest.raises(JournalError, match="in use by another emulator"):
        Journal(tmp_path / "c.journal")
    first.close()
    Journal(tmp_path / "c.journal").close()


def test_emulated_node_holds_a_part_by_memory_as_the_engine_charges() -> None:
    """8 GiB of a T4's 16 are half of it: a third pod has no room."""
    cluster = EmulatedCluster(SPEC, Nature(), 0)
    pods = PodSet(count=3, cpu_milli=1, memory_mib=1, gpus=1, gpu_milli=1, gpu_memory_mib=8192)
    request = JobRequest(id="a", pod_sets=(pods,), expected_duration_s=10.0)
    for count, free_milli in ((3, 1000), (2, 0)):
        bound = tuple(pod(index, "n1", 0) for index in range(count))
        order = CreatePods(Attempt("acme", "a", count), "executor/berlin", bound, request, None)
        cluster.perform(order, 0)
        assert cluster.world.nodes["n1"].gpu_free_milli == [free_milli, 1000]
