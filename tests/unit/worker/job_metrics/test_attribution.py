"""Whose a GPU is, where the kubelet, the driver and what is written on pods agree and where not."""

from msgspec.structs import replace

from berthmaster.lib.messages.telemetry import GpuHolder, GpuPodUse, GpuReading, MigInstance
from berthmaster.worker.job_metrics.core.attribution import Disagreement, Part, attribute
from berthmaster.worker.job_metrics.core.pods import Book, JobName, Owner, Pod

NODE = "n1"
GPU = GpuReading(
    index=3,
    uuid="GPU-a",
    model="H100",
    memory_total_mib=80_000,
    memory_used_mib=30_000,
    utilization_percent=80.0,
    power_w=500.0,
)


def pod(
    name: str,
    *,
    node: str = NODE,
    devices: frozenset[str] = frozenset(),
    groups: tuple[str, ...] = (),
    keeper: bool = False,
) -> Pod:
    job = JobName("ml", Owner("Job", f"job-of-{name}", f"uid-of-job-of-{name}"))
    return Pod(f"uid-{name}", "ml", name, node, job, devices, groups, keeper)


def book(*pods: Pod) -> Book:
    made = Book()
    for one in pods:
        made.put(one)
    return made


def held(*names: str, device: str = "") -> tuple[GpuHolder, ...]:
    return tuple(GpuHolder(namespace="ml", pod=name, device=device) for name in names)


def used(name: str, memory_mib: int | None = None, share: float | None = None) -> GpuPodUse:
    return GpuPodUse(pod_uid=f"uid-{name}", memory_mib=memory_mib, sm_percent=share)


def parts(gpu: GpuReading, pods: Book, *, known: bool = True) -> list[Part]:
    found, wrong = attribute(gpu, NODE, pods, told_of_holders=known)
    assert wrong == []
    return found


def wrongs(gpu: GpuReading, pods: Book, *, known: bool = True) -> list[tuple[Disagreement, str]]:
    _, wrong = attribute(gpu, NODE, pods, told_of_holders=known)
    return [(one.kind, one.about) for one in wrong]


def test_a_gpu_that_one_pod_has_alone_is_all_its() -> None:
    a = pod("a")
    whole = Part(a, "GPU-a", 80.0, 30_000, 80_000, 500.0)
    # By the kubelet, by its processes, by both.
    assert parts(replace(GPU, holders=held("a")), book(a)) == [whole]
    assert parts(replace(GPU, pods=(used("a", 29_000),)), book(a), known=False) == [whole]
    assert parts(replace(GPU, holders=held("a"), pods=(used("a"),)), book(a)) == [whole]
    assert parts(GPU, book(a)) == []
    (part,) = parts(replace(GPU, holders=held("a"), sm_active_percent=4.0), book(a))
    assert part.sm_active_percent == 4.0


def test_of_a_shared_gpu_each_has_what_its_processes_have() -> None:
    a, b, c = pod("a"), pod("b"), pod("c")
    shared = replace(
        GPU, holders=held("a", "b", "c"), pods=(used("a", 10_000, 60.0), used("b", 5_000, 20.0))
    )
    assert parts(shared, book(a, b, c)) == [
        Part(a, "GPU-a", 60.0, 10_000, 80_000, 375.0),
        Part(b, "GPU-a", 20.0, 5_000, 80_000, 125.0),
        Part(c, "GPU-a", 0.0, 0, 80_000, 0.0),
    ]
    # A dcgm-exporter knows no processes: who did what is not known, power is halved.
    told = replace(GPU, holders=held("a", "b"))
    assert parts(told, book(a, b)) == [
        Part(a, "GPU-a", None, None, 80_000, 250.0),
        Part(b, "GPU-a", None, None, 80_000, 250.0),
    ]
    # Nor of clients of MPS, whose memory is.
    mps = replace(GPU, holders=held("a", "b"), pods=(used("a", 10_000), used("b", 5_000, 0.0)))
    assert parts(mps, book(a, b)) == [
        Part(a, "GPU-a", None, 10_000, 80_000, 250.0),
        Part(b, "GPU-a", 0.0, 5_000, 80_000, 250.0),
    ]
    still = replace(told, utilization_percent=0.0)
    assert [part.utilization_percent for part in parts(still, book(a, b))] == [0.0, 0.0]


