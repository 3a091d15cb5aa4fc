"""`berth doctor` on real clusters: it sees what is wrong, writes nothing, and the change that it
names is the one that helps."""

import asyncio
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from berthmaster.cli.doctor.core import diagnose
from berthmaster.cli.doctor.facts import Mode, Without
from berthmaster.cli.doctor.findings import Report
from berthmaster.cli.doctor.nominations import MERGE_GATE
from berthmaster.cli.doctor.reader import ClusterAccess, survey
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, kueue
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.deploying import apply, remove
from tests.cluster.doctoring import type_in
from tests.support.patience import hang_s

SYSTEM = "kueue-system"
IMAGE = "registry.k8s.io/kueue/kueue:v0.19.2"


def place(plane: Plane, **named: str) -> ClusterAccess:
    return ClusterAccess(name=named.get("name", plane.name), kubeconfig=plane.kubeconfig)


async def look(
    planes: Planes,
    mode: Mode = "observe",
    *,
    as_self: bool = True,
    without: tuple[Without, ...] = (),
) -> Report:
    """A diagnosis as `berth up` would need it: by the rights of these credentials."""
    workers = [place(worker) for worker in planes.workers]
    found = await survey(
        place(planes.hub),
        workers,
        mode=mode,
        namespace="berth-system",
        now_s=time.time(),
        as_self=as_self,
        without=without,
    )
    return diagnose(found)


def wrong(report: Report, *levels: str) -> list[tuple[str, str]]:
    return [
        (each.where, each.what) for each in report.findings if each.level in (levels or ("blocks",))
    ]


async def carry_out(report: Report, what: str, *, undo: bool = False) -> None:
    """Type what a finding says, as it stands, into a shell. What is edited, an editor edits that
    writes the lines which the finding shows."""
    [found] = [each for each in report.findings if what in each.what]
    await asyncio.to_thread(type_in, found.undo if undo else found.change)


def lately(ago_s: float) -> str:
    """A time of the API's."""
    moment = datetime.fromtimestamp(time.time() - ago_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def install(hub: Plane, **config: Any) -> None:
    """What Kueue's own manifests would have left behind, as far as a doctor looks at it."""
    text = yaml.safe_dump({"apiVersion": "config.kueue.x-k8s.io/v1beta2", **config})
    # Kueue's manager runs outside the cluster here: its lease says that it does.
    hub.api.apply(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "c1f6bfd2.kueue.x-k8s.io", "namespace": SYSTEM},
            "spec": {"holderIdentity": "manager_1", "renewTime": lately(-3600.0)},
        }
    )
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

            # dispatch: the dispatcher, and who clears nominations; then as the change says.
            await asyncio.to_thread(k.remove_policy)
            report = await look(planes, "dispatch")
            assert [where for where, _ in wrong(report)] == ["hub", "hub"]
            [found] = [one for one in report.findings if "nothing clears nominations" in one.what]
            assert found.change.endswith("--set hub.mode=dispatch")  # test_helm_real.py installs it
            await asyncio.to_thread(k.apply_policy)
            await carry_out(report, "dispatch needs one that is not Kueue's")
            assert wrong(await look(planes, "dispatch")) == []

            # With the gate beside it Kueue would end of the first preemption.
            install(
                hub,
                multiKueue={"dispatcherName": "berthmaster.io/dispatcher"},
                featureGates={MERGE_GATE: True},
            )
            assert wrong(await look(planes, "dispatch")) == []
            preempts = {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}}
            queue = f"{API}/clusterqueues/{k.cluster_queue}"
            await asyncio.to_thread(hub.api.merge, queue, preempts)
            report = await look(planes, "dispatch")
            [(_, what)] = wrong(report)
            assert what == (
                f"the gate {MERGE_GATE} is on and ClusterQueue {k.cluster_queue} may preempt: "
                "Kueue's manager will end for good"
            )
            await carry_out(report, MERGE_GATE)
            assert wrong(await look(planes, "dispatch")) == []

            await its_manager_dies(planes)

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


