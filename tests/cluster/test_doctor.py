"""`berth doctor` on real clusters: it sees what is wrong, writes nothing, and the change that it
names is the one that helps."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from berthmaster.doctor.core import diagnose
from berthmaster.doctor.facts import Mode
from berthmaster.doctor.findings import Report
from berthmaster.doctor.hub import MERGE_GATE
from berthmaster.doctor.reader import Place, survey
from tests.controlplane.kueue.setup import kueue
from tests.controlplane.nodes import gpu_node, make_nodes
from tests.controlplane.plane import Plane
from tests.controlplane.planes import Planes

SYSTEM = "kueue-system"
IMAGE = "registry.k8s.io/kueue/kueue:v0.19.2"
pytestmark = pytest.mark.timeout(180)


def place(plane: Plane, **named: str) -> Place:
    return Place(name=named.get("name", plane.name), kubeconfig=plane.kubeconfig)


async def look(planes: Planes, mode: Mode = "observe", *, as_self: bool = True) -> Report:
    """A diagnosis as `berth up` would need it: by the rights of these credentials."""
    workers = [place(worker) for worker in planes.workers]
    found = await survey(
        place(planes.hub),
        workers,
        mode=mode,
        namespace="berth-system",
        now_s=time.time(),
        as_self=as_self,
    )
    return diagnose(found)


def wrong(report: Report, *levels: str) -> list[tuple[str, str]]:
    return [
        (each.where, each.what) for each in report.findings if each.level in (levels or ("blocks",))
    ]


def install(hub: Plane, **config: Any) -> None:
    """What Kueue's own manifests would have left behind, as far as a doctor looks at it."""
    text = yaml.safe_dump({"apiVersion": "config.kueue.x-k8s.io/v1beta2", **config})
    meta = {"name": "kueue-manager-config", "namespace": SYSTEM}
    data = {"controller_manager_config.yaml": text}
    hub.api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    labels = {"app": "kueue"}
    container = {"name": "manager", "image": IMAGE, "args": ["--zap-log-level=2"]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    hub.api.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "kueue-controller-manager", "namespace": SYSTEM},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        }
    )


def test_a_fleet_in_order_is_seen_as_such_and_each_thing_that_breaks_is_found(
    planes: Planes, namespace: str
) -> None:
    async def whole() -> None:
        for worker in planes.workers:
            make_nodes(worker, [gpu_node("a", gpus=8, model="NVIDIA-A100-SXM4-80GB")])
        async with kueue(planes, namespace) as k:
            hub, third = planes.hub, planes.workers[2]
            install(hub, multiKueue={})
            marks = {plane.name: plane.audit.mark() for plane in planes}
            report = await look(planes)
            assert wrong(report) == []
            said = [(each.where, each.what) for each in report.findings]
            assert ("hub", "Kueue 0.19.2 serves v1beta2") in said
            assert (
                "hub",
                "Kueue dispatches by itself (AllAtOnce, the default), as observe wants",
            ) in said
            assert (third.name, f"LocalQueue {namespace}/main can admit GPU jobs") in said
            assert (third.name, "8 GPUs on 1 nodes, 1 of them ready") in said

            # It reads only: besides questions about rights, not one write was made.
            for plane in planes:
                made = plane.audit.count(since=marks[plane.name], user="admin")
                writes = {
                    resource for (_, verb, resource) in made if verb not in ("get", "list", "watch")
                }
                assert writes <= {"selfsubjectaccessreviews.authorization.k8s.io"}, made

            # dispatch: the dispatcher, and the trap of the missing gate; then as the change says.
            blocked = wrong(await look(planes, "dispatch"))
            assert [where for where, _ in blocked] == ["hub", "hub"]
            assert any(MERGE_GATE in what for _, what in blocked)
            install(
                hub,
                multiKueue={"dispatcherName": "berthmaster.io/dispatcher"},
                featureGates={MERGE_GATE: True},
            )
            assert wrong(await look(planes, "dispatch")) == []
            [(_, what)] = wrong(await look(planes, "order"))
            assert "order needs Incremental with a step of 1" in what

            # A black hole in one worker; then in all.
            await asyncio.to_thread(k.stop_queue, third.name, "Hold")
            report = await look(planes)
            assert wrong(report) == []
            assert [where for where, what in wrong(report, "warning") if "is stopped" in what] == [
                third.name
            ]
            for worker in planes.workers[:2]:
                await asyncio.to_thread(k.stop_queue, worker.name, "HoldAndDrain")
            blocked = wrong(await look(planes))
            assert blocked == [("hub", f"no worker can take LocalQueue {namespace}/main")]

    asyncio.run(whole())


def test_accounts_that_are_not_there_yet_lack_every_right_and_a_stranger_sees_little(
    planes: Planes, namespace: str
) -> None:
    async def whole() -> None:
        report = await look(planes, as_self=False)
        lacking = [what for _, what in wrong(report) if "may not: " in what]
        assert len(lacking) == 4
        assert lacking[0].startswith(
            "system:serviceaccount:berth-system:berth-hub may not: get workloads.kueue.x-k8s.io"
        )

        hub = planes.hub
        stranger = Place(name="hub", kubeconfig=hub.kubeconfig_for("nobody", ("strangers",)))
        seen = await survey(
            stranger, [], mode="observe", namespace="berth-system", now_s=time.time()
        )
        assert seen.hub is not None
        assert (seen.hub.unreachable, seen.hub.version[:3]) == ("", "v1.")
        assert "clusterqueues (these credentials may not)" in seen.hub.unread

    asyncio.run(whole())


def test_the_command_ends_with_1_when_something_blocks_and_speaks_json(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    argv = [sys.executable, "-m", "berthmaster.cli.main", "doctor", "--self", "--json"]
    argv += ["--hub", f"hub={planes.hub.kubeconfig}", "--worker", f"w={tmp_path / 'none'}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2  # a file that is not there is a slip of the command line
    argv[-1] = f"worker-1={planes.workers[0].kubeconfig}"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    told = json.loads(done.stdout)
    blocks = [each for each in told["findings"] if each["level"] == "blocks"]
    assert (done.returncode, told["ready"]) == (1, False), told
    assert "there is no AdmissionCheck of MultiKueue" in {each["what"] for each in blocks}
    assert all(each["change"] for each in blocks)
