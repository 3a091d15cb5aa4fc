"""The hub's objects as reflectors bring them, and what health and metrics say of that."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.figures import CallFigures
from berthmaster.kubernetes.mirror import Added, Change, Deleted, Unreadable, Updated
from berthmaster.kubernetes.multikueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.reflector import Reflector
from berthmaster.kubernetes.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    JOBS,
    LOCAL_QUEUES,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    WORKLOADS,
    Resource,
)
from berthmaster.kubernetes.wire import Undecodable
from berthmaster.multikueue.kueue import ClusterQueue, HubJob, KueueWorkload, LocalQueue
from berthmaster.runtime.health import Health
from berthmaster.runtime.metrics import Metrics
from berthmaster.runtime.service import Context

ABSENT_S: Final = 5.0


class Watched(NamedTuple):
    """A kind that is mirrored."""

    resource: Resource
    struct: type[Object]


WATCHED: Final = (
    Watched(JOBS, HubJob),
    Watched(ADMISSION_CHECKS, AdmissionCheck),
    Watched(MULTIKUEUE_CONFIGS, MultiKueueConfig),
    Watched(MULTIKUEUE_CLUSTERS, MultiKueueCluster),
    Watched(CLUSTER_QUEUES, ClusterQueue),
    Watched(LOCAL_QUEUES, LocalQueue),
    Watched(WORKLOADS, KueueWorkload),
)


class Mirrors:
    """One reflector a kind."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        *,
        on_object: Callable[[Object, bool], None],
        on_unreadable: Callable[[Resource, Undecodable], None],
    ) -> None:
        self._ctx = ctx
        self._client = client
        self._on_object = on_object
        self._on_unreadable = on_unreadable
        self._health: Health = ctx.health
        metrics: Metrics = ctx.metrics
        self._objects = metrics.gauge("objects", "Objects mirrored", ["resource"])
        self._age_s = metrics.gauge("mirror_age_seconds", "Since a watch was heard", ["resource"])
        self._calls = CallFigures(metrics, client, "Calls of the hub's API")
        self._bad = metrics.gauge("unreadable_objects", "Objects of a wrong form", ["resource"])
        self._reflectors: list[tuple[Watched, Reflector[Any]]] = [
            (
                one,
                Reflector(
                    client,
                    one.resource,
                    one.struct,
                    on_change=self._handler(one),
                    absent_s=ABSENT_S,
                    log=ctx.log,
                ),
            )
            for one in WATCHED
        ]

    def start(self) -> None:
        """Mirror until the service stops."""
        for one, reflector in self._reflectors:
            name = f"mirror of {one.resource.plural}"
            self._ctx.spawn(reflector.run(self._ctx.stopping), name=name)

    @property
    def complete(self) -> bool:
        """Whether every kind was listed: what is not there, is not there."""
        return all(reflector.caught_up for _, reflector in self._reflectors)

    @property
    def trouble(self) -> str:
        """Why what is mirrored may be old, or ""."""
        found = (reflector.trouble for _, reflector in self._reflectors if reflector.trouble)
        return next(found, "")

    @property
    def api_calls(self) -> int:
        """All calls so far."""
        return sum(self._client.calls.values())

    def show(self) -> None:
        """Health and metrics as of now."""
        now_s = asyncio.get_running_loop().time()
        for one, reflector in self._reflectors:
            name = one.resource.plural
            good = reflector.caught_up and not reflector.trouble
            self._health.ready(f"mirror of {name}", good, reflector.trouble or "not listed yet")
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
