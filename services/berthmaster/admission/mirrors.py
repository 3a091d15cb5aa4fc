"""The hub's objects as reflectors bring them, and what health and metrics say of that."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from berthmaster.admission.book import NOT_SERVED
from berthmaster.admission.objects import Placement, PlacementDecision, Workload
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.figures import CallFigures
from berthmaster.kubernetes.mirror import Added, Change, Deleted, Updated
from berthmaster.kubernetes.multikueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.reflector import Reflector
from berthmaster.kubernetes.resources import (
    ADMISSION_CHECKS,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    PLACEMENT_DECISIONS,
    PLACEMENTS,
    WORKLOADS,
    Resource,
)
from berthmaster.runtime.service import Context

ABSENT_S: Final = 5.0  # between two looks for a kind that is not there
SURE_S: Final = 5.0  # a server that starts does not know all kinds and rights at once


class Watched(NamedTuple):
    """A kind that is mirrored."""

    resource: Resource
    struct: type[Object]
    optional: bool = False  # a hub may lack it


WATCHED: Final = (
    Watched(ADMISSION_CHECKS, AdmissionCheck),
    Watched(MULTIKUEUE_CONFIGS, MultiKueueConfig),
    Watched(MULTIKUEUE_CLUSTERS, MultiKueueCluster),
    Watched(WORKLOADS, Workload),
    Watched(PLACEMENTS, Placement, optional=True),
    Watched(PLACEMENT_DECISIONS, PlacementDecision, optional=True),
)


class Mirrors:
    """One reflector a kind."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        *,
        placement_namespace: str,
        on_object: Callable[[Object, bool], None],
        on_unreadable: Callable[[], None],
    ) -> None:
        self._ctx = ctx
        self._on_object = on_object
        self._on_unreadable = on_unreadable
        metrics = ctx.metrics
        self._objects = metrics.gauge("objects", "Objects mirrored", ["resource"])
        self._age_s = metrics.gauge("mirror_age_seconds", "Since a watch was heard", ["resource"])
        self._calls = CallFigures(metrics, client, "Calls of the hub's API")
        self._bad = metrics.gauge("unreadable_objects", "Objects of a wrong form", ["resource"])
        self._lacking_since_s: dict[str, float] = {}
        self._had: set[str] = set()
        self._reflectors: dict[str, tuple[Watched, Reflector[Any]]] = {
            one.resource.plural: (
                one,
                Reflector(
                    client,
                    one.resource,
                    one.struct,
                    namespace=placement_namespace if one.optional else "",
                    on_change=self._handle,
                    absent_s=ABSENT_S,
                    log=ctx.log,
                ),
            )
            for one in WATCHED
        }

    def start(self) -> None:
        """Mirror until the service stops."""
        for name, (_, reflector) in self._reflectors.items():
            self._ctx.spawn(reflector.run(self._ctx.stopping), name=f"mirror of {name}")

    @property
    def complete(self) -> bool:
        """Whether every kind was listed once, or is known not to be there."""
        for name, (_, reflector) in self._reflectors.items():
            if reflector.caught_up:
                self._had.add(name)
        return all(
            name in self._had or (one.optional and self._lacks(name))
            for name, (one, _) in self._reflectors.items()
        )

    @property
    def trouble(self) -> str:
        """Why what is mirrored may be old, or ""."""
        told = (
            reflector.trouble
            for name, (_, reflector) in self._reflectors.items()
            if not self._lacks(name)
        )
        return next((why for why in told if why), "")

    @property
    def absent(self) -> str:
        """Why there can be no Placements, or ""."""
        for name, (one, reflector) in self._reflectors.items():
            if one.optional and self._lacks(name):
                return NOT_SERVED if reflector.absent else f"cannot be read: {reflector.trouble}"
        return ""

    def unreadable(self, resource: Resource) -> dict[str, str]:
        """Objects of a kind that cannot be read: name -> why."""
        _, reflector = self._reflectors[resource.plural]
        return {name: bad.why for (_, name), bad in reflector.unreadable.items()}

    def _lacks(self, name: str) -> bool:
        """Whether the server has said for a while that it has no such kind, or that we may not."""
        _, reflector = self._reflectors[name]
        refused = reflector.denied_since_s is not None and name not in self._had
        if not reflector.absent and not refused:
            self._lacking_since_s.pop(name, None)
            return False
        now_s = asyncio.get_running_loop().time()
        return now_s - self._lacking_since_s.setdefault(name, now_s) >= SURE_S

    def show(self) -> None:
        """Health and metrics as of now."""
        now_s = asyncio.get_running_loop().time()
        for name, (_, reflector) in self._reflectors.items():
            good = (reflector.caught_up and not reflector.trouble) or self._lacks(name)
            self._ctx.health.ready(f"mirror of {name}", good, reflector.trouble or "not listed yet")
            self._objects.labels(name).set(len(reflector.objects))
            self._bad.labels(name).set(len(reflector.unreadable))
            self._age_s.labels(name).set(min(reflector.age_s(now_s), 1e9))
        self._calls.show()

    def _handle(self, change: Change[Any]) -> None:
        match change:
            case Added() | Updated():
                self._on_object(change.object, False)
            case Deleted():
                self._on_object(change.previous, True)
            case _:
                self._on_unreadable()
