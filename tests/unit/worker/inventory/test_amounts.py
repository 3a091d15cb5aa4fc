import pytest

from berthmaster.worker.inventory.core.devices.amounts import Nonsense, held, offered, quota
from tests.unit.worker.inventory.objects import asks, pod


def test_what_is_offered_is_rounded_down_in_the_units_of_facts() -> None:
    node: dict[str, str | int] = {
        "cpu": "15890m",
        "memory": "65806012Ki",
        "nvidia.com/gpu": "8",
        "google.com/tpu": 4,
    }
    assert [offered(node, name) for name in (*node, "amd.com/gpu")] == [15890, 64_263, 8, 4, 0]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("cpu", "-1", "cpu: '-1' is negative, which no resource can be"),
        ("memory", "lots", "memory: 'lots' is no quantity"),
        ("nvidia.com/gpu", "", "nvidia.com/gpu: '' is no quantity"),
        ("nvidia.com/gpu", "1e9", "nvidia.com/gpu: '1e9' is more than any node has (10000)"),
        ("cpu", "10001", "cpu: '10001' is more than any node has (10000000)"),
        ("memory", "2Pi", "memory: '2Pi' is more than any node has (1073741824)"),
    ],
)
def test_nonsense_is_told_with_its_name_and_never_guessed(name: str, text: str, why: str) -> None:
    with pytest.raises(Nonsense) as told:
        offered({name: text}, name)
    assert str(told.value).startswith(why)


def test_quotas_are_rounded_against_whoever_asks() -> None:
    assert quota("memory", "1025Ki") == 1
    assert quota("memory", "1025Ki", up=True) == 2
    assert quota("cpu", "1500m") == 1500
    assert quota("nvidia.com/gpu", 16) == 16
    with pytest.raises(Nonsense, match="memory: '-1Gi' is negative"):
        quota("memory", "-1Gi")


def test_a_pod_of_twelve_containers_holds_their_sum() -> None:
    containers = [asks({"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": "1"})] * 10
    containers += [asks({"memory": "1Gi"}), {}]
    big = pod(spec={"containers": containers})
    assert held(big.spec) == {"cpu": 1000, "memory": 10 * 64 * 2**20 + 2**30, "nvidia.com/gpu": 10}


def test_starting_can_need_more_than_running() -> None:
    spec = {
        "initContainers": [asks({"cpu": "3", "memory": "1Gi"}), asks({"nvidia.com/gpu": "2"})],
        "containers": [asks({"cpu": "1", "memory": "4Gi", "nvidia.com/gpu": "1"})],
    }
    assert held(pod(spec=spec).spec) == {"cpu": 3000, "memory": 4 * 2**30, "nvidia.com/gpu": 2}


def test_sidecars_go_on_beside_what_starts_after_them_and_beside_the_containers() -> None:
    spec = {
        "initContainers": [
            asks({"cpu": "4"}),  # alone
            asks({"cpu": "1"}, restartPolicy="Always"),
            asks({"cpu": "3500m"}),  # beside the first sidecar: 4500m, the peak of starting
            asks({"cpu": "500m", "memory": "1Gi"}, restartPolicy="Always"),
        ],
        "containers": [asks({"cpu": "2"})],  # and both sidecars: 3500m
    }
    assert held(pod(spec=spec).spec) == {"cpu": 4500, "memory": 2**30}


def test_requests_of_the_pod_as_a_whole_count_instead_and_overhead_comes_on_top() -> None:
    spec = {
        "containers": [asks({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"})],
        "resources": {"requests": {"cpu": "6"}},
        "overhead": {"cpu": "250m", "memory": "120Mi"},
    }
    assert held(pod(spec=spec).spec) == {
        "cpu": 6250,
        "memory": 2**30 + 120 * 2**20,
        "nvidia.com/gpu": 1,
    }