def test_somebody_outside_of_pods_on_the_gpu_is_not_the_pods_doing() -> None:
    a = pod("a")
    gpu = replace(GPU, holders=held("a"), pods=(used("a", 8_000, 10.0),), other_processes=1)
    assert parts(gpu, book(a)) == [Part(a, "GPU-a", 10.0, 8_000, 80_000, 500.0)]


def test_mig_instances_have_their_own_figures_and_one_pod_may_have_two() -> None:
    a, b = pod("a"), pod("b")
    cut = replace(
        GPU,
        mig=(
            MigInstance(
                uuid="MIG-1",
                profile="1g.10gb",
                memory_mib=10_000,
                memory_used_mib=9_000,
                utilization_percent=70.0,
            ),
            MigInstance(uuid="MIG-2", profile="2g.20gb", memory_mib=20_000, memory_used_mib=1),
            MigInstance(uuid="MIG-3", profile="1g.10gb", memory_mib=10_000),
        ),
        holders=(
            *held("a", device="MIG-1"),
            *held("b", device="MIG-2"),
            *held("a", device="MIG-3"),
        ),
        pods=(used("a", 9_000, 30.0),),
    )
    assert parts(cut, book(a, b)) == [
        Part(a, "MIG-1", 70.0, 9_000, 10_000, 62.5),
        Part(a, "MIG-3", None, None, 10_000, 62.5),
        Part(b, "MIG-2", None, 1, 20_000, 125.0),
    ]


def test_of_hamis_pods_what_is_written_counts_and_not_what_the_kubelet_was_asked_for() -> None:
    a = pod("a", devices=frozenset({"GPU-a"}))
    b = pod("b", devices=frozenset({"GPU-other"}))
    told_the_other_way_round = replace(GPU, holders=held("b"))
    assert [part.pod for part in parts(told_the_other_way_round, book(a, b))] == [a]
    # Its processes are on a GPU that is not written on it.
    strange = replace(GPU, holders=held("b"), pods=(used("b", 5, 1.0),))
    assert wrongs(strange, book(a, b)) == [(Disagreement.NOT_GIVEN, "uid-b")]


def test_kais_sharers_have_the_gpu_of_their_groups_keeper() -> None:
    keeper = pod("keeper", groups=("g1",), keeper=True)
    a, b = pod("a", groups=("g1",)), pod("b", groups=("g0", "g1"))
    elsewhere, another = pod("c", groups=("g1",), node="n2"), pod("d", groups=("g2",))
    everybody = book(keeper, a, b, elsewhere, another)
    gpu = replace(GPU, holders=held("keeper"), pods=(used("a", 1, 80.0),))
    assert [(part.pod.name, part.utilization_percent) for part in parts(gpu, everybody)] == [
        ("a", 80.0),
        ("b", 0.0),
    ]


def test_a_pod_that_helps_itself_to_a_gpu_has_its_figures_and_is_told_of() -> None:
    a, thief = pod("a"), pod("thief")
    gpu = replace(GPU, holders=held("a"), pods=(used("thief", 9, 70.0), used("a", 7, 10.0)))
    found, (wrong,) = attribute(gpu, NODE, book(a, thief), told_of_holders=True)
    assert [(part.pod.name, part.utilization_percent) for part in found] == [
        ("a", 10.0),
        ("thief", 70.0),
    ]
    assert wrong.text == "ml/thief has processes on GPU 3 of n1, which nobody gave it"
    # Where nobody knows who was given what, nobody can say so.
    assert wrongs(gpu, book(a, thief), known=False) == []


def test_pods_that_the_api_server_does_not_know_or_has_elsewhere_are_told_of() -> None:
    there = pod("a", node="n2")
    gpu = replace(GPU, holders=held("a", "ghost"), pods=(used("a"), used("nobody")))
    found, wrong = attribute(gpu, NODE, book(there), told_of_holders=True)
    assert found == []
    assert [(one.kind, one.about) for one in wrong] == [
        (Disagreement.OTHER_NODE, "uid-a"),
        (Disagreement.UNKNOWN_POD, "ml/ghost"),
        (Disagreement.OTHER_NODE, "uid-a"),
        (Disagreement.UNKNOWN_POD, "uid-nobody"),
    ]
