"""A job whose number of pods changes, from `berth submit` to the quota of a worker's own Kueue: all
services of both sides as their pods run them, with the rights of the chart alone."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.kueue.setup import API, Kueue
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.deploying import ONE, bind_executor, deployed, own_mounts, serving

GPUS: Final = 6  # what the worker's queue grants; its node has more


def test_it_starts_with_what_there_is_grows_when_room_comes_and_shrinks_for_another(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes[ONE]
    make_nodes(worker, [gpu_node("a", gpus=GPUS + 2)])
    quota = {"default": {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": str(GPUS)}}
    with ExitStack() as owned:
        owned.enter_context(deployed(planes.hub, "hub"))
        owned.enter_context(deployed(worker, "worker"))
        bind_executor(worker, namespace)
        quotas = {ONE: quota}
        k = owned.enter_context(Kueue(planes, namespace, clusters=[ONE], worker_quotas=quotas))
        more = {"BERTH_RESOLVER_GROW_AFTER_S": "3"}
        both = serving(owned, planes, namespace, tmp_path, own_mounts(), mode="observe", **more)
        hub, agent, berth, _ = both
        berth("queue", "set", k.queue, "--via", "worker", "--place", namespace)

        def submit(name: str, *sizes: str) -> None:
            asks = ("--queue", k.queue, "--gpus", "1", "--image", "busybox")
            forever = ("--env", "BERTH_TEST_RUN_S=forever")
            berth("submit", "--id", name, *asks, *forever, *sizes, command=("--", "train"))

        def pods() -> list[Any]:
            found = worker.api.items(f"/api/v1/namespaces/{namespace}/pods")
            return [each for each in found if each["status"].get("phase") == "Running"]

        def name_of(pod: Any) -> str:
            return str(pod["metadata"]["labels"]["berthmaster.io/workload"])

        def uids(name: str) -> set[str]:
            return {each["metadata"]["uid"] for each in pods() if name_of(each) == name}

        def used() -> int:
            queue: Any = worker.api.get(f"{API}/clusterqueues/{k.cluster_queue}")
            [flavor] = queue["status"]["flavorsReservation"]
            return next(
                int(one["total"]) for one in flavor["resources"] if one["name"] == "nvidia.com/gpu"
            )

        def until(what: str, **wanted: int) -> None:
            def so() -> bool:
                return Counter(map(name_of, pods())) == wanted and used() == sum(wanted.values())

            hub.until(so, what)

        submit("rigid", "--count", "4")
        until("the first runs", rigid=4)
        submit("elastic", "--count", "4", "--min-count", "1", "--max-count", "8")
        until("it starts with what there is", rigid=4, elastic=2)
        began_with = uids("elastic")
        berth("cancel", "rigid")
        until("it grows into all quota that there is", elastic=GPUS)
        submit("urgent", "--count", "3", "--priority", "10")
        until("it shrinks for another", elastic=3, urgent=3)
        assert began_with <= uids("elastic")  # they ran on through all of it
        assert "Kueue" not in berth("why", "elastic")
        assert {*agent.end().values(), *hub.end().values()} == {0}
