import pytest

from berthmaster.lib.messages.families import TELEMETRY, encode
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry
from berthmaster.worker.telemetry.core.source import NodeReading
from berthmaster.worker.telemetry.emulated import MODELS, EmulatedSource


def source(seed: int = 1, node: str = "n1", gpus: int = 3, model: str = "a100") -> EmulatedSource:
    return EmulatedSource(node=node, gpus=gpus, model=model, seed=seed)


def run(one: EmulatedSource, reads: int) -> list[GpuReading]:
    return [gpu for second in range(reads) for node in one.read(float(second)) for gpu in node.gpus]


def test_the_same_seed_and_node_give_the_same_readings_and_others_do_not() -> None:
    assert run(source(), 300) == run(source(), 300)
    assert run(source(), 300) != run(source(seed=2), 300)
    assert run(source(), 300) != run(source(node="n2"), 300)


def test_no_two_gpus_share_a_uuid() -> None:
    uuids = {gpu.uuid for node in ("n1", "n2") for gpu in run(source(node=node), 1)}
    assert len(uuids) == 6
    assert all(len(uuid) == len("GPU-") + 36 for uuid in uuids)


@pytest.mark.parametrize("model", MODELS)
def test_readings_stay_within_what_the_model_can_do(model: str) -> None:
    about = MODELS[model]
    for gpu in run(source(model=model), 500):
        assert gpu.model == about.name
        assert 0 <= (gpu.utilization_percent or 0) <= 100
        assert 0 < (gpu.memory_used_mib or 0) < about.memory_mib
        assert about.idle_w - 5 < (gpu.power_w or 0) < about.power_w + 5
        assert 25 <= (gpu.temperature_c or 0) <= 85
        assert bool(gpu.processes) == (gpu.utilization_percent != 0 or gpu.memory_used_mib != 4)
        message = NodeTelemetry(
            cluster="c", node="n", epoch=1, counter=1, observed_at_s=1.0, interval_s=1.0,
            source="emulated", gpus=(gpu,),
        )  # fmt: skip
        assert TELEMETRY.decode(encode(message)) == message


def test_a_node_is_sometimes_idle_and_sometimes_at_work() -> None:
    seen = {(gpu.utilization_percent or 0) // 25 for gpu in run(source(), 1000)}
    assert seen >= {0, 1, 3}


def test_a_node_without_gpus_is_a_node() -> None:
    assert list(source(gpus=0).read(0.0)) == [NodeReading("", ())]
