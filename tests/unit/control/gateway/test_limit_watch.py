"""Which jobs the log is told to exceed their GPU fraction."""

from typing import Any

from msgspec.structs import replace

from berthmaster.cli.audit.core import Auditor
from berthmaster.cli.report.sharing import SharingRow, row_of
from berthmaster.control.gateway.core.events import FiguresHeard, Logged, Tick
from berthmaster.lib.lifecycle.instructions import Answered, Append, Stored
from berthmaster.lib.messages.api import GetReply, WorkloadView
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from berthmaster.lib.messages.workload import LimitExceeded, PodSet, Running
from tests.unit.control.gateway.stories import BY, claimed, fresh, job, log, placed, submitted

REQUEST = job("a", pod_sets=(PodSet(gpus=1, gpu_milli=250),))


def figures(percent: float, used_mib: int, **fields: Any) -> JobFigures:
    use = GpuUse(
        gpus=1,
        measured=1,
        utilization_percent=percent,
        memory_used_mib=used_mib,
        memory_total_mib=80_000,
    )
    told: dict[str, Any] = {
        "cluster": "c1",
        "tenant": "ann",
        "id": "a",
        "attempt": 1,
        "epoch": 1,
        "counter": 1,
        "observed_at_s": 0.0,
        "use": use,
    }
    return JobFigures(**(told | fields))


def test_limit_watch_reports_each_limit_once_an_attempt() -> None:
    gateway = fresh()
    events: list[Any] = [submitted(REQUEST), placed(REQUEST, 1), claimed(REQUEST, 2)]
    log(gateway, *events)
    work = gateway.view.find("ann", "a")
    assert work is not None
    cluster, sequence = work.cluster, 50
    said: list[Any] = []
    head: dict[str, Any] = {"tenant": "ann", "id": "a", "at_s": 1.0, "by": BY}
    pods = (PodBinding(pod="main-0", node="n1", gpus=(0,)),)
    running = Running(**head, cluster=cluster, attempt=1, after=work.sequence, pods=pods)
    gateway.handle(Logged(event=running, sequence=sequence, stored_at_s=1.0), 1.0)

    def play(messages: int, percent: float, used_mib: int, **fields: Any) -> list[str]:
        nonlocal sequence
        for _ in range(messages):
            told = figures(percent, used_mib, **({"cluster": cluster} | fields))
            gateway.handle(FiguresHeard(figures=told), 2.0)
            for step in gateway.handle(Tick(), 2.0):
                assert isinstance(step, Append)
                sequence += 1
                said.append(step.event)
                logged = Logged(event=step.event, sequence=sequence, stored_at_s=2.0)
                gateway.handle(logged, 2.0)
                gateway.handle(Answered(ref=step.ref, outcome=Stored(sequence)), 2.0)
        return [event.limit for event in said if isinstance(event, LimitExceeded)]

    assert play(3, 20.0, 30_000) == []  # two minutes are too short
    assert play(1, 20.0, 10_000) == []
    assert play(9, 20.0, 30_000, disagreements=("two agents tell",)) == []
    assert play(9, 20.0, 30_000) == ["memory"]
    assert dict(gateway.exceeding) == {"memory": 1}
    assert play(9, 90.0, 30_000) == ["memory", "compute"]
    memory, compute = said
    assert (memory.granted, memory.used, memory.attempt) == (20_000, 30_000, 1)
    assert (compute.granted, compute.used) == (250, 900)

    # The audit reads it from the log alone.
    auditor = Auditor()
    for at, event in enumerate([*events, running, *said], 1):
        auditor.on_event(replace(event, after=at - 1), at, 1.0)
    found = [(one.rule, one.where, one.what) for one in auditor.report().findings]
    assert found == [
        ("shares are held", "ann/a", "attempt 1: memory 30000 of 20000 granted"),
        ("shares are held", "ann/a", "attempt 1: compute 900 of 250 granted"),
    ]


def test_row_of_shows_granted_beside_measured() -> None:
    view = WorkloadView(tenant="ann", id="a", state="running", queue="q", cluster="c1", attempt=1)
    reply = GetReply(workload=view, request=REQUEST, figures=(figures(40.0, 21_000),))
    assert row_of(reply) == SharingRow(
        id="a",
        cluster="c1",
        queue="q",
        used_milli=400,
        granted_milli=250,
        used_mib=21_000,
        granted_mib=20_000,
        exceeds=("compute",),
    )
    silent = GetReply(workload=view, request=REQUEST)
    assert row_of(silent) == SharingRow(id="a", cluster="c1", queue="q")
    assert row_of(GetReply(workload=view, request=job("a", pod_sets=(PodSet(gpus=1),)))) is None
