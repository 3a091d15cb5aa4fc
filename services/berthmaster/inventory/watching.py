"""The mirrors of one API server, and what health and metrics say of them."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from berthmaster.inventory.kinds import Problem
from berthmaster.inventory.settings import InventorySettings
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.figures import CallFigures
from berthmaster.kubernetes.mirror import Change
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.reflector import SURE_S, Reflector
from berthmaster.kubernetes.resources import Resource
from berthmaster.runtime.service import Context

K = TypeVar("K")
LOGGED_A_BEAT: Final = 20  # problems; the rest is in the metric, and told when it changes


class Watched(NamedTuple, Generic[K]):
    """What to mirror, and under which name the core takes it."""

    kind: K
    resource: Resource
    struct: type[Object]
    needed: bool = False  # without it there is nothing to say
    selector: str = ""  # of fields
    labels: str = ""
    namespace: str = ""
    page: int = 500


class Mirrors(Generic[K]):
    """All of them, each with a task of its own."""

    def __init__(
        self,
        ctx: Context[InventorySettings],
        client: Client,
        watched: tuple[Watched[K], ...],
        on_change: Callable[[K, Change[Any]], None],
    ) -> None:
        self._ctx = ctx
        self._loop = asyncio.get_running_loop()
        self._reflectors: list[tuple[Watched[K], Reflector[Any]]] = []
        for one in watched:
            reflector: Reflector[Any] = Reflector(
                client,
                one.resource,
                one.struct,
                namespace=one.namespace,
                label_selector=one.labels,
                field_selector=one.selector,
                on_change=lambda change, kind=one.kind: on_change(kind, change),  # type: ignore[misc]
                page=one.page,
                absent_s=ctx.settings.absent_s,
                log=ctx.log,
            )
            self._reflectors.append((one, reflector))
        metrics = ctx.metrics
        self._objects = metrics.gauge("objects", "Objects mirrored", ["resource"])
        self._age_s = metrics.gauge("mirror_age_seconds", "Since a watch was heard", ["resource"])
        self._lists = metrics.gauge("mirror_lists", "Times a kind was listed", ["resource"])
        self._calls = CallFigures(metrics, client, "Calls of the API")
        self._problems = metrics.gauge("problems", "Objects that cannot be right", ["kind"])
        self._problem_kinds: set[str] = set()

    def start(self) -> None:
        """Mirror until the service stops."""
        self.show({})
        for one, reflector in self._reflectors:
            self._ctx.spawn(reflector.run(self._ctx.stopping), name=f"mirror of {_name(one)}")

    def unreadable(self) -> dict[K, list[tuple[str, str]]]:
        """Of each kind, what cannot be read at present."""
        found: dict[K, list[tuple[str, str]]] = {}
        for one, reflector in self._reflectors:
            found.setdefault(one.kind, []).extend(reflector.unreadable)
        return found

    def absent(self) -> list[K]:
        """Kinds that the server surely does not serve."""
        now_s = self._loop.time()
        return [
            one.kind
            for one, reflector in self._reflectors
            if reflector.absent_for_s(now_s) >= SURE_S
        ]

    @property
    def ready(self) -> bool:
        """Whether everything was listed that is needed, and every other kind or else it is known
        not to be there."""
        return all(
            reflector.caught_up or (not one.needed and bool(reflector.trouble))
            for one, reflector in self._reflectors
        )

    def live(self) -> str:
        """ "" = a change of what is needed would have been heard; else why not."""
        now_s = self._loop.time()
        limit_s = self._ctx.settings.silent_limit_s
        for one, reflector in self._reflectors:
            if not one.needed:
                continue
            if reflector.trouble or not reflector.caught_up:
                return f"{_name(one)}: {reflector.trouble or 'not listed yet'}"
            if (age_s := reflector.age_s(now_s)) > limit_s:
                return f"{_name(one)}: nothing heard for {age_s:.0f} s"
        return ""

    def show(self, problems: dict[str, int]) -> None:
        """Health and metrics as of now."""
        now_s = self._loop.time()
        for one, reflector in self._reflectors:
            name = _name(one)
            missing = reflector.absent and not one.needed
            good = missing or (reflector.caught_up and not reflector.trouble)
            why = reflector.trouble or "not listed yet"
            self._ctx.health.ready(f"mirror of {name}", good, why)
            self._objects.labels(name).set(len(reflector.objects))
            self._lists.labels(name).set(reflector.lists)
            if not missing:
                self._age_s.labels(name).set(min(reflector.age_s(now_s), 1e9))
        self._calls.show()
        for kind in self._problem_kinds | problems.keys():
            self._problems.labels(kind).set(problems.get(kind, 0))
        self._problem_kinds |= problems.keys()

    def tell(self, new: list[Problem]) -> None:
        """Problems that nobody has been told, once each."""
        for problem in new[:LOGGED_A_BEAT]:
            self._ctx.log.warning(
                "object_not_usable", kind=problem.kind, name=problem.name, why=problem.text
            )
        if len(new) > LOGGED_A_BEAT:
            self._ctx.log.warning("objects_not_usable", more=len(new) - LOGGED_A_BEAT)


def _name(one: Watched[Any]) -> str:
    named = one.selector.partition("metadata.name=")[2]
    return f"{one.resource.plural} {named}" if named else one.resource.plural
