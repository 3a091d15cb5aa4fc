"""Readings of nodes become one message a job and half a minute."""

from collections.abc import Sequence

from msgspec.structs import replace

from berthmaster.lib.messages.telemetry import (
    GpuHolder,
    GpuPodUse,
    GpuReading,
    GpuUse,
    HostUse,
    JobFigures,
    JobOwner,
    NodeTelemetry,
    PodUsage,
)
from berthmaster.worker.job_metrics.core.attribution import Disagreement
from berthmaster.worker.job_metrics.core.meter import ENDED_S, FORGET_S, LASTS_S, Meter
from berthmaster.worker.job_metrics.core.pods import JobName, Owner, Pod

TRAIN = JobName("ml", Owner("Job", "train-1", "u-job"), "acme", "train", 1)
SET = Owner("JobSet", "all", "u-set")


def meter(idle_limit_s: float = 600.0) -> Meter:
    return Meter("red", epoch=7, idle_percent=5.0, idle_limit_s=idle_limit_s)


def pod(name: str, node: str = "n1", job: JobName = TRAIN) -> Pod:
    return Pod(f"uid-{name}", "ml", name, node, job)


def gpu(index: int, holder: str, busy: float | None, *, node: str = "n1") -> GpuReading:
    return GpuReading(
        index=index,
        uuid=f"GPU-{node}-{index}",
        model="T4",
        memory_total_mib=16_000,
        memory_used_mib=4_000,
        utilization_percent=busy,
        power_w=50.0,
        holders=(GpuHolder(namespace="ml", pod=holder),),
    )


def told(
    counter: int, *gpus: GpuReading, node: str = "n1", epoch: int = 1, lacks: Sequence[str] = ()
) -> NodeTelemetry:
    return NodeTelemetry(
        cluster="red",
        node=node,
        epoch=epoch,
        counter=counter,
        observed_at_s=0.0,
        interval_s=1.0,
        source="nvml",
        gpus=gpus,
        lacks=tuple(lacks),
    )


def test_a_job_on_two_nodes_is_told_twice_a_minute_and_one_last_time() -> None:
    core = meter()
    core.book.put(pod("a"))
    core.book.put(pod("b", "n2"))
    for second in range(30):
        core.on_node(told(second, gpu(0, "a", 90.0)), 100.0 + second)
        core.on_node(
            told(second, gpu(0, "b", 50.0 + second % 2, node="n2"), node="n2"), 100.0 + second
        )
        assert core.take(100.0 + second) == []
    (figures,) = core.take(130.0)
    assert figures == JobFigures(
        cluster="red",
        namespace="ml",
        name="train-1",
        uid="u-job",
        tenant="acme",
        id="train",
        attempt=1,
        epoch=7,
        counter=1,
        observed_at_s=130.0,
        window_s=30.0,
        pods=2,
        nodes=("n1", "n2"),
        use=GpuUse(
            gpus=2,
            measured=2,
            utilization_percent=70.2,
            utilization_max_percent=90.0,
            memory_max_percent=25.0,
            memory_used_mib=8_000,
            memory_total_mib=32_000,
            power_w=100.0,
        ),
        idle_limit_s=600.0,
    )

    # Each reading is in one message: of the next half minute only its own count.
    core.on_node(told(30, gpu(0, "a", 10.0)), 131.0)
    (figures,) = core.take(160.0)
    assert (figures.counter, figures.use.utilization_percent, figures.nodes) == (2, 10.0, ("n1",))

    core.book.drop("uid-a")
    core.book.drop("uid-b")
    assert core.take(161.0) == []  # pods may be made anew
    (last,) = core.take(161.0 + ENDED_S)
    assert (last.ended, last.counter, core.jobs) == (True, 3, 0)


def test_a_job_of_which_nothing_is_measured_is_not_told_of() -> None:
    core = meter()
    core.book.put(pod("a"))
    core.on_node(told(1, gpu(0, "a", 50.0)), 0.0)
    assert len(core.take(30.0)) == 1
    assert core.take(60.0) == core.take(90.0) == []
    core.on_node(told(2, gpu(0, "a", None)), 91.0)
    (figures,) = core.take(121.0)
    assert (figures.use.gpus, figures.use.measured, figures.use.utilization_percent) == (1, 0, None)
    assert figures.idle_since_s is None  # not measured is not idle


