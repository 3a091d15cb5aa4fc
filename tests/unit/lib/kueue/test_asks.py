"""What a request asks of a ClusterQueue: the words that its job will use."""

from msgspec.structs import replace

from berthmaster.lib.kueue.asks import asks_of, devices_of
from berthmaster.lib.messages.fleet import DeviceClaim, Share
from berthmaster.lib.messages.workload import JobRequest, PodSet
from tests.support.builders import node

MIG = Share(resource="nvidia.com/mig-3g.40gb", milli=428, memory_mib=40_960, count=2, kind="mig")
REPLICA = Share(resource="nvidia.com/gpu.shared", milli=250, count=4)
HAMI = Share(resource="nvidia.com/gpu", milli=10, kind="hami")
KAI = Share(resource="", milli=1, kind="kai")


def request(*pod_sets: PodSet) -> JobRequest:
    return JobRequest(id="train", pod_sets=pod_sets)


def test_amounts_are_those_of_all_pods_and_nothing_is_not_asked_for() -> None:
    driver = PodSet(name="driver", cpu_milli=500, memory_mib=0)
    workers = PodSet(name="workers", count=4, cpu_milli=2000, memory_mib=1024, gpus=2)
    asked = asks_of(request(driver, workers))
    assert [ask.pods for ask in asked] == [driver, workers]
    assert [ask.ways for ask in asked] == [
        ({"cpu": 500},),
        ({"cpu": 8000, "memory": 4096, "nvidia.com/gpu": 8},),
    ]


def test_whole_gpus_go_by_the_names_of_the_makers_that_are_there_the_commonest_first() -> None:
    devices = devices_of([node("c", "a", resource="amd.com/gpu"), node("c", "b"), node("c", "d")])
    pods = PodSet(gpus=2)
    assert devices(pods) == ({"nvidia.com/gpu": 2}, {"amd.com/gpu": 2})
    assert devices(PodSet()) == ({},)
    assert devices_of([])(pods) == ({"nvidia.com/gpu": 2},)
    assert devices_of([node("c", "a", gpus=0)])(pods) == ({"nvidia.com/gpu": 2},)


def test_parts_of_gpus_go_by_what_nodes_offer() -> None:
    part = PodSet(gpus=1, gpu_milli=200)

    def asked(*shares: Share, pods: PodSet = part) -> list[dict[str, int]]:
        each = [replace(node("c", f"n{at}"), shares=(one,)) for at, one in enumerate(shares)]
        return [dict(way) for way in devices_of(each)(pods)]

    assert asked(MIG) == [{"nvidia.com/mig-3g.40gb": 1}]
    assert asked(REPLICA, MIG, MIG) == [{"nvidia.com/mig-3g.40gb": 1}, {"nvidia.com/gpu.shared": 1}]
    # The replica is too small, so nobody will ask for one.
    half = PodSet(gpus=1, gpu_milli=400)
    assert asked(REPLICA, MIG, pods=half) == [{"nvidia.com/mig-3g.40gb": 1}]
    by_hami = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 20, "nvidia.com/gpumem-percentage": 20}
    assert asked(HAMI) == [by_hami]
    big = PodSet(gpus=1, gpu_milli=1, gpu_memory_mib=10_240)
    cores, memory = {"nvidia.com/gpu": 1}, {"nvidia.com/gpumem": 10_240}
    (way,) = asked(HAMI, pods=big)
    # A part by its memory: as many cores as that comes to of a GPU of the node.
    share = -(-10_240 * 1000 // node("c", "n").gpus[0].memory_mib)
    assert way == cores | memory | {"nvidia.com/gpucores": -(-share // 10)}
    # KAI's scheduler is told by an annotation: Kueue counts cores and memory only.
    assert asked(KAI) == [{}]


def test_what_is_claimed_is_asked_for_as_devices_of_its_class() -> None:
    claim = DeviceClaim(driver="gpu.nvidia.com", device_class="mig.nvidia.com")
    mig = replace(MIG, claim=claim)
    divisible = replace(claim, device_class="gpu.nvidia.com", divisible=True)
    part = Share(resource="gpu.nvidia.com", milli=0, count=1, claim=divisible)
    ways = devices_of([replace(node("c", "a"), shares=(mig,))])(PodSet(gpus=1, gpu_milli=200))
    assert ways == ({"deviceclass.resource.kubernetes.io/mig.nvidia.com": 1},)
    ways = devices_of([replace(node("c", "a"), shares=(part,))])(PodSet(gpus=1, gpu_milli=200))
    assert ways == ({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 1},)
