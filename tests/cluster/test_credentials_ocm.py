"""Where Open Cluster Management is: the account is asked for through its objects.

Its addon is not here; the test does by hand what it would do: makes the account with the rights of
the ClusterPermission in the worker, and writes the token's Secret beside the ManagedServiceAccount.
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from berthmaster.hub.credentials.core.index import ACCOUNT
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.credentialing import MANAGED, RBAC, Rig, works

ACCOUNTS: Final = "/apis/authentication.open-cluster-management.io/v1beta1/namespaces/{ns}"
PERMISSIONS: Final = "/apis/rbac.open-cluster-management.io/v1alpha1/namespaces/{ns}"


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(planes, namespace, tmp_path)
    yield made
    made.clean()


class Addon:
    """OCM of one cluster, by hand."""

    def __init__(self, rig: Rig, cluster: str, worker: Plane) -> None:
        self.rig, self.cluster, self.worker = rig, cluster, worker
        self.api = rig.hub.api
        rig.hub.make_namespace(cluster)
        self.api.create(
            MANAGED,
            {
                "apiVersion": "cluster.open-cluster-management.io/v1",
                "kind": "ManagedCluster",
                "metadata": {"name": cluster, "labels": {"berth.test/of": rig.namespace}},
                "spec": {"hubAcceptsClient": True},
            },
        )

    def reachable_at(self, worker: Plane) -> None:
        """Where its API server is."""
        bundle = base64.b64encode(worker.ca_pem).decode()
        configs = [{"url": worker.url, "caBundle": bundle}]
        self.api.merge(
            f"{MANAGED}/{self.cluster}", {"spec": {"managedClusterClientConfigs": configs}}
        )

    def asked(self) -> tuple[Any, Any]:
        """What was asked of OCM."""
        path = ACCOUNTS.format(ns=self.cluster)
        account = self.api.find(f"{path}/managedserviceaccounts/{ACCOUNT}")
        path = PERMISSIONS.format(ns=self.cluster)
        return account, self.api.find(f"{path}/clusterpermissions/{ACCOUNT}")

    def makes(self) -> None:
        """Account and rights in the worker, as the permission says."""
        _, permission = self.asked()
        name = f"ocm-{self.rig.namespace}"
        accounts = f"/api/v1/namespaces/{self.rig.namespace}/serviceaccounts"
        self.worker.api.create(accounts, {"metadata": {"name": name}})
        rules = permission["spec"]["clusterRole"]["rules"]
        self.worker.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.rig.namespace}
        self.worker.api.create(
            f"{RBAC}/clusterrolebindings",
            {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
                "subjects": [subject],
            },
        )

    def brings_a_token(self) -> str:
        """Writes the Secret, or a new token into it."""
        token = self.worker.token_for(self.rig.namespace, f"ocm-{self.rig.namespace}")
        data = {
            "token": base64.b64encode(token.encode()).decode(),
            "ca.crt": base64.b64encode(self.worker.ca_pem).decode(),
        }
        meta = {"name": ACCOUNT, "namespace": self.cluster}
        self.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
        return token

    def leaves(self) -> None:
        """The ManagedCluster goes."""
        self.api.delete(f"{MANAGED}/{self.cluster}")


def test_ocm_makes_the_account_and_its_tokens_are_tried_taken_over_and_given_up(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    addon = Addon(rig, east, worker)
    try:
        rig.start("--lifetime-s", "3600")
        rig.until(lambda: all(addon.asked()), "both objects are there")
        account, permission = addon.asked()
        assert account["spec"]["rotation"] == {"enabled": True, "validity": "1h0m0s"}
        subject = permission["spec"]["clusterRoleBinding"]["subject"]
        assert (subject["kind"], subject["name"]) == ("ManagedServiceAccount", ACCOUNT)
        resources = [rule["resources"] for rule in permission["spec"]["clusterRole"]["rules"]]
        assert ["secrets"] not in resources
        assert ["workloads"] in resources

        # A token without the endpoint is of no use, and people are told what is missing.
        addon.makes()
        token = addon.brings_a_token()
        rig.until(
            lambda: "managedClusterClientConfigs" in rig.events(east).get("AwaitingToken", ""),
            "people are told",
        )
        assert rig.secret(east) is None
        addon.reachable_at(worker)
        rig.until(lambda: rig.held(east), "access is there")
        assert rig.token(east) == token
        assert works(worker, token)
        rig.until(lambda: rig.status(east).get("by") == "ocm", "the status says how")

        # OCM brings a new one: Kueue has it soon.
        fresh = addon.brings_a_token()
        rig.until(lambda: rig.token(east) == fresh, "the new one is taken over")
        rig.kill()
        rig.start("--lifetime-s", "3600")
        newest = addon.brings_a_token()
        rig.until(lambda: rig.token(east) == newest, "after a kill, too")

        addon.leaves()
        rig.until(lambda: addon.asked() == (None, None), "OCM's objects go")
        rig.until(lambda: rig.secret(east) is None and rig.registered(east) is None, "and ours")
    finally:
        rig.hub.api.delete(f"/api/v1/namespaces/{east}")


def test_a_token_of_ocm_that_does_not_work_is_not_given_to_kueue(rig: Rig) -> None:
    worker, other = rig.planes.workers[:2]
    east = rig.cluster("east")
    addon = Addon(rig, east, worker)
    try:
        addon.reachable_at(other)  # another cluster's address: the token is unknown there
        rig.start()
        rig.until(lambda: all(addon.asked()), "both objects are there")
        addon.makes()
        token = addon.brings_a_token()
        rig.until(lambda: "CredentialsFailed" in rig.events(east), "people are told")
        assert "does not work" in rig.events(east)["CredentialsFailed"]
        assert rig.secret(east) is None
        addon.reachable_at(worker)
        rig.until(lambda: rig.held(east), "mended, it is taken")
        assert rig.token(east) == token
        assert token not in rig.words()
    finally:
        rig.hub.api.delete(f"/api/v1/namespaces/{east}")
