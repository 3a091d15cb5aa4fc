"""What a job writes that came by way of a hub: read, told and kept by the agent of the worker to
which MultiKueue sent it, over the bus alone, with the rights of its Role and no others."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from berthmaster.cli.cluster.secret import EXECUTOR_ROLE
from berthmaster.client import RefusedError, SyncClient, lines_of
from berthmaster.lab.controlplane.kueue.setup import Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.workload import Checkpoint, Progress
from tests.cluster.deploying import bind_in
from tests.cluster.multikueueing import Bus, Rig
from tests.controlplane.logs import kubelet_logs, reach
from tests.support import warm
from tests.support.chart import rights
from tests.support.patience import ANSWER_S

AGENT: Final = "berth-agent"
SAID: Final = (
    b"2026-11-25T10:00:00.1Z begins\n"
    b'2026-11-25T10:00:00.2Z BERTH {"step": 40, "loss": 0.5}\n'
    b'2026-11-25T10:00:00.3Z BERTH {"checkpoint": {"step": 30, "uri": "s3://runs/30"}}\n'
)
LAST: Final = b"2026-11-25T10:00:09.1Z last words\n"


@contextlib.contextmanager
def serving(rig: Rig, plane: Plane) -> Iterator[None]:
    """Gateway, door, and a worker's executor with its Role in the namespace."""
    for document in rights(EXECUTOR_ROLE, role="worker"):
        plane.api.apply(document)
    subject = {"kind": "User", "name": AGENT, "apiGroup": "rbac.authorization.k8s.io"}
    bind_in(plane, rig.k.namespace, EXECUTOR_ROLE, subject)
    common = ["--nats-url", rig.bus.url, "--http-port", "-1", "--log-format", "text"]
    executor = ["executor", "--cluster", plane.name, "--namespaces", rig.k.namespace]
    executor += ["--kubeconfig", str(plane.kubeconfig_for(AGENT))]
    env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
    with contextlib.ExitStack() as running:
        for argv in (["door"], ["gateway"], executor):
            log = running.enter_context((rig.folder / f"{argv[0]}.log").open("ab"))
            process = warm.berth("serve", *argv, *common, output=log, env=env)
            running.callback(process.wait, 10)
            running.callback(process.kill)
        yield


def test_a_hubs_job_is_read_told_of_and_its_end_kept_where_multikueue_sent_it(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[1]
    make_nodes(worker, [gpu_node("n1", model="NVIDIA-A100", gpus=8)])
    options = Options(dispatcher="berthmaster.io/dispatcher")
    with (
        kubelet_logs(tmp_path / "kubelet") as logs,
        Bus(tmp_path) as bus,
        Kueue(planes, namespace, options=options) as k,
    ):
        reach(worker.api, "n1", logs.port)
        logs.by_job["train"] = SAID
        rig = Rig(k, bus, tmp_path)
        for plane in planes.workers:
            bus.worker(plane.name, free=8 if plane is worker else 0)
            bus.queue(plane.name, k)
        rig.start()
        try:
            with (
                serving(rig, worker),
                SyncClient.connect(bus.url, tenant=namespace, timeout_s=ANSWER_S) as berth,
                SyncClient.connect(bus.url, tenant="evil", timeout_s=ANSWER_S) as evil,
            ):
                name = rig.submit("train")  # until it is ended below
                job = name.partition("/")[2]
                rig.until(lambda: rig.story("train")[-1:] == [f"running {worker.name}"], "it runs")

                def text(**how: bool) -> list[bytes]:
                    pieces = berth.logs(job, **how)
                    return [line.text for piece in pieces for line in lines_of(piece)]

                rig.until(text, "its log is read")
                assert text()[0] == b"begins"
                with pytest.raises(RefusedError, match="of a workload of this tenant"):
                    next(iter(evil.logs(job)))

                # What it says of itself is in its story, where its reconciler goes on.
                def heard() -> bool:
                    fold = bus.folds[name]
                    return fold.progress is not None and fold.checkpoint is not None

                rig.until(heard, "it is heard")
                assert bus.folds[name].progress == Progress(step=40, loss=0.5)
                assert bus.folds[name].checkpoint == Checkpoint(step=30, uri="s3://runs/30")

                logs.by_job["train"] = SAID + LAST
                path = f"/api/v1/namespaces/{namespace}/pods"
                (pod,) = worker.api.items(path)
                ended = {"status": {"phase": "Succeeded"}}
                worker.api.merge(f"{path}/{pod['metadata']['name']}/status", ended)
                rig.until_told("train", f"succeeded {worker.name}")
                # MultiKueue has removed its pod, and with it the log.
                rig.until(lambda: not k.copies("train"), "its copy is gone")
                rig.until(lambda: b"last words" in text(), "the end of its log is kept")
                (kept,) = berth.logs(job)
                assert (kept.kept, kept.cluster, kept.state) == (True, worker.name, "succeeded")
                rig.nothing_wrong()
        finally:
            rig.kill()
