"""The mirrors of one service: a reflector a kind, and what health and metrics say of them.

What a change means is the service's own; it is told each with the kind that it is about. Shared is
when enough is known to act on (every kind is listed, or is one that servers may lack and this one
surely lacks), and that an object which cannot be read is logged, counted, and nobody else's loss.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.figures import CallFigures
from berthmaster.kubernetes.mirror import Change, Unreadable
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.reflector import SURE_S, Reflector
from berthmaster.kubernetes.resources import Resource
from berthmaster.runtime.service import Context

NEVER_S: Final = 1e9  # the age that is shown of a mirror which never heard anything


class Watched(NamedTuple):
    """A kind that is mirrored, or the part of it that is selected."""

    resource: Resource
    struct: type[Object]
    optional: bool = False  # a server may lack it
    namespace: str = ""
    labels: str = ""  # a selector
    fields: str = ""  # a selector
    part: str = ""  # what the selected are called, where a kind is mirrored in several parts

    @property
    def name(self) -> str:
        """By which people know it, and ``Mirrors`` are asked for it."""
        return self.part or self.resource.plural


OnChange = Callable[[Watched, Change[Any]], None]


class Mirrors:
    """All of them, each with a task of its own."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        watched: Iterable[Watched],
        on_change: OnChange,
        *,
        absent_s: float,
        sure_s: float = SURE_S,
    ) -> None:
        """``absent_s``: between two looks for a kind that is not there; ``sure_s``: for how long a
        server must have said so."""
        self._ctx = ctx
        self._on_change = on_change
        self._sure_s = sure_s
        self._now = asyncio.get_running_loop().time
        metrics = ctx.metrics
        self._objects = metrics.gauge("objects", "Objects mirrored", ["resource"])
        self._bad = metrics.gauge("unreadable_objects", "Objects of a wrong form", ["resource"])
        self._age_s = metrics.gauge("mirror_age_seconds", "Since a watch was heard", ["resource"])
        self._calls = CallFigures(metrics, client, "Calls of the API")
        self._watched = {one.name: one for one in watched}
        self._reflectors: dict[str, Reflector[Any]] = {
            one.name: Reflector(
                client,
                one.resource,
                one.struct,
                namespace=one.namespace,
                label_selector=one.labels,
                field_selector=one.fields,
                on_change=partial(self._hear, one),
                absent_s=absent_s,
                log=ctx.log,
            )
            for one in self._watched.values()
        }

    def start(self) -> None:
        """Mirror until the service stops."""
        self.show()
        for name, reflector in self._reflectors.items():
            self._ctx.spawn(reflector.run(self._ctx.stopping), name=f"mirror of {name}")

    def has(self, name: str) -> bool:
        """Whether it is mirrored, and all of it is known."""
        return name in self._reflectors and self._reflectors[name].caught_up

    def lacks(self, name: str) -> bool:
        """Whether the server surely has no such kind, and need not."""
        reflector = self._reflectors[name]
        surely = reflector.absent_for_s(self._now()) >= self._sure_s
        return surely and self._watched[name].optional

    @property
    def lacking(self) -> list[str]:
        """All that the server lacks."""
        return [name for name in self._reflectors if self.lacks(name)]

    @property
    def complete(self) -> bool:
        """Whether all is known: what is not here, is not there."""
        return all(self.has(name) or self.lacks(name) for name in self._reflectors)

    @property
    def trouble(self) -> str:
        """Why what is mirrored may be old, or ""."""
        told = (one.trouble for name, one in self._reflectors.items() if not self.lacks(name))
        return next((why for why in told if why), "")

    def show(self) -> None:
        """Health and metrics as of now."""
        now_s = self._now()
        for name, reflector in self._reflectors.items():
            lacks = self.lacks(name)
            good = lacks or (reflector.caught_up and not reflector.trouble)
            why = reflector.trouble or "not listed yet"
            self._ctx.health.ready(f"mirror of {name}", good, why, note=why if lacks else "")
            self._objects.labels(name).set(len(reflector.objects))
            self._bad.labels(name).set(len(reflector.unreadable))
            self._age_s.labels(name).set(min(reflector.age_s(now_s), NEVER_S))
        self._calls.show()

    def _hear(self, one: Watched, change: Change[Any]) -> None:
        if isinstance(change, Unreadable):
            bad = change.object
            name = f"{bad.namespace}/{bad.name}" if bad.namespace else bad.name
            self._ctx.log.warning(
                "an object has a wrong form", resource=one.name, name=name, why=bad.why
            )
        self._on_change(one, change)