def test_how_many_sms_had_work_is_a_mean_of_the_devices_that_tell_it() -> None:
    core = meter()
    for number, sm_percent in ((1, 10.0), (2, 30.0), (3, None)):
        job = JobName("ml", Owner("Job", f"all-{number}", f"u-{number}"), owner=SET)
        core.book.put(pod(f"p{number}", job=job))
        reading = replace(gpu(number, f"p{number}", 99.0), sm_active_percent=sm_percent)
        core.on_node(told(2 * number, reading), 0.0)
        core.on_node(told(2 * number + 1, replace(reading, sm_active_percent=sm_percent)), 10.0)
    figures = core.take(40.0)
    assert [one.use.sm_active_percent for one in figures] == [10.0, 30.0, None]
    assert figures[0].owner is not None
    assert figures[0].owner.use.sm_active_percent == 20.0


def test_a_job_that_does_nothing_is_idle_from_then_on_and_for_long_past_the_limit() -> None:
    core = meter(idle_limit_s=60.0)
    core.book.put(pod("a"))
    seen = []
    for round_ in range(5):
        at_s = 30.0 * round_
        core.on_node(told(round_, gpu(0, "a", 3.0 if round_ < 4 else 50.0)), at_s)
        seen += core.take(at_s + 30.0)
    assert [(one.idle_since_s, one.idle_for_long) for one in seen] == [
        (0.0, False),
        (0.0, True),
        (0.0, True),
        (0.0, True),
        (None, False),
    ]
    never = meter(idle_limit_s=0.0)
    never.book.put(pod("a"))
    never.on_node(told(1, gpu(0, "a", 0.0)), 0.0)
    (figures,) = never.take(1e6)
    assert (figures.idle_since_s, figures.idle_for_long) == (0.0, False)


def test_the_owner_at_the_top_has_the_sum_of_its_jobs() -> None:
    core = meter()
    for number, busy in ((1, 100.0), (2, 40.0)):
        job = JobName("ml", Owner("Job", f"all-{number}", f"u-{number}"), owner=SET)
        core.book.put(pod(f"p{number}", job=job))
        core.on_node(told(number, gpu(number, f"p{number}", busy)), 0.0)
    figures = core.take(30.0)
    assert [(one.tenant, one.name) for one in figures] == [("", "all-1"), ("", "all-2")]
    use = GpuUse(
        gpus=2,
        measured=2,
        utilization_percent=70.0,
        utilization_max_percent=100.0,
        memory_max_percent=25.0,
        memory_used_mib=8_000,
        memory_total_mib=32_000,
        power_w=100.0,
    )
    owner = JobOwner(kind="JobSet", name="all", uid="u-set", jobs=2, use=use)
    assert {one.owner for one in figures} == {owner}


def test_what_comes_late_or_twice_or_from_elsewhere_does_not_count() -> None:
    core = meter()
    core.book.put(pod("a"))
    core.on_node(told(5, gpu(0, "a", 50.0), epoch=2), 0.0)
    core.on_node(told(5, gpu(0, "a", 0.0), epoch=2), 1.0)
    core.on_node(told(4, gpu(0, "a", 0.0), epoch=2), 1.0)
    core.on_node(told(9, gpu(0, "a", 0.0), epoch=1), 1.0)
    core.on_node(replace(told(9, gpu(0, "a", 0.0), epoch=3), cluster="blue"), 1.0)
    (figures,) = core.take(30.0)
    assert figures.use.utilization_percent == 50.0
    assert dict(core.dropped) == {"repeated": 2, "older_life": 1, "other_cluster": 1}


def test_an_agent_with_anothers_node_name_is_told_of_and_costs_the_other_nothing() -> None:
    core = meter()
    core.book.put(pod("a", "n1"))
    core.book.put(pod("b", "n2"))
    for second in range(int(LASTS_S) + 5):
        core.on_node(told(second, gpu(0, "a", 50.0)), second)
        # The agent of n2 says that it is n1. It began later: its word is taken for a restart …
        core.on_node(told(second, gpu(0, "b", 99.0, node="n2"), epoch=2), second)
    # … but the kubelet's pods are not on n1, and the older agent goes on talking.
    assert core.disagreements() == {Disagreement.OTHER_NODE: 1}
    for second in range(int(LASTS_S) + 5, 3 * int(LASTS_S)):
        core.on_node(told(second, gpu(0, "a", 50.0)), second)
        core.on_node(told(second, gpu(0, "b", 99.0, node="n2"), epoch=2), second)
    assert core.disagreements()[Disagreement.TWO_AGENTS] == 1
    assert [one.text for one in core.take_new_disagreements()] == [
        "GPU 0 of n1 is said to be ml/b's, which is on n2",
        "two agents tell of node n1: one has another's --node",
    ]
    assert core.take_new_disagreements() == []  # each once
    core.take(3 * LASTS_S + FORGET_S + 1)
    assert core.disagreements() == {}  # it is over


