"""Workers that refuse, are slow, do not answer or are replaced; clusters that nobody can reach."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.hub.credentials.core import names
from berthmaster.lab.controlplane.api import kubeconfig
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.credentialing import RBAC, Rig, calling, works


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(planes, namespace, tmp_path)
    yield made
    made.clean()


def test_a_worker_that_refuses_is_told_of_and_served_once_it_allows(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.bootstrap(east, worker)
    binding = f"{RBAC}/clusterrolebindings/{names.bootstrap(rig.hub_id, east)}"
    given = worker.api.get(binding)
    worker.api.delete(binding)
    rig.profile(east)
    rig.start()
    rig.until(lambda: "CredentialsFailed" in rig.events(east), "people are told")
    note = rig.events(east)["CredentialsFailed"]
    assert note.startswith("account and rights cannot be made in the worker: ")
    assert "forbidden" in note
    assert rig.secret(east) is None

    fields = ("apiVersion", "kind", "roleRef", "subjects")
    again = {key: given[key] for key in fields if key in given}
    meta = {"name": given["metadata"]["name"]}
    worker.api.create(f"{RBAC}/clusterrolebindings", {**again, "metadata": meta})
    rig.until(lambda: rig.held(east), "served without a restart")


def test_a_slow_worker_is_served_and_keeps_nobody_waiting(rig: Rig) -> None:
    slow, quick = rig.planes.workers[:2]
    east, west = rig.cluster("east"), rig.cluster("west")
    door = slow.proxy(delay_s=1.0)
    rig.bootstrap(east, slow, via=door)
    rig.bootstrap(west, quick)
    rig.profile(east)
    rig.profile(west)
    rig.start()
    rig.until(lambda: rig.held(west), "the quick one is served")
    assert not rig.held(east)
    rig.until(lambda: rig.held(east), "and then the slow one")


def test_a_renewal_that_fails_keeps_the_old_token_and_shouts(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    door = worker.proxy()
    rig.bootstrap(east, worker, via=door)
    rig.profile(east)
    rig.start("--renew-after-s", "5", answer_limit_s=1.0)
    rig.until(lambda: rig.held(east), "access is there")
    door.close()
    serial, token = rig.serial(east), rig.token(east)

    rig.until(lambda: "CredentialsRotationFailed" in rig.events(east), "an event")
    rig.until(lambda: rig.metric("failing_renewals") == 1, "a figure")
    rig.until(lambda: not rig.readiness()["renewals"]["ok"], "and its health say so")
    assert east in rig.readiness()["renewals"]["why"]
    assert rig.serial(east) == serial
    assert works(worker, token)  # by another way than that door
    assert rig.registered(east) is not None
    assert token not in rig.words()

    door.open()
    with calling(rig, east, worker) as caller:
        rig.until(lambda: rig.serial(east) not in ("", serial), "renewed when it is back")
        rig.until(lambda: rig.readiness()["renewals"]["ok"], "all is well")
    assert caller.failures == []


def test_a_worker_that_was_replaced_gets_new_access(rig: Rig) -> None:
    before, after = rig.planes.workers[:2]
    east = rig.cluster("east")
    rig.bootstrap(east, before)
    rig.profile(east)
    rig.start()
    rig.until(lambda: rig.held(east), "access is there")
    assert works(before, rig.token(east))

    # Same name, another cluster: other endpoint, other authority.
    text = kubeconfig(server=after.url, ca_pem=after.ca_pem, token=rig.way_in(after, east))
    rig.write_bootstrap(east, text)
    rig.until(lambda: works(after, rig.token(east)), "its token is the new cluster's")
    assert rig.held(east)
    rig.until(lambda: rig.bound(after) == [rig.serial(east)], "one token, and it is in use")


def test_a_profile_that_tells_of_a_new_endpoint_has_the_token_made_anew(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.bootstrap(east, worker)
    one = {"name": "x", "cluster": {"server": "https://one.example:6443"}}
    rig.profile(east, accessProviders=[one])
    rig.start()
    rig.until(lambda: rig.held(east), "access is there")
    serial, old = rig.serial(east), rig.token(east)

    with calling(rig, east, worker) as caller:
        two = {"name": "x", "cluster": {"server": "https://two.example:6443"}}
        rig.told(east, accessProviders=[two])
        rig.until(lambda: rig.serial(east) not in ("", serial), "made anew")
        rig.until(lambda: not works(worker, old), "the old one is revoked after a while")
    assert caller.failures == []
    # A person's credentials go only where the person's Secret says.
    assert "two.example" not in rig.words()


def test_a_worker_that_is_away_at_its_removal_is_cut_off_at_once_and_revoked_later(
    rig: Rig,
) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    door = worker.proxy()
    rig.bootstrap(east, worker, via=door)
    rig.profile(east)
    rig.start(answer_limit_s=1.0)
    rig.until(lambda: rig.held(east), "access is there")
    token = rig.token(east)

    door.close()
    rig.forget(east)
    rig.take_bootstrap(east)
    rig.until(lambda: rig.registered(east) is None, "Kueue does not use it any more")
    rig.until(lambda: rig.serial(east) == "", "and has no token")
    assert rig.secret(east) is not None  # what is still to be revoked stays noted
    assert works(worker, token)

    door.open()
    rig.until(lambda: rig.secret(east) is None and rig.left(worker) == [], "back: all revoked")
    assert not works(worker, token)
