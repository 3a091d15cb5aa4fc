"""Coming from Open Cluster Management's kueue-addon, as docs/integrations/ocm-kueue-addon.md says,
while jobs run: none is lost, none runs twice, and what its check left waiting is freed."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import API, SYSTEM, USER, Options
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.admitting import (
    GPUS,
    OCM_CONTROLLER,
    Hall,
    by_placement,
    hall,
    our_check,
)
from tests.cluster.multikueue_workers import Census
from tests.cluster.multikueueing import running_in

ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
WORKERS = (ONE, TWO, THREE)


@contextmanager
def as_the_addon_leaves_it(desk: Hall) -> Iterator[tuple[str, str]]:
    """(its check, its configuration, which is named like the Placement). The order is chance. Its
    Secrets, which have names that others may want, go at the end."""
    k, api = desk.k, desk.api
    for plane in k.planes.workers:
        secret = f"multikueue-{plane.name}"
        kubeconfig = base64.b64encode(plane.kubeconfig_for(USER).read_bytes()).decode()
        meta = {"name": secret, "namespace": SYSTEM}
        data = {"kubeconfig": kubeconfig}
        api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
        api.apply(builders.cluster(plane.name, secret))
    placement = desk.ocm.place("t4", [ONE, TWO])
    api.apply(builders.config(placement, [TWO, ONE]))
    check = f"{k.namespace}-ocm"
    made = builders.own_check(check, OCM_CONTROLLER)
    made["spec"]["parameters"] = by_placement(placement)
    api.apply(made)
    k.activate_check(check)
    desk.lead(k.check, placement)
    desk.use(check, k.check)
    try:
        yield check, placement
    finally:
        for name in WORKERS:
            api.delete(f"/api/v1/namespaces/{SYSTEM}/secrets/multikueue-{name}")


def test_the_addon_is_replaced_while_jobs_run(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    options = Options()  # AllAtOnce, as most who come from there have it
    with (
        hall(planes, namespace, tmp_path, options=options, clusters=[ONE, TWO]) as desk,
        as_the_addon_leaves_it(desk) as (theirs, their_config),
    ):
        k, api = desk.k, desk.api
        with Census(k) as census:
            k.submit("running", requests=GPUS)
            k.submit("stuck", requests=GPUS, run_s="2")
            desk.until(lambda: k.has("running", "QuotaReserved"), "quota")
            k.set_check("running", theirs, "Ready", "by hand, as its users do")
            desk.until(lambda: k.cluster_of("running"), "it runs")
            where = k.cluster_of("running")
            desk.until(lambda: k.state_of("stuck", theirs) == "Pending", "nobody sets it")

            # 1. Our check over the same Placement: a configuration of its own, nothing is touched.
            desk.desk.start()
            api.apply(our_check(desk.gate, by_placement(their_config)))
            desk.listed(f"{ONE} {TWO}")
            assert desk.desk.listed(their_config) == f"{TWO} {ONE}"

            # 2. MultiKueue's check sends by it; 3. the queue asks ours instead of theirs.
            desk.lead(k.check, desk.gate)
            desk.use(desk.gate, k.check)

            # 4. Their check and their configuration go.
            api.delete(f"{API}/admissionchecks/{theirs}")
            api.delete(f"{API}/multikueueconfigs/{their_config}")

            desk.until(lambda: k.has("stuck", "Finished"), "what waited for ever has run")
            assert running_in(k, "running", WORKERS) == [where]
            assert k.cluster_of("running") == where
            desk.end("running", where)
            desk.until(lambda: k.has("running", "Finished"), "its end")
        assert census.where("running") == [where]
        assert len(census.where("stuck")) == 1
        desk.until(lambda: api.find(f"{API}/admissionchecks/{theirs}") is None, "theirs is gone")
        assert desk.desk.active(desk.gate)[1] == "Active"