def test_a_gpu_that_two_nodes_tell_of_is_the_firsts() -> None:
    core = meter()
    core.book.put(pod("a", "n1"))
    core.book.put(pod("b", "n9"))
    for second in range(40):
        core.on_node(told(second, gpu(0, "a", 50.0)), second)
        core.on_node(told(second, gpu(0, "b", 99.0), node="n9"), second)
    (figures,) = core.take(40.0)
    assert (figures.nodes, figures.use.utilization_percent) == (("n1",), 50.0)
    assert core.disagreements() == {Disagreement.GPU_TWICE: 1}
    (wrong,) = core.take_new_disagreements()
    assert wrong.text == "GPU-n1-0 is told of by n1 and by n9: one has another's --node"


def test_a_contradiction_on_a_jobs_pods_is_in_its_message_when_it_lasts() -> None:
    core = meter()
    core.book.put(pod("a"))
    thief = replace(gpu(0, "a", 50.0), holders=(), other_processes=0)
    thief = replace(thief, pods=(GpuPodUse(pod_uid="uid-a"),))
    for second in range(31):
        core.on_node(told(second, thief), second)
    (figures,) = core.take(31.0)
    assert figures.disagreements == ("ml/a has processes on GPU 0 of n1, which nobody gave it",)
    # An agent that cannot ask its kubelet knows nothing of that.
    blind = meter()
    blind.book.put(pod("a"))
    for second in range(31):
        blind.on_node(told(second, thief, lacks=["who has which GPU: no such socket"]), second)
    (figures,) = blind.take(31.0)
    assert (figures.disagreements, figures.use.utilization_percent) == ((), 50.0)


def test_what_pods_use_is_summed_over_the_pods_of_a_job_and_refused_value_by_value() -> None:
    core = meter()
    core.book.put(pod("a"))
    core.book.put(pod("b", "n2"))
    core.book.put(pod("c", job=JobName("kube-system", Owner("DaemonSet", "cni", "u-cni"))))
    for second, cores in ((0, 1.0), (10, 3.0)):
        mine = PodUsage(pod_uid="uid-a", cpu_cores=cores, memory_mib=100.0)
        node = replace(told(second), pods=(mine, PodUsage(pod_uid="uid-c", cpu_cores=9.0)))
        core.on_node(node, float(second))
    absurd = PodUsage(pod_uid="uid-b", cpu_cores=1e9, disk_write_bytes_per_s=5e6)
    elsewhere = PodUsage(pod_uid="uid-a", cpu_cores=50.0)  # told by the node that it is not on
    core.on_node(replace(told(1, node="n2"), pods=(absurd, elsewhere)), 10.0)

    (figures,) = core.take(31.0)
    assert (figures.id, figures.use.gpus, figures.pods) == ("train", 0, 0)
    assert figures.host == HostUse(
        pods=2, cpu_cores=2.0, memory_mib=100.0, disk_write_bytes_per_s=5e6
    )
    assert figures.nodes == ("n1", "n2")
    assert core.dropped["absurd_cpu_cores"] == 1


def test_a_job_that_ends_within_its_first_half_minute_has_one_message_with_all_of_it() -> None:
    core = meter()
    core.book.put(pod("a"))
    core.on_node(told(1, gpu(0, "a", 80.0)), 0.0)
    core.book.drop("uid-a")
    assert core.take(12.0) == []
    (last,) = core.take(12.0 + ENDED_S)
    assert (last.ended, last.use.utilization_percent, last.window_s) == (True, 80.0, 12.0)


def test_what_counters_say_is_told_of_jobs_with_a_device_alone() -> None:
    core = meter()
    core.book.put(pod("a"))
    reading = replace(
        gpu(0, "a", 99.0),
        tensor_active_percent=40.0,
        dram_active_percent=20.0,
        memory_bandwidth_percent=30.0,
        pcie_bytes_per_s=5e9,
    )
    core.on_node(told(1, reading), 0.0)
    (figures,) = core.take(30.0)
    use = figures.use
    assert (use.tensor_active_percent, use.dram_active_percent) == (40.0, 20.0)
    assert (use.memory_bandwidth_percent, use.pcie_bytes_per_s) == (30.0, 5e9)
