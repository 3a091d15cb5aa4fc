"""Credentials against real API servers: what a token may do, how it is renewed and taken back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from berthmaster.hub.credentials.core import names
from berthmaster.lab.controlplane.api import Api, ApiError
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.credentialing import MULTIKUEUE_CLUSTERS, MULTIKUEUE_CONFIGS, Rig, calling, works

KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
# (method, path): what MultiKueue does in a worker; {ns} is any namespace.
NEEDED: Final = (
    ("GET", KUEUE + "/workloads"),
    ("GET", KUEUE + "/workloads?watch=1&timeoutSeconds=1"),
    ("POST", KUEUE + "/namespaces/{ns}/workloads"),
    ("GET", KUEUE + "/namespaces/{ns}/workloads/x"),
    ("PATCH", KUEUE + "/namespaces/{ns}/workloads/x"),
    ("PATCH", KUEUE + "/namespaces/{ns}/workloads/x/status"),
    ("DELETE", KUEUE + "/namespaces/{ns}/workloads/x"),
    ("GET", "/apis/batch/v1/jobs"),
    ("GET", "/apis/batch/v1/jobs?watch=1&timeoutSeconds=1"),
    ("POST", "/apis/batch/v1/namespaces/{ns}/jobs"),
    ("GET", "/apis/batch/v1/namespaces/{ns}/jobs/x"),
    ("GET", "/apis/batch/v1/namespaces/{ns}/jobs/x/status"),
    ("PATCH", "/apis/batch/v1/namespaces/{ns}/jobs/x"),
    ("DELETE", "/apis/batch/v1/namespaces/{ns}/jobs/x"),
    ("GET", "/apis/jobset.x-k8s.io/v1alpha2/jobsets"),
    ("POST", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{ns}/jobsets"),
    ("DELETE", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{ns}/jobsets/x"),
)
DENIED: Final = (
    ("GET", "/api/v1/secrets"),
    ("GET", "/api/v1/namespaces/{ns}/secrets"),
    ("POST", "/api/v1/namespaces/{ns}/secrets"),
    ("DELETE", "/api/v1/namespaces/{ns}/secrets/x"),
    ("GET", "/api/v1/namespaces/{ns}/configmaps"),
    ("GET", "/api/v1/pods"),
    ("POST", "/api/v1/namespaces/{ns}/pods"),
    ("PATCH", "/api/v1/namespaces/{ns}/pods/x"),
    ("DELETE", "/api/v1/namespaces/{ns}/pods/x"),
    ("POST", "/api/v1/namespaces/{ns}/pods/x/exec"),
    ("POST", "/api/v1/namespaces/{ns}/pods/x/eviction"),
    ("GET", "/api/v1/namespaces/{ns}/pods/x/log"),
    ("GET", "/api/v1/nodes"),
    ("PATCH", "/api/v1/nodes/x"),
    ("POST", "/api/v1/namespaces"),
    ("GET", "/api/v1/namespaces"),
    ("DELETE", "/api/v1/namespaces/{ns}"),
    ("POST", "/api/v1/namespaces/{ns}/serviceaccounts"),
    ("POST", "/api/v1/namespaces/{ns}/serviceaccounts/default/token"),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("PUT", "/apis/batch/v1/namespaces/{ns}/jobs/x/status"),
    ("PATCH", "/apis/batch/v1/namespaces/{ns}/jobs/x/status"),
    ("DELETE", "/apis/batch/v1/namespaces/{ns}/jobs"),
    ("POST", "/apis/batch/v1/namespaces/{ns}/cronjobs"),
    ("GET", "/apis/apps/v1/deployments"),
    ("POST", "/apis/apps/v1/namespaces/{ns}/deployments"),
    ("GET", KUEUE + "/clusterqueues"),
    ("PATCH", KUEUE + "/clusterqueues/x"),
    ("GET", KUEUE + "/namespaces/{ns}/localqueues"),
    ("DELETE", KUEUE + "/namespaces/{ns}/workloads"),
    ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
)


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(planes, namespace, tmp_path)
    yield made
    made.clean()


def answer(api: Api, method: str, path: str) -> int:
    """The status; what is asked for is nonsense, so that only rights are tried."""
    body = {"metadata": {"name": "x"}} if method in ("POST", "PUT", "PATCH") else None
    form = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        api.call(method, path, body, content_type=form)
    except ApiError as error:
        return error.status
    except (ValueError, AssertionError):
        pass  # a watch's lines are no object
    return 200


def test_the_token_can_do_what_multikueue_needs_and_nothing_else(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.profile(east)
    rig.bootstrap(east, worker)
    rig.start()
    rig.until(lambda: rig.held(east), "access is there")

    api = worker.api_for(token=rig.token(east))
    for method, path in NEEDED:
        # An authorizer hears of new rights by a watch.
        rig.until(
            lambda m=method, p=path: answer(api, m, p.format(ns=rig.namespace)) not in (401, 403),
            f"{method} {path} is allowed",
        )
    denied = {(m, p): answer(api, m, p.format(ns=rig.namespace)) for m, p in DENIED}
    assert denied == dict.fromkeys(DENIED, 403)

    # What Kueue reads is a kubeconfig without anything that it refuses, under its own key.
    found = rig.registered(east)
    assert found is not None
    source = {"kubeConfig": {"location": names.hub_secret(east), "locationType": "Secret"}}
    assert found["spec"]["clusterSource"] == source
    held = {"state": "Held", "ready": True, "by": "bootstrap"}
    rig.until(lambda: held.items() <= (rig.status(east) or {}).items(), f"the status is {held}")
    shown = rig.status(east)
    token = rig.token(east)
    assert token not in rig.words()
    assert token not in str(shown)
    # And `berth cluster credentials` shows people the same.
    told = rig.berth("cluster", "credentials", "--namespace", rig.namespace)
    assert told.returncode == 0, told.stderr
    [row] = [line.split() for line in told.stdout.splitlines() if line.startswith("east-")]
    assert row == [east, "Held", "yes", "bootstrap", "24h"]


def test_renewal_leaves_no_moment_without_a_working_token(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.profile(east)
    rig.bootstrap(east, worker)
    rig.start("--renew-after-s", "4")
    rig.until(lambda: rig.held(east), "access is there")
    first = rig.token(east)
    with calling(rig, east, worker) as caller:
        rig.until(lambda: len(caller.serials) >= 4, "three renewals")
    assert caller.failures == []
    assert caller.calls > 20
    assert caller.serials == sorted(caller.serials)
    # Of all that were made two at most are left. An API server remembers for 10 s whom it knew.
    rig.until(lambda: not works(worker, first), "the first one is dead")
    assert len(rig.bound(worker)) <= 2
    rig.until(lambda: rig.metric("rotated_total") >= 3, "each is counted")


def test_removal_revokes_at_once_and_leaves_nothing(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.profile(east)
    rig.bootstrap(east, worker)
    rig.start()
    rig.until(lambda: rig.held(east), "access is there")
    token = rig.token(east)
    assert works(worker, token)

    rig.forget(east)
    rig.until(lambda: not works(worker, token), "the token is refused")
    rig.until(lambda: rig.secret(east) is None and rig.registered(east) is None, "the hub is clean")
    rig.until(lambda: rig.left(worker) == [], "the worker is clean")
    assert rig.stop() == 0


def test_a_bound_secret_that_somebody_deletes_ends_its_token_and_a_new_one_comes(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.profile(east)
    rig.bootstrap(east, worker)
    rig.start()
    rig.until(lambda: rig.held(east), "access is there")
    token, [serial] = rig.token(east), rig.bound(worker)

    name = names.bound(f"{_account(rig, east)}", serial)
    worker.api.delete(f"/api/v1/namespaces/{rig.namespace}/secrets/{name}")
    rig.until(lambda: not works(worker, token), "the token ended with its Secret")
    rig.until(lambda: rig.serial(east) not in ("", serial), "a check has noticed")
    rig.until(lambda: works(worker, rig.token(east)), "the new one works")


def _is_ours(rig: Rig, cluster: str) -> bool:
    found = rig.registered(cluster)
    assert found is not None
    location = found["spec"]["clusterSource"]["kubeConfig"]["location"]
    labels = found["metadata"]["labels"]
    return bool(labels[names.MANAGED_BY] == names.MANAGER and location == names.hub_secret(cluster))


def _account(rig: Rig, cluster: str) -> str:
    path = "/api/v1/namespaces/kube-system"
    return names.account(rig.hub.api.get(path)["metadata"]["uid"], cluster)


def test_a_cluster_that_a_config_still_lists_keeps_its_access_until_it_is_drained(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east, west = rig.cluster("east"), rig.cluster("west")
    rig.profile(east)
    rig.bootstrap(east, worker)
    rig.start("--renew-after-s", "4")
    rig.until(lambda: rig.held(east), "access is there")
    config = rig.config(east, west)

    rig.forget(east)
    rig.until(lambda: rig.status(east).get("state") == "Draining", "it says that it drains")
    assert config in rig.status(east)["message"]
    with calling(rig, east, worker) as caller:
        rig.until(lambda: len(caller.serials) >= 2, "it is renewed all the same")
    assert caller.failures == []
    rig.until(lambda: "CredentialsDraining" in rig.events(east), "people are told")

    rig.config(west)
    rig.until(lambda: rig.registered(east) is None and rig.secret(east) is None, "drained: gone")
    rig.until(lambda: rig.left(worker) == [], "the worker is clean")
    rig.hub.api.delete(f"{MULTIKUEUE_CONFIGS}/{config}")


def test_objects_that_others_own_are_never_written(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east, west = rig.cluster("east"), rig.cluster("west")
    # Somebody has a Secret of that name, and somebody a MultiKueueCluster.
    secrets = f"/api/v1/namespaces/{rig.kueue}/secrets"
    theirs = rig.hub.api.create(
        secrets, {"metadata": {"name": names.hub_secret(east)}, "stringData": {"kubeconfig": "x"}}
    )
    source = {"kubeConfig": {"location": "theirs", "locationType": "Secret"}}
    other = rig.hub.api.create(
        MULTIKUEUE_CLUSTERS,
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "MultiKueueCluster",
            "metadata": {"name": west},
            "spec": {"clusterSource": source},
        },
    )
    for cluster in (east, west):
        rig.profile(cluster)
        rig.bootstrap(cluster, worker)
    rig.start()
    for cluster in (east, west):
        rig.until(
            lambda: "not ours" in rig.events(cluster).get("CredentialsNotOurs", ""),  # noqa: B023
            "people are told whose it is",
        )
    assert rig.secret(east) == theirs
    assert rig.registered(west) == other
    assert rig.registered(east) is None
    assert rig.secret(west) is None

    # What another service of ours made in its place is taken over.
    rig.hub.api.merge(
        f"{MULTIKUEUE_CLUSTERS}/{west}", {"metadata": {"labels": {names.MANAGED_BY: names.SIBLING}}}
    )
    rig.until(lambda: rig.serial(west) != "", "the way is free")
    rig.until(lambda: _is_ours(rig, west), "it is ours, and names our Secret")
    for cluster in (east, west):
        rig.forget(cluster)
    rig.until(lambda: rig.registered(west) is None, "ours goes")
    assert rig.secret(east) == theirs


def test_a_bootstrap_token_is_renewed_in_its_secret_long_before_it_ends(rig: Rig) -> None:
    worker, east = rig.planes.workers[0], rig.cluster("east")
    rig.profile(east)
    rig.bootstrap(east, worker)
    given = rig.way_in_token(east)
    rig.start("--renew-after-s", "6")
    rig.until(lambda: rig.held(east), "it is served")
    rig.until(lambda: rig.way_in_token(east) != given, "the person's token has a successor")
    # What is made with it: a new bound token for Kueue, once the old one's Secret is gone.
    for serial in rig.bound(worker):
        account = f"{names.account(rig.hub_id, east)}-{serial}"
        worker.api.delete(f"/api/v1/namespaces/{rig.namespace}/secrets/{account}")
    before = rig.serial(east)
    rig.until(lambda: rig.serial(east) not in ("", before), "a new token, by the new way in")
    rig.until(lambda: rig.metric("bootstrap_renewed_total") >= 1, "it is counted")
    assert not rig.metric("failing_bootstraps")
    assert given not in rig.words()
    assert rig.way_in_token(east) not in rig.words()
