"""The hub's objects as reflectors bring them, and what health and metrics say of that."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.figures import CallFigures
from berthmaster.kubernetes.mirror import Added, Change, Deleted, Unreadable, Updated
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.reflector import Reflector
from berthmaster.kubernetes.resources import (
    ADD_ON_PLACEMENT_SCORES,
    MANAGED_CLUSTER_SET_BINDINGS,
    MANAGED_CLUSTER_SETS,
    MANAGED_CLUSTERS,
    PLACEMENT_DECISIONS,
    PLACEMENTS,
    Resource,
)
from berthmaster.kubernetes.wire import Undecodable
from berthmaster.placement.objects import (
    AddOnPlacementScore,
    ManagedCluster,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    Placement,
    PlacementDecision,
)
from berthmaster.placement.settings import PlacementSettings
from berthmaster.runtime.service import Context

ABSENT_S: Final = 3.0  # a server that starts may say so of kinds that it has not loaded yet


class Watched(NamedTuple):
    """A kind that is mirrored."""

    resource: Resource
    struct: type[Object]
    needed: bool = True  # a hub may have no addons that write scores


WATCHED: Final = (
    Watched(PLACEMENTS, Placement),
    Watched(PLACEMENT_DECISIONS, PlacementDecision),
    Watched(MANAGED_CLUSTERS, ManagedCluster),
    Watched(MANAGED_CLUSTER_SETS, ManagedClusterSet),
    Watched(MANAGED_CLUSTER_SET_BINDINGS, ManagedClusterSetBinding),
    Watched(ADD_ON_PLACEMENT_SCORES, AddOnPlacementScore, needed=False),
)


class Mirrors:
    """One reflector a kind."""

    def __init__(
        self,
        ctx: Context[PlacementSettings],
        client: Client,
        *,
        on_object: Callable[[Any, bool], None],
        on_unreadable: Callable[[Resource, Undecodable], None],
    ) -> None:
        self._ctx = ctx
        self._on_object = on_object
        self._on_unreadable = on_unreadable
        metrics = ctx.metrics
        self._objects = metrics.gauge("objects", "Objects mirrored", ["resource"])
        self._age_s = metrics.gauge("mirror_age_seconds", "Since a watch was heard", ["resource"])
        self._calls = CallFigures(metrics, client, "Calls of the hub's API")
        self._bad = metrics.gauge("unreadable_objects", "Objects of a wrong form", ["resource"])
        self._absent_from_s: float | None = None
        self._reflectors: list[tuple[Watched, Reflector[Any]]] = [
            (
                one,
                Reflector(
                    client,
                    one.resource,
                    one.struct,
                    on_change=self._handler(one),
                    absent_s=ctx.settings.absent_s,
                    log=ctx.log,
                ),
            )
            for one in WATCHED
        ]

    def start(self) -> None:
        """Mirror until the service stops."""
        self.show()
        for one, reflector in self._reflectors:
            name = f"mirror of {one.resource.plural}"
            self._ctx.spawn(reflector.run(self._ctx.stopping), name=name)

    @property
    def complete(self) -> bool:
        """Whether every kind was listed, or is surely not there and not needed."""
        return all(
            reflector.caught_up or self._missing(one, reflector)
            for one, reflector in self._reflectors
        )

    @property
    def trouble(self) -> str:
        """Why what is mirrored may be old, or ""."""
        found = (
            reflector.trouble
            for one, reflector in self._reflectors
            if reflector.trouble and not self._missing(one, reflector)
        )
        return next(found, "")

    def _missing(self, one: Watched, reflector: Reflector[Any]) -> bool:
        if one.needed:
            return False
        if not reflector.absent:
            self._absent_from_s = None
            return False
        now_s = asyncio.get_running_loop().time()
        self._absent_from_s = self._absent_from_s or now_s
        return now_s - self._absent_from_s >= ABSENT_S

    def show(self) -> None:
        """Health and metrics as of now."""
        now_s = asyncio.get_running_loop().time()
        for one, reflector in self._reflectors:
            name = one.resource.plural
            good = reflector.caught_up and not reflector.trouble
            good = good or self._missing(one, reflector)
            why = reflector.trouble or "not listed yet"
            self._ctx.health.ready(f"mirror of {name}", good, why)
            self._objects.labels(name).set(len(reflector.objects))
            self._bad.labels(name).set(len(reflector.unreadable))
            self._age_s.labels(name).set(min(reflector.age_s(now_s), 1e9))
        self._calls.show()

    def _handler(self, one: Watched) -> Callable[[Change[Any]], None]:
        def handle(change: Change[Any]) -> None:
            match change:
                case Added() | Updated():
                    self._on_object(change.object, False)
                case Deleted():
                    self._on_object(change.previous, True)
                case Unreadable():
                    self._on_unreadable(one.resource, change.object)
                case _:
                    pass  # Listed: see ``complete``

        return handle
