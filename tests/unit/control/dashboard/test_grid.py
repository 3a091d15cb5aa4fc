import base64

import numpy as np

from berthmaster.control.dashboard.core.grid import (
    CLOSED,
    DEGRADED,
    FOREIGN,
    LOST,
    MIG,
    NOT_READY,
    PARTS,
    SILENT,
    UNKNOWN,
    Grid,
)
from berthmaster.lib.messages.fleet import Amounts, GpuDevice, NodeReport, PodUse, Stamp
from berthmaster.lib.messages.telemetry import GpuReading, MigInstance, NodeTelemetry


def report(name: str, *gpus: GpuDevice, counter: int = 1, **fields: object) -> NodeReport:
    return NodeReport(
        cluster="c1",
        node=name,
        stamp=Stamp(epoch=1, counter=counter),
        observed_at_s=0.0,
        allocatable=Amounts(gpu_milli=1000 * len(gpus)),
        gpus=gpus,
        **fields,  # type: ignore[arg-type]
    )


def gpu(index: int, **fields: object) -> GpuDevice:
    return GpuDevice(index=index, uuid=f"u{index}", model="T4", memory_mib=16_000, **fields)  # type: ignore[arg-type]


def reading(name: str, *gpus: GpuReading) -> NodeTelemetry:
    return NodeTelemetry(
        cluster="c1",
        node=name,
        epoch=1,
        counter=1,
        observed_at_s=0.0,
        interval_s=1.0,
        source="emulated",
        gpus=gpus,
    )


def measured(index: int, **fields: object) -> GpuReading:
    return GpuReading(index=index, uuid=f"u{index}", model="T4", **fields)  # type: ignore[arg-type]


def rows(text: str) -> list[list[int]]:
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, 5).tolist()


def test_a_fact_and_a_reading_become_a_row_a_gpu() -> None:
    grid = Grid("c1")
    pods = (
        PodUse(tenant="a", workload="w", attempt=1, pod="main-0", gpu_milli=250, gpus=(0,)),
        PodUse(tenant="a", workload="v", attempt=1, pod="main-0", gpu_milli=1000, gpus=(1,)),
    )
    grid.take_report(report("n1", gpu(0), gpu(1), gpu(2, healthy=False), pods=pods), 1)
    grid.take_report(report("n2", gpu(0, foreign_milli=500), ready=False), 1)
    assert grid.lay_out(1)
    unseen = [UNKNOWN, 25, UNKNOWN, UNKNOWN, PARTS | SILENT]
    assert grid.rows.tolist() == [
        unseen,
        [UNKNOWN, 100, UNKNOWN, UNKNOWN, SILENT],
        [UNKNOWN, 0, UNKNOWN, UNKNOWN, LOST | SILENT],
        [UNKNOWN, 50, UNKNOWN, UNKNOWN, FOREIGN | SILENT | NOT_READY],
    ]

    mig = (MigInstance(uuid="m", profile="1g.5gb", memory_mib=5000),)
    assert grid.take_reading(
        reading(
            "n1",
            measured(0, utilization_percent=41.6, memory_total_mib=1000, memory_used_mib=100),
            measured(1, utilization_percent=0.0, temperature_c=300.0, health="degraded", mig=mig),
        ),
        now_s=10.0,
        version=2,
    )
    assert not grid.take_reading(reading("nobody"), now_s=10.0, version=2)
    assert grid.rows.tolist()[:3] == [
        [42, 25, 10, UNKNOWN, PARTS],
        [0, 100, UNKNOWN, 254, DEGRADED | MIG],
        [UNKNOWN, 0, UNKNOWN, UNKNOWN, LOST],
    ]
    grid.close(frozenset({"n1"}), 3)
    assert [row[4] & CLOSED for row in grid.rows.tolist()] == [CLOSED, CLOSED, CLOSED, 0]

    # Nothing is heard for longer than three intervals, and never less than five seconds.
    assert not grid.age(now_s=15.0, version=4)
    assert grid.age(now_s=15.1, version=4)
    assert grid.rows.tolist()[0] == [UNKNOWN, 25, UNKNOWN, UNKNOWN, PARTS | SILENT | CLOSED]


def test_only_nodes_that_changed_are_told_and_all_of_them_after_a_new_layout() -> None:
    grid = Grid("c1")
    for number in (10, 2, 1, 30):
        grid.take_report(report(f"n{number}", gpu(0)), 1)
    grid.lay_out(1)
    assert [name for name, _, _ in grid.layout_document()["nodes"]] == ["n1", "n2", "n10", "n30"]
    first = grid.changes(0)
    assert first is not None
    assert len(rows(first["rows"])) == 4
    assert grid.changes(1) is None

    grid.take_reading(reading("n10", measured(0, utilization_percent=70.0)), 1.0, 2)
    assert grid.changes(1) == {
        "layout": 1,
        "nodes": base64.b64encode(np.array([2], "<u4").tobytes()).decode(),
        "rows": base64.b64encode(bytes([70, 0, UNKNOWN, UNKNOWN, 0])).decode(),
    }
    # Most of them: shorter without their numbers.
    for number in (1, 2):
        grid.take_reading(reading(f"n{number}", measured(0, utilization_percent=5.0)), 1.0, 3)
    more = grid.changes(1)
    assert more is not None
    assert sorted(more) == ["layout", "rows"]

    # A node went: rows move, and history goes with them.
    grid.remember()
    grid.forget("n2")
    assert grid.lay_out(4)
    assert grid.changes(3) == {"layout": 2, "rows": base64.b64encode(grid.rows.tobytes()).decode()}
    place = grid.place_of("n10", 0)
    assert place == 1
    assert grid.history[place, 0] == 70
    assert grid.place_of("n2", 0) is None