async def its_manager_dies(planes: Planes) -> None:
    """The hub's: its API is served as before, and the lease grows old."""
    hub = planes.hub
    install(hub, multiKueue={"dispatcherName": "berthmaster.io/dispatcher"})
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    path = f"{leases}/c1f6bfd2.kueue.x-k8s.io"
    await asyncio.to_thread(hub.api.merge, path, {"spec": {"renewTime": lately(300.0)}})
    [(_, what)] = wrong(await look(planes, "dispatch"))
    assert what == "Kueue's manager does not run: its Deployment is scaled to 0"
    await asyncio.to_thread(hub.api.merge, path, {"spec": {"renewTime": lately(-3600.0)}})


def test_what_a_worker_and_a_job_lack_is_given_by_what_is_named_and_taken_back_again(
    planes: Planes, namespace: str
) -> None:
    with Kueue(planes, namespace) as k:
        hub, worker = planes.hub, planes.workers[0]
        for each in planes.workers:  # Kueue asks all, and takes the first that admits the job
            make_nodes(each, [gpu_node("a", gpus=8, model="NVIDIA-A100-SXM4-80GB")])
        list(apply(worker, "worker"))
        try:
            # The agent is there and may not make Jobs in the namespace.
            report = asyncio.run(look(planes, as_self=False))
            [found] = [
                each
                for each in report.findings
                if each.where == worker.name and "may not:" in each.what
            ]
            lacks = [right.split()[1] for right in found.what.partition(": ")[2].split(", ")[:6]]
            own = f"namespaces/{namespace}"
            assert lacks == [*["jobs.batch"] * 3, "services", "services", own]
            assert "helm" not in found.change
            asyncio.run(carry_out(Report(mode="observe", ready=False, findings=[found]), "may"))
            report = asyncio.run(look(planes, as_self=False))
            told = [each.what for each in report.findings if each.where == worker.name]
            assert any("may do all that observe needs" in what for what in told), told
            undo = Report(mode="observe", ready=False, findings=[found])
            asyncio.run(carry_out(undo, "may", undo=True))
            report = asyncio.run(look(planes, as_self=False))
            assert [each for each in report.findings if each.what == found.what]
        finally:
            remove(worker, "worker")

        # A Job of MultiKueue's in a queue without its check waits until it is in one that has it.
        hub.api.apply(builders.cluster_queue(f"{namespace}-web", {"default": {"cpu": "0"}}))
        hub.api.apply(builders.local_queue(namespace, "web", f"{namespace}-web"))
        k.submit("train", queue="web", run_s="1")
        report = asyncio.run(look(planes))
        asyncio.run(carry_out(report, "in queue web, which does not lead to MultiKueue: train"))
        k.until(lambda: k.has("train", "Finished"), "it runs and ends")
        assert not [each for each in asyncio.run(look(planes)).findings if "managedBy" in each.what]

        # A queue that a worker lacks is made as is said, or is said to be left out.
        path = f"{API}/namespaces/{namespace}/localqueues/{k.queue}"
        worker.api.delete(path)
        k.until(lambda: worker.api.find(path) is None, "the LocalQueue gone")
        left = (Without.parse(f"{worker.name}:{namespace}/*"),)
        missing = f"jobs of {namespace}/main cannot run here: there is no Local"
        report = asyncio.run(look(planes, without=left))
        assert not [each for each in report.findings if missing in each.what]
        asyncio.run(carry_out(asyncio.run(look(planes)), missing))
        k.until(lambda: not k.inactive(), "it is there and active again")


def dead_webhook(hub: Plane) -> str:
    """Kueue's own webhook about Workloads, at which nobody answers. The path of it."""
    rule = {
        "apiGroups": ["kueue.x-k8s.io"],
        "apiVersions": ["v1beta2"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["workloads", "workloads/status"],
    }
    hook = {
        "name": "vworkload.kb.io",
        "clientConfig": {"url": "https://127.0.0.1:9/validate"},
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    made = hub.api.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "kueue-validating-webhook-configuration"},
            "webhooks": [hook],
        }
    )
    return hub.api.path_of(made)


