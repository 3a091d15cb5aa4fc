"""Our client against real API servers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.lab.controlplane.kueue.builders import cluster_queue
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import from_kubeconfig, from_kubeconfig_bytes, in_cluster
from berthmaster.lib.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TimedOut,
    Unauthorized,
    Unreachable,
)
from berthmaster.lib.kube.events import Recorder, Subject
from berthmaster.lib.kube.objects import Object, Struct
from berthmaster.lib.kube.resources import (
    CLUSTER_QUEUES,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
    Resource,
)
from berthmaster.lib.kube.retry import on_conflict
from tests.unit.lib.kube.papers import V1, credential, encoded, kubeconfig, text
from tests.unit.lib.kube.stage import Lines

NOW = "2026-11-21T12:00:00Z"


class Note(Object, frozen=True):
    """A ConfigMap."""

    data: dict[str, str] = msgspec.field(default_factory=dict)


class Check(Struct, frozen=True):
    """An item of a Workload's admissionChecks."""

    name: str = ""
    state: str = ""
    message: str = ""


class WorkloadStatus(Struct, frozen=True):
    """What of it we look at."""

    admission_checks: tuple[Check, ...] = ()


class Workload(Object, frozen=True):
    """A Kueue Workload."""

    status: WorkloadStatus = WorkloadStatus()


@asynccontextmanager
async def reached(kubeconfig: Path, **options: Any) -> AsyncIterator[Client]:
    access = await from_kubeconfig(kubeconfig)
    client = await Client.open(access, user_agent="berth-tests", log=Lines(), **options)
    async with client:
        yield client


def note(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "data": data}


def test_objects_are_made_read_changed_and_deleted(planes: Planes, namespace: str) -> None:
    async def story() -> None:
        async with reached(planes.hub.kubeconfig) as client:
            assert await client.version() == planes.hub.api.get("/version")["gitVersion"]
            notes = CONFIG_MAPS.path(namespace=namespace)
            path = CONFIG_MAPS.path(namespace=namespace, name="a")
            made = await client.create(notes, note("a", x="1"), Note)
            with pytest.raises(AlreadyExists) as twice:
                await client.create(notes, note("a"), Note)
            assert twice.value.message == 'configmaps "a" already exists'
            assert await client.get(path, Note) == made

            version = made.metadata.resource_version
            changed = await client.merge_patch(
                path, {"data": {"x": None, "y": "2"}}, Note, resource_version=version
            )
            assert changed.data == {"y": "2"}
            with pytest.raises(Conflict) as late:
                await client.merge_patch(path, {"data": {}}, Note, resource_version=version)
            assert "the object has been modified" in late.value.message

            with pytest.raises(Conflict):
                await client.delete(path, uid="11111111-2222-3333-4444-555555555555")
            await client.delete(path, uid=made.metadata.uid)
            await client.delete(path)
            with pytest.raises(NotFound):
                await client.get(path, Note)
            assert client.calls["delete", "configmaps"] == 3

    asyncio.run(story())


def test_a_list_in_pages_is_whole_and_its_token_expires_with_the_history(
    planes: Planes, namespace: str
) -> None:
    worker = planes.workers[0]
    for number in range(7):
        body = note(f"n{number}")
        body["metadata"] = {"name": f"n{number}", "labels": {"odd": str(number % 2)}}
        worker.api.create(CONFIG_MAPS.path(namespace=namespace), body)

    async def names(client: Client, **wanted: Any) -> list[list[str]]:
        return [
            [found.metadata.name for found in page.items]
            async for page in client.list_pages(CONFIG_MAPS, Note, namespace=namespace, **wanted)
        ]

    async def story() -> None:
        async with reached(worker.kubeconfig) as client:
            whole = await names(client, limit=3)
            assert [len(page) for page in whole] == [3, 3, 2]  # one is the namespace's own
            flat = [name for page in whole for name in page]
            assert flat == ["kube-root-ca.crt", *(f"n{number}" for number in range(7))]
            assert await names(client, label_selector="odd in (1)") == [["n1", "n3", "n5"]]
            assert await names(client, field_selector="metadata.name=n4") == [["n4"]]

            # The history is forgotten between two pages: the list begins again and is whole.
            pages = client.list_pages(CONFIG_MAPS, Note, namespace=namespace, limit=3)
            assert (await anext(pages)).first
            await client.delete(CONFIG_MAPS.path(namespace=namespace, name="n0"))
            await asyncio.to_thread(worker.forget_history)
            rest = [page async for page in pages]
            assert [(page.first, page.last) for page in rest] == [
                (True, False),
                (False, False),
                (False, True),
            ]
            listed = [found.metadata.name for page in rest for found in page.items]
            assert listed == ["kube-root-ca.crt", *(f"n{number}" for number in range(1, 7))]

    asyncio.run(story())


