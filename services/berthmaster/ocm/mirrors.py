"""The objects of one API server as reflectors bring them, and what health and metrics say of that.

A kind that is not served is nothing to complain about: a hub without Open Cluster Management stays
quiet, and is looked at again now and then. One that may not be read is.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.figures import CallFigures
from berthmaster.kubernetes.mirror import Added, Change, Deleted, Listed, Unreadable, Updated
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.reflector import Reflector
from berthmaster.kubernetes.resources import Resource
from berthmaster.runtime.service import Context

ABSENT_S: Final = 3.0  # a server that starts may deny kinds that it has not loaded yet


class Watched(NamedTuple):
    """A kind that is mirrored."""

    resource: Resource
    struct: type[Object]
    namespace: str = ""
    selector: str = ""  # of fields


class Mirrors:
    """One reflector a kind."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        watched: tuple[Watched, ...],
        *,
        on_object: Callable[[Object, bool], None],
        on_listed: Callable[[str], None],
        on_absent: Callable[[str], None],
        absent_s: float,
    ) -> None:
        """``on_listed`` and ``on_absent`` get the plural of a kind."""
        self._ctx = ctx
        self._on_object = on_object
        self._on_listed = on_listed
        self._on_absent = on_absent
        self._absent_since_s: dict[str, float] = {}
        metrics = ctx.metrics
        self._objects = metrics.gauge("objects", "Objects mirrored", ["resource"])
        self._calls = CallFigures(metrics, client, "Calls of the API")
        self._bad = metrics.gauge("unreadable_objects", "Objects of a wrong form", ["resource"])
        self._reflectors: list[tuple[Watched, Reflector[Any]]] = [
            (
                one,
                Reflector(
                    client,
                    one.resource,
                    one.struct,
                    namespace=one.namespace,
                    field_selector=one.selector,
                    on_change=self._handler(one),
                    absent_s=absent_s,
                    log=ctx.log,
                ),
            )
            for one in watched
        ]

    def start(self) -> None:
        """Mirror until the service stops."""
        for one, reflector in self._reflectors:
            name = f"mirror of {one.resource.plural}"
            self._ctx.health.ready(name, False, "not listed yet")
            self._ctx.spawn(reflector.run(self._ctx.stopping), name=name)

    def show(self) -> None:
        """Health and metrics as of now; kinds that are surely not served are told."""
        now_s = asyncio.get_running_loop().time()
        for one, reflector in self._reflectors:
            name = one.resource.plural
            good = reflector.caught_up and not reflector.trouble
            why = reflector.trouble or "not listed yet"
            if reflector.absent:
                since_s = self._absent_since_s.setdefault(name, now_s)
                if now_s - since_s >= ABSENT_S:
                    self._on_absent(name)
                    good, why = True, "not served here"
            else:
                self._absent_since_s.pop(name, None)
            self._ctx.health.ready(
                f"mirror of {name}", good, why, note="" if not reflector.absent else why
            )
            self._objects.labels(name).set(len(reflector.objects))
            self._bad.labels(name).set(len(reflector.unreadable))
        self._calls.show()

    def _handler(self, one: Watched) -> Callable[[Change[Any]], None]:
        def handle(change: Change[Any]) -> None:
            match change:
                case Added() | Updated():
                    self._on_object(change.object, False)
                case Deleted():
                    self._on_object(change.previous, True)
                case Unreadable(object=bad):
                    self._ctx.log.warning(
                        "an object has a wrong form",
                        resource=one.resource.plural,
                        name=f"{bad.namespace}/{bad.name}",
                        why=bad.why,
                    )
                case Listed():
                    self._on_listed(one.resource.plural)

        return handle
