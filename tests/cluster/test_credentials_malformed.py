"""Bootstrap Secrets that are refused, profiles that are absurd, and names at their limits."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from berthmaster.hub.credentials.core import names
from berthmaster.lab.controlplane.api import kubeconfig
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.credentialing import MULTIKUEUE_CLUSTERS, Rig, works

Spoil = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(planes, namespace, tmp_path)
    yield made
    made.clean()


def spoiled(worker: Plane, token: str, spoil: Spoil) -> str:
    """A kubeconfig that would work, but for one thing."""
    config = json.loads(kubeconfig(server=worker.url, ca_pem=worker.ca_pem, token=token))
    spoil(config["clusters"][0]["cluster"], config["users"][0]["user"])
    return json.dumps(config)


def _replace(where: dict[str, Any], old: str, **new: Any) -> None:
    where.pop(old)
    where.update(new)


CA: Final = "certificate-authority-data"
SPOILS: Final[dict[str, tuple[Spoil, str]]] = {
    "exec": (
        lambda _, user: _replace(user, "token", exec={"apiVersion": "v1", "command": "id"}),
        "exec: ",
    ),
    "token-file": (lambda _, user: _replace(user, "token", tokenFile="/etc/passwd"), "tokenFile: "),
    "basic": (
        lambda _, user: _replace(user, "token", username="root", password="hunter2"),
        "username: ",
    ),
    "insecure": (
        lambda cluster, _: cluster.update({"insecure-skip-tls-verify": True}),
        "insecure-skip-tls-verify: ",
    ),
    "ca-path": (
        lambda cluster, _: _replace(cluster, CA, **{"certificate-authority": "/etc/ca.crt"}),
        "certificate-authority: ",
    ),
    "bad-ca": (
        lambda cluster, _: cluster.update({CA: base64.b64encode(b"no PEM").decode()}),
        "certificate-authority: ",
    ),
    "no-ca": (lambda cluster, _: _replace(cluster, CA), "certificate-authority-data: "),
    "plain": (
        lambda cluster, _: cluster.update({"server": "http://worker.example:8080"}),
        "server: ",
    ),
}


def test_a_bootstrap_secret_that_is_refused_says_which_field_and_a_right_one_serves(
    rig: Rig,
) -> None:
    worker = rig.planes.workers[0]
    clusters = {rig.cluster(case): case for case in SPOILS}
    token = rig.way_in(worker, next(iter(clusters)))
    for cluster, case in clusters.items():
        rig.profile(cluster)
        rig.write_bootstrap(cluster, spoiled(worker, token, SPOILS[case][0]))
    rig.start()
    for cluster, case in clusters.items():
        rig.until(lambda: "BootstrapRefused" in rig.events(cluster), f"{case} is told")  # noqa: B023
        note = rig.events(cluster)["BootstrapRefused"]
        where = f"Secret {rig.namespace}/boot-{cluster}: "
        assert note.startswith(where + SPOILS[case][1]), case
        assert rig.secret(cluster) is None
        assert rig.registered(cluster) is None
    assert token not in rig.words()
    assert "hunter2" not in rig.words()
    assert rig.left(worker) == []  # nothing was tried there

    mended = next(iter(clusters))
    rig.bootstrap(mended, worker)
    rig.until(lambda: rig.held(mended), "what is mended is served without a restart")


def test_absurd_profiles_hurt_nobody(rig: Rig) -> None:
    neighbour, worker = rig.planes.workers[:2]
    east, absurd = rig.cluster("east"), rig.cluster("absurd")
    long = [{"name": f"p{n}", "value": "x" * 1024} for n in range(300)]
    providers = [
        {"name": f"p{n}", "cluster": {"server": "gopher://[::" + "x" * 2000, CA: "%%%"}}
        if n % 2
        else {"name": f"p{n}"}
        for n in range(60)
    ]
    for one in providers:
        if "cluster" in one:
            one["cluster"][CA] = base64.b64encode(b"\xff" * 100).decode()  # type: ignore[index]
    rig.profile(absurd, properties=long, accessProviders=providers)
    rig.profile(east)
    rig.bootstrap(east, neighbour)
    rig.bootstrap(absurd, worker)
    rig.start()
    rig.until(lambda: rig.held(east), "its neighbour is served")
    rig.until(lambda: rig.held(absurd), "and so is it: by the person's Secret alone")
    assert works(worker, rig.token(absurd))
    found = rig.secret(absurd)
    assert found is not None
    text = json.loads(base64.b64decode(found["data"]["kubeconfig"]))
    assert text["clusters"][0]["cluster"]["server"] == worker.url


def test_names_at_their_limits_are_cut_and_stay_apart(rig: Rig) -> None:
    workers = rig.planes.workers[:2]
    # As long as a name may be, and alike up to the last character.
    stem = ".".join(["x" * 60] * 4)[: 252 - len(rig.namespace) - 1]
    stem = f"{stem}.{rig.namespace}"
    one, other = (rig.named(f"{stem}{last}") for last in "ab")
    assert len(one) == 253
    for cluster, worker in zip((one, other), workers, strict=True):
        rig.profile(cluster)
        rig.bootstrap(cluster, worker)
    rig.start()
    for cluster, worker in zip((one, other), workers, strict=True):
        rig.until(lambda: rig.held(cluster), "access is there")  # noqa: B023
        found = rig.secret(cluster)
        assert found is not None
        assert len(found["metadata"]["name"]) <= names.MAX_NAME
        registered = rig.hub.api.get(f"{MULTIKUEUE_CLUSTERS}/{cluster}")
        location = registered["spec"]["clusterSource"]["kubeConfig"]["location"]
        assert location == found["metadata"]["name"]
        assert works(worker, rig.token(cluster))
    assert rig.token(one) != rig.token(other)

    rig.forget(one)
    rig.until(lambda: rig.secret(one) is None, "one goes")
    assert works(workers[1], rig.token(other))
    rig.forget(other)
    rig.until(lambda: rig.secret(other) is None, "the other goes")
    rig.until(lambda: not any(rig.left(worker) for worker in workers), "nothing is left")


def test_two_bootstrap_secrets_for_one_cluster_are_both_refused(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.profile(east)
    rig.bootstrap(east, worker)
    twin = {
        "metadata": {
            "name": "twin",
            "labels": {names.BOOTSTRAP: "worker"},
            "annotations": {names.CLUSTER: east},
        }
    }
    secrets = f"/api/v1/namespaces/{rig.namespace}/secrets"
    rig.hub.api.create(secrets, twin)
    rig.start()
    rig.until(lambda: "BootstrapRefused" in rig.events(east), "people are told")
    assert "1 more for the same cluster" in rig.events(east)["BootstrapRefused"]
    assert rig.secret(east) is None
    rig.hub.api.delete(f"{secrets}/twin")
    rig.until(lambda: rig.held(east), "one is enough")
