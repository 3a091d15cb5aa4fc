"""Where pods run when the node that they were placed on is a preference: kube-scheduler decides.

kube-scheduler is the real one, and so are its own wishes: as it is installed it spreads pods over
the emptiest nodes, so a node that is followed against that is followed for the preference.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from berthmaster.lab.controlplane.nodes import GPU, gpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Running
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.cluster_protocol import Attempt, CreatePods
from berthmaster.worker.executor.core.manifest import Style, document
from tests.bus.tools import story
from tests.cluster.executing import Site, job, site
from tests.controlplane.jobs import pods_path
from tests.support.patience import wait_until


def fill(plane: Plane, namespace: str, node: str, gpus: int, cpu: int = 1) -> None:
    """Somebody else's pod on a node, for ever."""
    limits = {"cpu": str(cpu), GPU: str(gpus)}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    plane.api.create(
        pods_path(namespace),
        {"metadata": {"name": f"on-{node}"}, "spec": {"nodeName": node, "containers": [container]}},
    )


async def runs_on(berlin: Site, name: str) -> tuple[PodBinding, ...]:
    """Where its pods are, as its executor tells the log."""
    running = await berlin.until(name, "Running")
    assert isinstance(running, Running)
    return running.pods


def preferred(made: dict[str, Any]) -> list[str]:
    """The nodes that a Job's pods would rather have."""
    affinity = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
    [wish] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    [chosen] = wish["preference"]["matchExpressions"]
    assert (wish["weight"], chosen["key"]) == (100, "kubernetes.io/hostname")
    return list(chosen["values"])


@story
async def test_the_node_of_the_placement_is_taken_against_kube_schedulers_own_wish_to_spread(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    wait_open(worker, make_nodes(worker, [gpu_node(f"n{number}") for number in range(1, 5)]))
    fill(worker, namespace, "n3", gpus=4, cpu=90)  # the fullest of the four by far
    async with site(worker, namespace, tmp_path) as berlin:
        attempt = await berlin.place(job(gpus=4, run_s="forever"), "n3")
        assert preferred(await berlin.job_of(attempt)) == ["n3"]
        assert await runs_on(berlin, "train") == (PodBinding(pod="main-0", node="n3"),)
        # And without a preference it goes where kube-scheduler wants it: to any other than that.
        await berlin.place(job("free", gpus=0, run_s="forever"), "no-such-node")
        [elsewhere] = await runs_on(berlin, "free")
        assert elsewhere.node in {"n1", "n2", "n4"}


@story
async def test_a_node_that_has_filled_up_meanwhile_is_passed_over_and_the_real_one_is_told(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    wait_open(worker, make_nodes(worker, [gpu_node("n1"), gpu_node("n2")]))
    async with site(worker, namespace, tmp_path) as berlin:
        fill(worker, namespace, "n1", gpus=5)  # after it was decided, as far as we know
        attempt = await berlin.place(job(gpus=4, run_s="forever"), "n1")
        assert preferred(await berlin.job_of(attempt)) == ["n1"]
        assert await runs_on(berlin, "train") == (PodBinding(pod="main-0", node="n2"),)
        # The log's own reading of the workload says so too: it is what the next decision counts.
        assert (await berlin.read("train")).pods == (PodBinding(pod="main-0", node="n2"),)
        # What does fit beside the stranger still goes where it was placed.
        await berlin.place(job("small", gpus=3, run_s="forever"), "n1")
        assert await runs_on(berlin, "small") == (PodBinding(pod="main-0", node="n1"),)


@story
async def test_of_a_gang_those_run_elsewhere_for_whom_their_nodes_have_no_room(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    wait_open(worker, make_nodes(worker, [gpu_node("n1"), gpu_node("n2"), gpu_node("n3")]))
    async with site(worker, namespace, tmp_path) as berlin:
        fill(worker, namespace, "n2", gpus=8)
        attempt = await berlin.place(job(count=3, gpus=4, run_s="forever"), "n1", "n1", "n2")
        assert preferred(await berlin.job_of(attempt)) == ["n1", "n2"]
        pods = await runs_on(berlin, "train")
        assert [pod.pod for pod in pods] == ["main-0", "main-1", "main-2"]
        assert sorted(pod.node for pod in pods) == ["n1", "n1", "n3"]


NODES = 200  # a hundred of them are looked at, the fewest that kube-scheduler allows
TRIES = 12
OURS = "berthmaster"


@pytest.fixture
def two_profiles(planes: Planes) -> Iterator[Plane]:
    """A worker whose scheduler looks at a few nodes of many, as it does in large clusters, and at
    all of them for pods that name the second profile."""
    worker = planes.workers[0]
    every = {  # as docs/operators/kube-scheduler.md recommends it
        "schedulerName": OURS,
        "percentageOfNodesToScore": 100,
        "plugins": {"multiPoint": {"enabled": [{"name": "NodeAffinity", "weight": 10}]}},
    }
    worker.configure_scheduler(
        {
            "percentageOfNodesToScore": 5,
            "profiles": [{"schedulerName": "default-scheduler"}, every],
        }
    )
    yield worker
    worker.configure_scheduler(None)


def followed(plane: Plane, namespace: str, style: Style, wanted: Sequence[str]) -> int:
    """Sends a pod of the executor's own making for each of the nodes; how many went there."""
    names = [f"by-{style.scheduler or 'default'}-{number}" for number in range(len(wanted))]
    for name, node in zip(names, wanted, strict=True):
        placed = (PodBinding(pod="main-0", node=node),)
        order = CreatePods(Attempt("acme", name, 1), "berlin", placed, job(name), stop_after_s=None)
        template = document(order, None, Offers(), style)["spec"]["template"]
        template["metadata"]["name"] = name
        plane.api.create(pods_path(namespace), template)

    def bound() -> list[str] | None:
        pods = plane.api.items(pods_path(namespace))
        where = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}
        nodes = [where.get(name) for name in names]
        return [str(node) for node in nodes] if all(nodes) else None

    nodes = wait_until(bound, "all pods have a node", poll_s=0.2)
    return sum(node == wish for node, wish in zip(nodes, wanted, strict=True))


def test_in_a_large_cluster_preferences_are_kept_by_a_profile_that_scores_every_node(
    two_profiles: Plane, namespace: str
) -> None:
    names = make_nodes(two_profiles, [gpu_node(f"n{number:03}") for number in range(NODES)])
    wait_open(two_profiles, names)
    wanted = [f"n{number * (NODES // TRIES):03}" for number in range(TRIES)]
    # A node that was not looked at cannot be preferred, whatever the preference weighs.
    assert followed(two_profiles, namespace, Style(), wanted) < TRIES
    assert followed(two_profiles, namespace, Style(scheduler=OURS), wanted) == TRIES