def test_a_watch_tells_what_happened_since_and_ends_in_time(planes: Planes, namespace: str) -> None:
    api = planes.hub.api
    path = CONFIG_MAPS.path(namespace=namespace)
    since = api.get(path)["metadata"]["resourceVersion"]
    api.create(path, note("a", x="1"))
    api.merge(f"{path}/a", {"data": {"x": "2"}})
    api.delete(f"{path}/a")

    async def story() -> None:
        async with reached(planes.hub.kubeconfig) as client:
            began_s = time.monotonic()
            told = [
                event
                async for event in client.watch(
                    CONFIG_MAPS, Note, namespace=namespace, resource_version=since, timeout_s=4
                )
            ]
            assert 3 < time.monotonic() - began_s < 60  # its own end; a watch lasts much longer
            changes = [(event.type, event.object) for event in told if event.type != "BOOKMARK"]
            assert [(kind, found.metadata.name, found.data) for kind, found in changes] == [
                ("ADDED", "a", {"x": "1"}),
                ("MODIFIED", "a", {"x": "2"}),
                ("DELETED", "a", {"x": "2"}),
            ]

    asyncio.run(story())


def test_a_watch_from_a_forgotten_version_is_gone(planes: Planes, namespace: str) -> None:
    worker = planes.workers[0]
    path = CONFIG_MAPS.path(namespace=namespace)
    since = worker.api.get(path)["metadata"]["resourceVersion"]
    worker.api.create(path, note("a"))
    worker.forget_history()

    async def story() -> None:
        async with reached(worker.kubeconfig) as client:
            with pytest.raises(Gone, match="too old resource version"):
                async for _ in client.watch(
                    CONFIG_MAPS, Note, namespace=namespace, resource_version=since
                ):
                    pass

    asyncio.run(story())


def test_in_a_storm_of_writers_every_write_counts_once(planes: Planes, namespace: str) -> None:
    path = CONFIG_MAPS.path(namespace=namespace, name="counter")
    planes.hub.api.create(CONFIG_MAPS.path(namespace=namespace), note("counter", n="0"))

    async def story() -> None:
        async with reached(planes.hub.kubeconfig) as client:

            async def add_one() -> None:
                for _ in range(5):
                    await on_conflict(
                        lambda: client.get(path, Note),
                        lambda now: {"data": {"n": str(int(now.data["n"]) + 1)}},
                        lambda now, body: client.merge_patch(
                            path, body, Note, resource_version=now.metadata.resource_version
                        ),
                        attempts=50,
                    )

            await asyncio.gather(*(add_one() for _ in range(8)))
            assert (await client.get(path, Note)).data == {"n": "40"}
            assert client.calls["patch", "configmaps"] > 40  # some did come second

    asyncio.run(story())


