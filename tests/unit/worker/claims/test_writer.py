"""What a write of a claim says to the API server."""

import asyncio

from berthmaster.worker.claims.core.instructions import CreateClaim, Write, WriteClaim
from berthmaster.worker.claims.writer import ClaimWriter
from tests.unit.hub.ocm.builders import placed
from tests.unit.hub.ocm.test_writer import Server

PATH = "/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims"


def asked(write: Write) -> list[tuple[str, str, object]]:
    server = Server(placed())
    asyncio.run(ClaimWriter(server).carry_out(write))
    return server.asked


def test_claim_is_created_with_our_label() -> None:
    body = {
        "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
        "kind": "ClusterClaim",
        "metadata": {"name": "c", "labels": {"app.kubernetes.io/managed-by": "berthmaster"}},
        "spec": {"value": "7"},
    }
    assert asked(CreateClaim(("claim", "", "c"), "7")) == [("create", PATH, body)]


def test_claim_changes_by_its_spec() -> None:
    write = WriteClaim(key=("claim", "", "c"), resource_version="3", value="9")
    assert asked(write) == [("patch 3", f"{PATH}/c", {"spec": {"value": "9"}})]
