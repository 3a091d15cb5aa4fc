"""From a Placement to where jobs run and end, on a real hub with three workers: the done-points of
the admission check controller. Open Cluster Management's scheduler is played by the test."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, Options
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.admitting import GPUS, Hall, bind, by_placement, hall, our_check
from tests.cluster.multikueue_workers import Census, each_ends_once
from tests.cluster.multikueueing import running_in
from tests.cluster.placementing import rig as evaluator

ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
WORKERS = (ONE, TWO, THREE)
T4 = {
    "requiredClusterSelector": {
        "labelSelector": {"matchLabels": {"accelerator": "nvidia-tesla-t4"}}
    }
}
BY_GPU = {
    "mode": "Exact",
    "configurations": [
        {
            "scoreCoordinate": {
                "type": "AddOn",
                "addOn": {"resourceName": "gpus", "scoreName": "gpu"},
            },
            "weight": 1,
        }
    ],
}
QUIET_S = 3.0  # long enough for what must not happen


@pytest.fixture
def desk(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Hall]:
    with hall(planes, namespace, tmp_path) as made:
        yield made


def second_queue(k: Kueue, *checks: str) -> None:
    """Another way in, which leads through other checks to the same queues of the workers."""
    quotas = {"default": {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": "100"}}
    name = f"{k.namespace}-second"
    k.planes.hub.api.apply(builders.cluster_queue(name, quotas, checks=checks))
    for plane in k.planes:
        leads_to = name if plane.role == "hub" else k.cluster_queue
        plane.api.apply(builders.local_queue(k.namespace, "second", leads_to))


def test_placements_by_label_and_by_score_each_drive_a_queue_to_the_end(desk: Hall) -> None:
    """The clusters labelled nvidia-tesla-t4 are the second and the third; the two best of our GPU
    score are the third and the first. Among them goes the job where most is free."""
    k, ocm, api = desk.k, desk.ocm, desk.api
    by_label = ocm.place("t4", [TWO, THREE], predicates=[T4])
    by_score = ocm.place("score", [THREE, ONE], numberOfClusters=2, prioritizerPolicy=BY_GPU)
    other, sends = f"{k.namespace}-score", f"{k.namespace}-send-score"
    api.apply(our_check(desk.gate, by_placement(by_label)))
    api.apply(our_check(other, by_placement(by_score)))
    api.apply(builders.multikueue_check(sends, other))
    desk.desk.start()
    desk.start()
    desk.listed(f"{TWO} {THREE}")
    desk.until(lambda: desk.desk.listed(other) == f"{THREE} {ONE}", "the other's")
    second_queue(k, other, sends)
    desk.lead(k.check, desk.gate)
    desk.use(desk.gate, k.check)
    desk.ready()
    for name in (TWO, THREE):  # each queue of a worker is reached by both names
        desk.bus.queue(name, k, local_queues=((k.namespace, k.queue), (k.namespace, "second")))
    desk.bus.queue(ONE, k, local_queues=((k.namespace, "second"), (k.namespace, k.queue)))
    desk.until(lambda: desk.desk.active(sends)[0] == "True", "MultiKueue's other check")
    with Census(k) as census:
        names = {
            "by-label": desk.submit("by-label", run_s="3"),
            "by-score": desk.submit("by-score", run_s="3", queue="second"),
        }
        each_ends_once(desk, census, names)
    assert census.where("by-label") == [TWO]
    assert census.where("by-score") == [ONE]
    state = {one["name"]: one for one in k.status("by-label")["admissionChecks"]}
    assert state[desk.gate]["state"] == "Ready"
    assert state[desk.gate]["message"] == (
        f"Placement kueue-system/{by_label} selects {TWO}, {THREE}"
    )
    assert ("ClusterAdded", f"{TWO}, {THREE}") in desk.desk.events(desk.gate)
    assert desk.desk.stop() == 0


def test_our_own_evaluator_drives_it_when_a_score_changes_while_a_job_runs(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """The best of the T4 clusters by our score is chosen; when the other one's score is better, the
    job runs on in the first, the next one goes to the other, and in the end only that is listed."""
    with hall(planes, namespace, tmp_path) as desk, evaluator(planes, namespace, tmp_path) as ocm:
        k, api = desk.k, desk.api
        bind(api, namespace)
        for worker, short, free in ((ONE, "a", 8), (TWO, "b", 6)):
            ocm.cluster(short, scored=True, accelerator="nvidia-tesla-t4")
            name = {"berthmaster.io/cluster": ocm.named(short)}
            api.merge(f"{API}/multikueueclusters/{worker}", {"metadata": {"annotations": name}})
            desk.bus.worker(ocm.named(short), free=free)
            desk.bus.queue(ocm.named(short), k)
        ocm.score("a", 80)
        ocm.score("b", 30)
        ocm.place("best", predicates=[T4], prioritizerPolicy=BY_GPU, numberOfClusters=1)
        ocm.start(pause_s=0.1)
        desk.desk.flags = ("--placement-namespace", namespace)
        desk.desk.start()
        desk.start()
        api.apply(our_check(desk.gate, by_placement("best")))
        desk.listed(ONE)
        desk.lead(k.check, desk.gate)
        desk.use(desk.gate, k.check)
        desk.ready()
        with Census(k) as census:
            desk.submit("first")
            desk.runs("first", ONE)
            ocm.score("b", 99)
            desk.listed(f"({ONE}) {TWO}")
            desk.submit("second", run_s="1")
            desk.until(lambda: k.has("second", "Finished"), "the second one's end")
            assert running_in(k, "first", WORKERS) == [ONE]
            assert desk.desk.listed(desk.gate) == f"({ONE}) {TWO}"
            desk.end("first", ONE)
            desk.until(lambda: k.has("first", "Finished"), "the first one's end")
            desk.listed(TWO)
        assert census.where("first") == [ONE]
        assert census.where("second") == [TWO]
        desk.nothing_wrong()


def test_a_cluster_is_replaced_while_jobs_run_and_controllers_are_killed(desk: Hall) -> None:
    """1. A job runs in the first. 2. The third replaces the first: the job runs on, new ones go
    elsewhere, although most is free in the first. 3. The acting controller is killed, the other one
    takes over. 4. The job ends, and the first cluster is out. Each job ran once."""
    desk.desk.start(0)
    desk.start()
    desk.open(ONE, TWO)
    desk.ready()
    desk.desk.start(1)
    with Census(desk.k) as census:
        names = {"long": desk.submit("long")}
        desk.runs("long", ONE)
        desk.ocm.decide("t4", [TWO, THREE])
        desk.listed(f"({ONE}) {TWO} {THREE}")
        names["next"] = desk.submit("next", run_s="2")
        desk.runs("next", TWO)
        desk.desk.kill(0)
        names["after"] = desk.submit("after", run_s="2")
        desk.until(lambda: desk.k.cluster_of("after") in (TWO, THREE), "after runs")
        assert running_in(desk.k, "long", WORKERS) == [ONE]
        assert desk.desk.listed(desk.gate) == f"({ONE}) {TWO} {THREE}"
        desk.desk.kill(1)
        desk.desk.start(2)
        desk.end("long", ONE)
        each_ends_once(desk, census, names)
        desk.listed(f"{TWO} {THREE}")
        names["last"] = desk.submit("last", run_s="1")
        each_ends_once(desk, census, names)
    assert census.where("long") == [ONE]
    told = desk.desk.events(desk.gate)
    assert ("ClusterDraining", ONE) in told
    assert ("ClusterRemoved", ONE) in told
    assert desk.desk.active(desk.gate)[1] == "Active"


def test_with_kueue_s_own_dispatcher_nothing_is_lost_either(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """AllAtOnce does not know which clusters drain. Whoever was let through before is waited for;
    a Placement that selects nobody keeps what runs, and who comes then waits with a reason."""
    options = Options()  # AllAtOnce
    with hall(planes, namespace, tmp_path, options=options, clusters=[ONE, TWO]) as desk:
        desk.desk.start()
        desk.open(ONE, TWO)
        k = desk.k
        with Census(k) as census:
            k.submit("first", requests=GPUS)
            desk.until(lambda: k.cluster_of("first"), "it runs")
            where = k.cluster_of("first")
            other = TWO if where == ONE else ONE
            desk.ocm.decide("t4", [])
            desk.listed(f"({ONE}) ({TWO})")
            k.submit("early", requests=GPUS, run_s="1")
            desk.until(
                lambda: desk.desk.active(desk.gate)[:2] == ("False", "NoClustersAvailable"), "told"
            )
            time.sleep(QUIET_S)
            assert not k.cluster_of("early")
            assert running_in(k, "first", WORKERS) == [where]
            desk.ocm.decide("t4", [other])
            desk.until(lambda: k.has("early", "Finished"), "it ran when somebody was selected")
            draining = [f"({name})" if name == where else name for name in (ONE, TWO)]
            desk.listed(" ".join(draining))
            assert running_in(k, "first", WORKERS) == [where]
            desk.end("first", where)
            desk.until(lambda: k.has("first", "Finished"), "the end")
            desk.listed(other)
        assert census.where("first") == [where]
        assert len(census.where("early")) == 1


def test_every_attempt_passes_anew_also_while_the_bus_and_the_api_server_were_away(
    desk: Hall,
) -> None:
    desk.desk.start()
    desk.start()
    desk.open(ONE, TWO)
    desk.ready()
    k = desk.k
    with Census(k) as census:
        # 1. Evicted in its worker: the check is back to Pending, and passed again.
        desk.submit("train")
        desk.runs("train", ONE)
        desk.bus.worker(ONE, free=0)
        k.stop_queue(ONE, "HoldAndDrain")
        desk.until(lambda: "evicted" in " ".join(desk.story("train")), "evicted")
        name = desk.name("train")
        desk.until(
            lambda: [s.partition(" ")[0] for s in desk.bus.kinds(name)].count("placed") > 1,
            "it is placed again",
        )
        desk.until(lambda: k.state_of("train", desk.gate) == "Ready", "it passed again")
        # 2. The API server is away for a moment; 3. the bus for longer.
        k.planes.hub.crash_api_server()
        time.sleep(1.0)
        k.planes.hub.start_api_server()
        desk.submit("after-the-server", run_s="1")
        desk.until(lambda: k.has("after-the-server", "Finished"), "it ended")
        desk.bus.pause()
        k.submit("without-the-bus", requests=GPUS, run_s="1")
        desk.until(lambda: k.state_of("without-the-bus", desk.gate) == "Ready", "passed")
        desk.ocm.decide("t4", [TWO, THREE])
        desk.listed(f"({ONE}) {TWO} {THREE}")
        desk.bus.resume()
        desk.until(lambda: k.has("without-the-bus", "Finished"), "it ended")
    assert len(census.where("after-the-server")) == 1
    assert len(census.where("without-the-bus")) == 1