def test_applying_our_own_item_of_a_list_leaves_the_items_of_others(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    made = api.create(
        KUEUE_WORKLOADS.path(namespace=namespace),
        {
            "apiVersion": KUEUE_WORKLOADS.group_version,
            "kind": KUEUE_WORKLOADS.kind,
            "metadata": {"name": "w"},
            "spec": {"podSets": [{"name": "main", "count": 1, "template": template}]},
        },
    )
    path = KUEUE_WORKLOADS.path(namespace=namespace, name="w", subresource="status")
    theirs = {"name": "multikueue", "state": "Pending", "message": "", "lastTransitionTime": NOW}
    api.merge(path, {"status": {"admissionChecks": [theirs]}})

    def ours(state: str) -> dict[str, object]:
        item = {"name": "berth", "state": state, "message": "ours", "lastTransitionTime": NOW}
        return {
            "apiVersion": KUEUE_WORKLOADS.group_version,
            "kind": KUEUE_WORKLOADS.kind,
            "metadata": {"name": "w", "uid": made["metadata"]["uid"]},
            "status": {"admissionChecks": [item]},
        }

    async def story() -> None:
        async with reached(planes.hub.kubeconfig) as client:
            for state in ("Pending", "Ready"):
                found = await client.apply(path, ours(state), Workload, field_manager="berth")
                assert found.status.admission_checks == (
                    Check(name="multikueue", state="Pending"),
                    Check(name="berth", state=state, message="ours"),
                )
            # Another manager may not take it from us, unless it insists.
            with pytest.raises(Conflict, match=r"conflict with .berth."):
                await client.apply(path, ours("Rejected"), Workload, field_manager="other")
            await client.apply(path, ours("Retry"), Workload, field_manager="other", force=True)
            assert client.calls["patch", "workloads/status"] == 4

    asyncio.run(story())


def test_a_refusal_says_what_is_wrong_with_the_object(planes: Planes, namespace: str) -> None:
    async def story() -> None:
        async with reached(planes.hub.kubeconfig) as client:
            with pytest.raises(Invalid) as caught:
                await client.create(CONFIG_MAPS.path(namespace=namespace), note("Bad_Name"), Note)
            assert caught.value.status == 422
            assert "metadata.name" in caught.value.message
            with pytest.raises(ApiError) as long:
                await client.create(CONFIG_MAPS.path(namespace=namespace), note("n" * 254), Note)
            assert (long.value.status, type(long.value)) == (422, Invalid)
            body = {"metadata": {"name": "j"}, "spec": {"completions": -1}}
            with pytest.raises(Invalid):
                await client.create(JOBS.path(namespace=namespace), body, Object)

    asyncio.run(story())


# ---------------------------------------------------------------- who may what


def test_a_service_account_may_what_its_role_says_and_asks_beforehand(
    planes: Planes, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = planes.hub.api
    group = "rbac.authorization.k8s.io"
    rbac = f"/apis/{group}/v1/namespaces/{namespace}"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
    api.create(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": [rule]})
    account = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    reference = {"apiGroup": group, "kind": "Role", "name": "reader"}
    binding = {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": [account]}
    api.create(f"{rbac}/rolebindings", binding)

    # As the kubelet mounts it into a pod.
    (tmp_path / "token").write_text(planes.hub.token_for(namespace, "default") + "\n")
    (tmp_path / "ca.crt").write_bytes(planes.hub.ca_pem)
    (tmp_path / "namespace").write_text(namespace)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(planes.hub.port))

    async def story() -> None:
        access = await in_cluster(tmp_path)
        assert access.namespace == namespace
        async with await Client.open(access, user_agent="t", log=Lines()) as client:
            path = CONFIG_MAPS.path(namespace=namespace, name="kube-root-ca.crt")
            assert (await client.get(path, Note)).data["ca.crt"]
            with pytest.raises(Forbidden) as caught:
                await client.delete(path)
            who = f"system:serviceaccount:{namespace}:default"
            assert f'User "{who}" cannot delete resource "configmaps"' in caught.value.message
            asked = [
                await client.can("list", CONFIG_MAPS, namespace),
                await client.can("delete", CONFIG_MAPS, namespace),
                await client.can("list", CONFIG_MAPS),
                await client.can("list", NODES),
                await client.can("update", PODS, namespace, subresource="status"),
            ]
            assert asked == [True, False, False, False, False]

            # The token is replaced by rubbish and then by a good one, as a renewal would.
            (tmp_path / "token").write_text("rubbish")
        async with await Client.open(
            await in_cluster(tmp_path), user_agent="t", log=Lines()
        ) as client:
            with pytest.raises(Unauthorized) as unknown:
                await client.get(path, Note)
            assert "rubbish" not in str(unknown.value)
            fresh = await asyncio.to_thread(planes.hub.token_for, namespace, "default")
            (tmp_path / "token").write_text(fresh)
            assert (await client.get(path, Note)).data["ca.crt"]  # refused, read anew, repeated

    asyncio.run(story())


def test_a_plugin_hands_out_tokens_of_an_account_and_is_asked_again_when_one_is_refused(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho x >>{tmp_path}/runs\ncat {tmp_path}/answer\n")
    plugin.chmod(0o755)

    def answers(token: str) -> None:
        (tmp_path / "answer").write_text(credential({"token": token}))

    cluster = {
        "server": planes.hub.url,
        "certificate-authority-data": encoded(planes.hub.ca_pem),
    }
    user = {"exec": {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never"}}
    (tmp_path / "config").write_bytes(text(kubeconfig(cluster, user)))

    async def story() -> None:
        async with reached(tmp_path / "config") as client:
            path = CONFIG_MAPS.path(namespace=namespace, name="kube-root-ca.crt")
            answers("rubbish")
            with pytest.raises(Unauthorized):
                await client.get(path, Note)
            answers(await asyncio.to_thread(planes.hub.token_for, namespace, "default"))
            with pytest.raises(Forbidden) as caught:  # known, and without a role
                await client.get(path, Note)
            assert f"system:serviceaccount:{namespace}:default" in caught.value.message
        assert len((tmp_path / "runs").read_text().splitlines()) == 3

    asyncio.run(story())


def test_a_secrets_kubeconfig_works_and_one_with_another_authority_is_not_trusted(
    planes: Planes, namespace: str
) -> None:
    async def story() -> None:
        hub, worker = planes.hub, planes.workers[0]
        access = from_kubeconfig_bytes(hub.kubeconfig.read_bytes())
        async with await Client.open(access, user_agent="t", log=Lines()) as client:
            assert await client.can("*", PODS)
        wrong = hub.kubeconfig.read_text().replace(hub.url, worker.url)
        access = from_kubeconfig_bytes(wrong.encode())
        async with await Client.open(access, user_agent="t", log=Lines()) as client:
            with pytest.raises(Unreachable, match="its certificate is not trusted"):
                await client.version()

    asyncio.run(story())


def test_what_is_served_is_known_and_what_is_not_is_not_an_error(planes: Planes) -> None:
    async def story() -> None:
        async with reached(planes.hub.kubeconfig) as client:
            assert {"workloads", "clusterqueues"} <= await client.served("kueue.x-k8s.io/v1beta2")
            assert {"pods", "nodes", "events"} <= await client.served("v1")
            assert await client.served("no.such.group/v1") == frozenset()
            assert await client.served("batch/v9") == frozenset()
            nowhere = Resource("no.such.group", "v1", "things", "Thing")
            with pytest.raises(NotFound):
                await anext(client.list_pages(nowhere, Object))

    asyncio.run(story())


# ---------------------------------------------------------------- slow, gone and back


def test_a_slow_api_server_is_waited_for_and_no_longer_than_allowed(planes: Planes) -> None:
    door = planes.hub.proxy(delay_s=2)

    async def story() -> None:
        slow = planes.hub.kubeconfig_for("admin", ["system:masters"], via=door)
        async with reached(slow) as patient:
            assert (await patient.version()).startswith("v1.")
        async with reached(slow, timeout_s=1) as hasty:
            with pytest.raises(TimedOut, match="no answer within 1 s"):
                await hasty.version()

    asyncio.run(story())


def test_a_client_survives_the_crash_of_its_api_server(planes: Planes) -> None:
    worker: Plane = planes.workers[0]

    async def story() -> None:
        async with reached(worker.kubeconfig) as client:
            await client.version()
            worker.crash_api_server()
            with pytest.raises(Unreachable):
                await client.version()
            await asyncio.to_thread(worker.start_api_server)
            assert (await client.version()).startswith("v1.")
            worker.pause_api_server()
            with pytest.raises(TimedOut):
                await client.get("/version", Object, timeout_s=0.5)
            worker.resume_api_server()
            assert (await client.version()).startswith("v1.")

    asyncio.run(story())


# ---------------------------------------------------------------- events on objects


def test_events_stand_where_kubectl_describe_looks_and_repeat_as_a_count(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    made = api.create(CONFIG_MAPS.path(namespace=namespace), note("subject"))
    queue = api.create(CLUSTER_QUEUES.path(), cluster_queue(namespace, {"f": {"cpu": 1}}))

    def told(uid: str) -> list[dict[str, Any]]:
        # kubectl describe asks for the object's uid, name and namespace.
        return api.items(EVENTS.path(), fieldSelector=f"involvedObject.uid={uid}")

    async def story() -> None:
        async with reached(planes.hub.kubeconfig) as client:
            recorder = Recorder(
                client, controller="berthmaster/test", instance="me", log=Lines(), now=time.time
            )
            stopping = asyncio.Event()
            task = asyncio.create_task(recorder.run(stopping))
            subject = Subject(
                CONFIG_MAPS,
                (
                    await client.get(CONFIG_MAPS.path(namespace=namespace, name="subject"), Object)
                ).metadata,
            )
            recorder.tell(subject, "Normal", "Nominated", "worker-1: 8 GPUs free")
            while not recorder.written:
                await asyncio.sleep(0.01)
            recorder.tell(subject, "Normal", "Nominated", "worker-2: 9 GPUs free")
            recorder.tell(subject, "Warning", "NotNominated", "é" * 2000)
            whole = Subject(
                CLUSTER_QUEUES,
                (await client.get(CLUSTER_QUEUES.path(name=namespace), Object)).metadata,
            )
            recorder.tell(whole, "Normal", "Observed", "a cluster-wide object")
            stopping.set()
            await task
            assert (recorder.written, recorder.dropped) == (4, 0)

    asyncio.run(story())
    found = {event["reason"]: event for event in told(made["metadata"]["uid"])}
    assert set(found) == {"Nominated", "NotNominated"}
    nominated = found["Nominated"]
    assert (nominated["type"], nominated["count"]) == ("Normal", 2)
    assert nominated["message"] == "worker-2: 9 GPUs free"
    assert found["NotNominated"]["message"].endswith("é…")
    assert len(found["NotNominated"]["message"].encode()) <= 1024
    (event,) = told(queue["metadata"]["uid"])
    assert (event["metadata"]["namespace"], event["reason"]) == ("default", "Observed")
    assert event["source"] == {"component": "berthmaster/test"}
    api.delete(CLUSTER_QUEUES.path(name=namespace))
