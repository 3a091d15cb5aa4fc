"""A job's figures on a real API server: owners up to the top, a message, annotations that come and
go, an Event. The nodes' telemetry is the test's; the accounts and rights are those of deploy."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.messages.families import JOB_FIGURES, encode
from berthmaster.lib.messages.telemetry import GpuHolder, GpuReading, JobFigures, NodeTelemetry
from berthmaster.lib.nats import subjects
from berthmaster.worker.job_metrics import service
from berthmaster.worker.job_metrics.core.meter import Meter
from berthmaster.worker.job_metrics.core.notes import ALL, IDLE, MARK, UTILIZATION
from berthmaster.worker.job_metrics.settings import FiguresSettings
from tests.bus.shells import running
from tests.bus.tools import story
from tests.cluster.inventorying import CLUSTER, bus
from tests.controlplane.jobs import gpu_job

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "top"}}


def reading(pod: str, counter: int, busy: float) -> NodeTelemetry:
    holder = GpuHolder(namespace=pod.partition("/")[0], pod=pod.partition("/")[2])
    gpu = GpuReading(
        index=0, uuid="GPU-0", model="T4", utilization_percent=busy, power_w=70.0, holders=(holder,)
    )
    return NodeTelemetry(
        cluster=CLUSTER,
        node="n1",
        epoch=1,
        counter=counter,
        observed_at_s=0.0,
        interval_s=1.0,
        source="nvml",
        gpus=(gpu,),
    )


@story
async def test_a_job_of_kubectl_has_figures_an_owner_and_annotations_that_go_when_it_ends(
    planes: Planes, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = planes.workers[0]
    api = worker.api
    wait_open(worker, make_nodes(worker, [gpu_node("n1")]))
    top = api.create(f"/api/v1/namespaces/{namespace}/configmaps", CONFIG_MAP)
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "top", "uid": top["metadata"]["uid"]}
    job = gpu_job("bert", run_s="forever")
    job["metadata"]["ownerReferences"] = [owner]
    api.create(jobs, job)
    monkeypatch.setattr(service, "Meter", partial(Meter, every_s=0.5))

    async with bus(tmp_path) as told:
        heard: list[JobFigures] = []
        await told.conn.subscribe(
            subjects.job_figures_of(), lambda _, data: heard.append(JOB_FIGURES.decode(data))
        )
        settings = FiguresSettings(
            nats_url=told.url,
            kubeconfig=worker.kubeconfig,
            cluster=CLUSTER,
            http_port=-1,
            namespaces=(namespace,),
            idle_limit_s=0.01,
        )
        async with running("figures", settings, service.main):
            door = DoorClient(told.conn, CLUSTER)
            counter = 0

            def pods() -> list[Any]:
                return [
                    one
                    for one in api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
                    if one["spec"].get("nodeName")
                ]

            await told.eventually(pods, "the pod is bound")
            pod = f"{namespace}/{pods()[0]['metadata']['name']}"

            async def tell(busy: float) -> None:
                nonlocal counter
                counter += 1
                await door.observe(encode(reading(pod, counter, busy)))

            async def until(busy: float, right: Any, what: str) -> None:
                for _ in range(200):
                    await tell(busy)
                    if right():
                        return
                    await told.conn.flush()
                    await asyncio.sleep(0.1)
                raise AssertionError(f"{what}: {heard[-2:]}")

            await until(
                80.0,
                lambda: any(one.owner and one.owner.name == "top" for one in heard),
                "told with its owner",
            )
            figures = heard[-1]
            assert (figures.tenant, figures.namespace, figures.kind) == ("", namespace, "Job")
            assert (figures.name, figures.use.gpus) == ("bert", 1)
            assert figures.use.utilization_percent == 80.0

            def written() -> dict[str, str]:
                metadata = api.get(f"{jobs}/bert")["metadata"]
                notes = metadata.get("annotations", {})
                found = {key: notes[key] for key in ALL if key in notes}
                return found | ({MARK: "x"} if MARK in metadata.get("labels", {}) else {})

            await until(80.0, lambda: written().get(UTILIZATION) == "80", "written on the Job")
            await until(0.0, lambda: IDLE in written(), "told as idle on the Job")
            events = f"/api/v1/namespaces/{namespace}/events"
            await until(
                0.0,
                lambda: any(e["reason"] == "GpusIdle" for e in api.get(events)["items"]),
                "told as an Event",
            )
            # The Job is stopped, and its pod goes.
            api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod.partition('/')[2]}")
            api.merge(f"{jobs}/bert", {"spec": {"suspend": True}})
            await told.eventually(lambda: heard[-1].ended, "the last message")
            await told.eventually(lambda: not written(), "what was written is gone")