def test_a_workload_that_ends_kueue_s_manager_goes_by_the_steps_that_are_named(
    planes: Planes, namespace: str
) -> None:
    with Kueue(planes, namespace) as k:
        hub = planes.hub
        install(hub, multiKueue={})
        k.stop_queue(planes.workers[0].name, "Hold")
        k.set_clusters([planes.workers[0].name])
        k.submit("train")
        k.until(lambda: k.has("train", "QuotaReserved"), "quota")
        k.kill_manager("hub")
        workload = k.workload("train")
        assert workload is not None
        kept = [one for one in workload["status"]["conditions"] if one["type"] != "Evicted"]
        evicted = {
            **kept[0],
            "type": "Evicted",
            "status": "True",
            "reason": "Preempted",
        }
        k.patch_status("train", {"admission": None, "conditions": [*kept, evicted]})
        webhook = dead_webhook(hub)
        try:
            report = asyncio.run(look(planes))
            name = workload["metadata"]["name"]
            [(where, what)] = [each for each in wrong(report) if "ends Kueue" in each[1]]
            assert (where, what.partition(" ends ")[0]) == (
                "hub",
                f"Workload {namespace}/{name} of Job train",
            )
            asyncio.run(carry_out(report, "ends Kueue's manager"))
            k.until(lambda: hub.api.find(k.path(name)) is None, "the Workload gone")
            [hook] = hub.api.get(webhook)["webhooks"]
            assert hook["failurePolicy"] == "Fail"
        finally:
            hub.api.delete(webhook)
        k.start_manager("hub")
        k.stop_queue(planes.workers[0].name, "None")
        k.wait_active()
        assert not [what for _, what in wrong(asyncio.run(look(planes))) if "ends Kueue" in what]


def test_accounts_that_are_not_there_yet_lack_every_right_and_a_stranger_sees_little(
    planes: Planes, namespace: str
) -> None:
    async def whole() -> None:
        report = await look(planes, as_self=False)
        lacking = [what for _, what in wrong(report) if "may not: " in what]
        assert len(lacking) == 4
        assert lacking[0].startswith(
            "Berthmaster is not installed: system:serviceaccount:berth-system:berth-hub may not: "
            "get workloads.kueue.x-k8s.io"
        )

        hub = planes.hub
        stranger = ClusterAccess(
            name="hub", kubeconfig=hub.kubeconfig_for("nobody", ("strangers",))
        )
        seen = await survey(
            stranger, [], mode="observe", namespace="berth-system", now_s=time.time()
        )
        assert seen.hub is not None
        assert (seen.hub.unreachable, seen.hub.version[:3]) == ("", "v1.")
        unread = "clusterqueues.kueue.x-k8s.io (these credentials may not)"
        assert unread in seen.hub.unread

    asyncio.run(whole())


def test_the_command_ends_with_1_when_something_blocks_and_speaks_json(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    argv = [sys.executable, "-m", "berthmaster.cli.main", "doctor", "--self", "--json"]
    argv += ["--hub", f"hub={planes.hub.kubeconfig}", "--worker", f"w={tmp_path / 'none'}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=hang_s(), check=False)
    assert done.returncode == 2  # a file that is not there is a slip of the command line
    argv[-1] = f"worker-1={planes.workers[0].kubeconfig}"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=hang_s(), check=False)
    told = json.loads(done.stdout)
    blocks = [each for each in told["findings"] if each["level"] == "blocks"]
    assert (done.returncode, told["ready"]) == (1, False), told
    assert "there is no AdmissionCheck of MultiKueue" in {each["what"] for each in blocks}
    assert all(each["change"] for each in blocks)
