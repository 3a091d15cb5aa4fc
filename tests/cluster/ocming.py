"""The service ocm on a real API server inside a test, and whoever tells scores on a real bus."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unittest import mock

from msgspec.structs import replace

from berthmaster.hub.ocm.service import main
from berthmaster.hub.ocm.settings import OcmSettings
from berthmaster.lab.controlplane.api import Object
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.facts import FactWriter
from berthmaster.lib.ocm import controller
from berthmaster.lib.ocm.core.pace import Rules
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from berthmaster.worker.claims import service as claims_service
from berthmaster.worker.claims.settings import ClaimsSettings
from tests.bus.doors import door
from tests.bus.shells import client, running
from tests.support.chart import rights
from tests.support.patience import Patience
from tests.unit.hub.ocm.builders import score

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
CLAIMS = "/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims"
NAME = "resource-usage-score"
RETELL_S = 2.0
QUICK = Rules(settle_s=2.0, refill_s=0.5, burst=50.0)
P = ParamSpec("P")
R = TypeVar("R")


def scores_path(cluster: str, name: str = NAME) -> str:
    """Where a cluster's scores are."""
    root = "/apis/cluster.open-cluster-management.io/v1alpha1"
    return f"{root}/namespaces/{cluster}/addonplacementscores/{name}"


def profile_path(namespace: str, name: str = "") -> str:
    """Where ClusterProfiles are."""
    root = f"/apis/multicluster.x-k8s.io/v1alpha1/namespaces/{namespace}/clusterprofiles"
    return f"{root}/{name}" if name else root


def managed(name: str, *, accepted: bool = True) -> Object:
    """A ManagedCluster."""
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name},
        "spec": {"hubAcceptsClient": accepted},
    }


async def calling(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """A blocking call of the fixture's."""
    return await asyncio.to_thread(functools.partial(work, *args, **kwargs))


class Teller:
    """Tells scores, as a scorer does: on change, and all of them again now and then."""

    def __init__(self, conn: Connection, server: Server) -> None:
        self.conn = conn
        self.server = server
        self.writer = FactWriter(conn)
        self._last: dict[str, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        """Of the bus."""
        return self.server.url

    async def tell(self, cluster: str, **rest: Any) -> None:
        """One score, under the next stamp."""
        self._last[cluster] = rest
        fact = score(cluster, **rest)
        fact = type(fact)(
            **{name: getattr(fact, name) for name in fact.__struct_fields__}
            | {"stamp": self.writer.stamp()}
        )
        await self.writer.put(subjects.score(cluster), fact)

    async def keep_telling(self) -> None:
        """However long a test waits for something, no cluster falls silent."""
        while True:
            await asyncio.sleep(RETELL_S)
            with suppress(BusError):  # a test may stop the bus
                for cluster in list(self._last):
                    await self.tell(cluster, **self._last[cluster])


@asynccontextmanager
async def bus(folder: Path) -> AsyncIterator[Teller]:
    """A bus."""
    with Server(folder / "nats", ServerConfig(sync="default")) as server:
        async with client(server.url) as conn, door(server.url):
            teller = Teller(conn, server)
            await teller.writer.begin(subjects.ALL_FLEET)
            telling = asyncio.create_task(teller.keep_telling())
            try:
                yield teller
            finally:
                telling.cancel()
                await asyncio.wait({telling})


@asynccontextmanager
async def ocm(
    url: str,
    kubeconfig: Path,
    *,
    silent_after_s: float = 3600.0,
    validity_s: float = 86_400.0,
    **settings: Any,
) -> AsyncIterator[Context[OcmSettings]]:
    """Run the service, ready and quicker than usual, until the block ends."""
    given = OcmSettings(nats_url=url, kubeconfig=kubeconfig, http_port=-1, **settings)
    rules = replace(QUICK, validity_s=validity_s)
    quick = replace(given.policy, rules=rules, silent_after_s=silent_after_s)
    with (
        mock.patch.object(OcmSettings, "policy", quick),
        mock.patch.object(controller, "ABSENT_S", 1.0),
    ):
        async with running("ocm", given, main) as ctx:
            yield ctx


@asynccontextmanager
async def claims(
    url: str, kubeconfig: Path, *, cluster: str
) -> AsyncIterator[Context[ClaimsSettings]]:
    """Run the service claims, ready and quicker than usual, until the block ends."""
    given = ClaimsSettings(nats_url=url, kubeconfig=kubeconfig, http_port=-1, cluster=cluster)
    with (
        mock.patch.object(claims_service, "RULES", QUICK),
        mock.patch.object(claims_service, "SILENT_AFTER_S", 3600.0),
        mock.patch.object(controller, "ABSENT_S", 1.0),
    ):
        async with running("claims", given, claims_service.main) as ctx:
            yield ctx


async def until(plane: Plane, path: str, right: Callable[[Object], object]) -> Object:
    """The object at a path, once it is right."""
    patience = Patience(path)
    while True:
        found = await calling(plane.api.find, path)
        if found is not None and right(found):
            return found
        patience.look(found)
        await asyncio.sleep(0.05)


def values(thing: Object) -> dict[str, int]:
    """The scores of an AddOnPlacementScore."""
    return {one["name"]: one["value"] for one in thing.get("status", {}).get("scores", ())}


def reason(thing: Object) -> str:
    """Of the condition Fresh."""
    conditions = thing.get("status", {}).get("conditions", ())
    return next((str(one["reason"]) for one in conditions if one["type"] == "Fresh"), "")


def properties(thing: Object) -> dict[str, str]:
    """The properties of a ClusterProfile."""
    return {one["name"]: one["value"] for one in thing.get("status", {}).get("properties", ())}


def with_rights(plane: Plane, namespace: str, role: str, *roles: str) -> Path:
    """A kubeconfig with a token of a service account that has these roles of the chart, bound in
    the whole cluster, and nothing else."""
    api = plane.api
    service = "ocm" if role == "hub" else "claims"
    wanted = rights(*roles, role=role, values={role: {"services": [service]}})
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "ocm", "namespace": namespace},
    }
    bindings = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{role}-{namespace}"},
            "subjects": [{"kind": "ServiceAccount", "name": "ocm", "namespace": namespace}],
            "roleRef": {
                "kind": "ClusterRole",
                "name": role,
                "apiGroup": "rbac.authorization.k8s.io",
            },
        }
        for role in roles
    ]
    for each in (*wanted, account, *bindings):
        api.apply(each)
    return plane.kubeconfig_with_token(plane.token_for(namespace, "ocm"))


def user(namespace: str) -> str:
    """As the audit log has that account."""
    return f"system:serviceaccount:{namespace}:ocm"


def written(counts: Mapping[tuple[str, str, str], int]) -> Mapping[tuple[str, str], int]:
    """(verb, resource) -> calls that write, events for people apart."""
    return {
        (verb, resource): count
        for (_, verb, resource), count in counts.items()
        if verb not in ("get", "list", "watch") and resource != "events"
    }


def events(plane: Plane, namespace: str, about: str) -> Sequence[str]:
    """Reasons of the events on an object, sorted."""
    found = plane.api.items(f"/api/v1/namespaces/{namespace}/events")
    return sorted({each["reason"] for each in found if each["involvedObject"]["name"] == about})


def troubles(ctx: Context[Any]) -> dict[str, str]:
    """Parts that are not in order, and why. Nobody beats for the loop here."""
    _, shown = ctx.health.readiness()
    parts: Any = shown["parts"]
    return {name: part["why"] for name, part in parts.items() if not part["ok"]}
