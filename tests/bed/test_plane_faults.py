"""What tests can do to a control plane, each with the way back."""

import contextlib
import threading
import time
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.api import Api, ApiError, Unreachable
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import DEFINITIONS, Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.controlplane.proxy import Proxy
from tests.controlplane.jobs import gpu_job, jobs_path, pods_path, wait_condition
from tests.support.patience import NEVER_S, hang_s, wait_until

CONFIGMAPS = "/api/v1/namespaces/{}/configmaps"
GADGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.bed.test"},
    "spec": {
        "group": "bed.test",
        "scope": "Namespaced",
        "names": {"plural": "gadgets", "kind": "Gadget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


@pytest.fixture
def worker(planes: Planes) -> Plane:
    return planes.workers[0]


@pytest.fixture
def door(worker: Plane) -> Proxy:
    return worker.proxy()


def through(door: Proxy, plane: Plane, limit_s: float = 10.0) -> Api:
    """The administrator, through a door."""
    return plane.api_for("admin", ["system:masters"], via=door, limit_s=limit_s)


def took_s(api: Api, path: str = "/api/v1/namespaces/default") -> float:
    started_s = time.monotonic()
    api.get(path)
    return time.monotonic() - started_s


def test_a_crashed_api_server_comes_back_with_all_it_knew(worker: Plane, namespace: str) -> None:
    make_nodes(worker, [gpu_node("a")])
    worker.api.create(jobs_path(namespace), gpu_job("before", run_s=1))
    pid = worker.parts.api_server.pid
    worker.crash_api_server()
    with pytest.raises(Unreachable):
        worker.api.get("/api/v1/nodes")
    worker.start_api_server()
    assert worker.parts.api_server.pid != pid

    # Nothing is forgotten, and controllers, scheduler and kwok go on where they were.
    wait_condition(worker, jobs_path(namespace, "before"), "Complete")
    worker.api.create(jobs_path(namespace), gpu_job("after"))
    wait_condition(worker, jobs_path(namespace, "after"), "Complete")


def test_a_kind_that_a_test_has_deleted_is_not_waited_for(worker: Plane) -> None:
    worker.apply([GADGETS])
    worker.api.delete(f"{DEFINITIONS}/gadgets.bed.test")
    worker.crash_api_server()
    worker.start_api_server()
    assert worker.api.find("/apis/bed.test/v1/gadgets") is None


def test_an_api_server_is_started_from_any_thread_and_outlives_it(worker: Plane) -> None:
    worker.crash_api_server()
    thread = threading.Thread(target=worker.start_api_server)
    thread.start()
    thread.join(hang_s())
    assert not thread.is_alive()
    time.sleep(0.2)  # it would be dead by now
    assert worker.ready()


def test_a_paused_api_server_answers_later(worker: Plane) -> None:
    hasty = worker.api_for("admin", ["system:masters"], limit_s=0.5)
    hasty.get("/api/v1/nodes")
    worker.pause_api_server()
    with pytest.raises(Unreachable, match="timed out"):
        hasty.get("/api/v1/nodes")
    worker.resume_api_server()
    assert hasty.items("/api/v1/nodes") == []


def test_watches_and_lists_from_before_history_was_forgotten_are_told_410(
    worker: Plane, namespace: str
) -> None:
    path = CONFIGMAPS.format(namespace)
    for name in ("a", "b", "c"):
        worker.api.create(path, {"metadata": {"name": name}})
    page = worker.api.get(path, limit=1)["metadata"]
    old = page["resourceVersion"]

    # While it is remembered, a watch from then tells what came since.
    worker.api.merge(f"{path}/a", {"data": {"x": "1"}})
    event = next(worker.api.watch(path, resourceVersion=old))
    assert (event["type"], event["object"]["data"]) == ("MODIFIED", {"x": "1"})

    worker.forget_history()
    with pytest.raises(ApiError) as watching:
        next(worker.api.watch(path, resourceVersion=old))
    assert (watching.value.status, watching.value.reason) == (410, "Expired")
    with pytest.raises(ApiError) as listing:
        worker.api.get(path, limit=1, **{"continue": page["continue"]})
    assert (listing.value.status, listing.value.reason) == (410, "Expired")

    # Whoever lists anew goes on from there.
    now = worker.api.get(path)["metadata"]["resourceVersion"]
    worker.api.merge(f"{path}/a", {"data": {"x": "2"}})
    event = next(worker.api.watch(path, resourceVersion=now))
    assert event["object"]["data"] == {"x": "2"}


def test_a_store_that_comes_back_holds_what_it_held(planes: Planes, namespace: str) -> None:
    path = CONFIGMAPS.format(namespace)
    planes.hub.api.create(path, {"metadata": {"name": "kept"}})
    planes.etcd.process.kill()
    assert not planes.hub.ready()
    planes.etcd.start()
    for plane in planes:
        wait_until(plane.ready, f"{plane.name} ready")
    assert planes.hub.api.get(f"{path}/kept")["metadata"]["name"] == "kept"


def test_whatever_was_broken_is_mended(planes: Planes, namespace: str) -> None:
    worker = planes.workers[0]
    door = worker.proxy()
    for part in worker.parts.all():
        part.kill()
    planes.workers[1].pause_api_server()
    planes.mend()
    make_nodes(worker, [gpu_node("a")])
    worker.api.create(jobs_path(namespace), gpu_job("again"))
    wait_condition(worker, jobs_path(namespace, "again"), "Complete")
    assert planes.workers[1].api.items(pods_path(namespace)) == []
    with pytest.raises(Unreachable):
        through(door, worker).get("/api/v1/nodes")


# ---------------------------------------------------------------- through a door


def test_every_call_through_a_slow_door_takes_that_much_longer(worker: Plane, door: Proxy) -> None:
    api = through(door, worker)
    door.delay_s = 0.6
    first_s, second_s = took_s(api), took_s(api)
    assert door.connections == 1  # the second call was on the same connection, and as slow
    assert first_s >= 0.6
    assert second_s >= 0.6
    door.delay_s = 0
    wait_until(lambda: took_s(api) < 0.5, "no delay any more")


def test_what_a_watch_tells_comes_through_a_slow_door_at_once(
    worker: Plane, door: Proxy, namespace: str
) -> None:
    path = CONFIGMAPS.format(namespace)
    watcher = through(door, worker)
    since = worker.api.get(path)["metadata"]["resourceVersion"]
    heard = {name: threading.Event() for name in ("first", "news")}

    def listen() -> None:
        events = watcher.watch(path, NEVER_S, resourceVersion=since)
        for name, event in heard.items():
            assert next(events)["object"]["metadata"]["name"] == name
            event.set()

    thread = threading.Thread(target=listen)
    thread.start()
    worker.api.create(path, {"metadata": {"name": "first"}})
    assert heard["first"].wait(hang_s())  # the watch has begun
    door.delay_s = NEVER_S
    worker.api.create(path, {"metadata": {"name": "news"}})
    assert heard["news"].wait(hang_s())
    thread.join(hang_s())


def test_a_cut_ends_a_watch_and_lets_the_next_one_in(
    worker: Plane, door: Proxy, namespace: str
) -> None:
    path = CONFIGMAPS.format(namespace)
    worker.api.create(path, {"metadata": {"name": "there"}})
    api = through(door, worker)
    events = api.watch(path, NEVER_S)
    assert next(events)["object"]["metadata"]["name"] in ("there", "kube-root-ca.crt")
    door.cut()
    with contextlib.suppress(Unreachable):
        list(events)
    assert api.get(f"{path}/there")["metadata"]["name"] == "there"


def test_a_closed_door_refuses_until_it_is_open_again(worker: Plane, door: Proxy) -> None:
    api = through(door, worker)
    api.get("/api/v1/nodes")
    door.close()
    with pytest.raises(Unreachable, match="refused"):
        api.get("/api/v1/nodes")
    assert worker.api.items("/api/v1/nodes") == []  # the API server itself is well
    door.open()
    assert api.items("/api/v1/nodes") == []


def test_a_deaf_door_takes_connections_and_answers_nothing(worker: Plane, door: Proxy) -> None:
    api = through(door, worker, limit_s=0.5)
    door.go_deaf()
    with pytest.raises(Unreachable, match="timed out"):
        api.get("/api/v1/nodes")
    door.open()
    assert api.items("/api/v1/nodes") == []


@pytest.fixture
def kubeconfig(worker: Plane, door: Proxy) -> Path:
    return worker.kubeconfig_for("anna", ["ops"], via=door)


def test_a_kubeconfig_through_a_door_names_the_door(
    worker: Plane, door: Proxy, kubeconfig: Path
) -> None:
    text = kubeconfig.read_text()
    assert door.url in text
    assert worker.url not in text
    assert kubeconfig.stat().st_mode & 0o077 == 0  # it holds a key
