"""Watches the objects that facts are made of, and reports impossible values."""

from collections.abc import Callable, Collection
from typing import Any, Final

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.problems import Problems, Unlisted
from berthmaster.lib.kube.controller.watch import Watch, Watched, metadata_of
from berthmaster.lib.kube.errors import Forbidden, TimedOut, Unreachable
from berthmaster.lib.kube.mirror import Change, Key
from berthmaster.lib.kube.reflector import SURE_S, Reflector
from berthmaster.lib.runtime.service import Context

ABSENT_S: Final = 30.0  # pause between two lists of a kind that is not served (Kueue's, DRA)
# Silence of the watches after which the cluster counts as silent. Servers send a bookmark every
# minute, so one bookmark may be missed.
SILENT_LIMIT_S: Final = 130.0
UNLISTED_S: Final = 5.0  # a shorter failure is a restart, not a problem yet
LOGGED_A_BEAT: Final = 20  # problems; the metric counts all


class FactWatch(Watch):
    """Reports each change unchanged, since facts also name unreadable objects.

    The server may lack optional kinds. Deniable kinds may be denied, too.
    """

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        watched: tuple[Watched, ...],
        take: Callable[[str, Change[Any]], None],
        *,
        own_kinds: Collection[str] = (),
    ) -> None:
        """``take`` gets the kind of the change and the change.

        The kind is the resource's plural, or the watched part's name if listed in ``own_kinds``.
        """
        self._take = take
        self._own_kinds = own_kinds
        super().__init__(ctx, client, watched, SetAside(), absent_s=ABSENT_S)
        metrics = ctx.metrics
        self._problems = metrics.gauge("problems", "Objects with impossible values", ["kind"])
        self._odd = metrics.gauge("set_aside", "Objects skipped because of errors")
        self._problem_kinds: set[str] = set()

    def apply(self, one: Watched, change: Change[Any]) -> None:
        with self.aside.trying(Phase.HEARING, one.resource, metadata_of(change)):
            self._take(self._kind_of(one), change)

    def _kind_of(self, one: Watched) -> str:
        return one.part if one.part in self._own_kinds else one.resource.plural

    def lacks(self, name: str) -> bool:
        """Return whether an optional kind is not served, or a deniable one denied."""
        one, reflector = self.watched[name], self.reflectors[name]
        denied = one.deniable and reflector.faults.denied_for_s(self.now()) > 0
        return one.optional and (reflector.faults.is_absent or denied)

    def excused(self, name: str) -> bool:
        """Return whether the service is ready without a mirror of this kind.

        The cluster's profile names each optional kind that cannot be listed.
        """
        return self.lacks(name) or (self.watched[name].optional and self._is_unlisted(name))

    def _is_unlisted(self, name: str) -> bool:
        return any(one.name == shown(self.watched[name]) for one in self.unlisted())

    def unreadable_keys(self) -> dict[str, list[Key]]:
        """Return the objects of each kind that cannot be decoded."""
        found: dict[str, list[Key]] = {}
        for name, one in self.watched.items():
            keys = found.setdefault(self._kind_of(one), [])
            keys.extend(self.reflectors[name].unreadable)
        return found

    @property
    def absent(self) -> list[str]:
        """The kinds that the server has not served for ``SURE_S``."""
        return [
            self._kind_of(one)
            for name, one in self.watched.items()
            if self.reflectors[name].faults.absent_for_s(self.now()) >= SURE_S
        ]

    @property
    def ready(self) -> bool:
        """Whether each kind is listed, or the reason for its absence is known."""
        return all(
            self.has(name) or self.lacks(name) or self._is_denied(name) or self._is_unlisted(name)
            for name in self.watched
        )

    def _is_denied(self, name: str) -> bool:
        """Return whether the Role has never allowed an optional kind."""
        reflector = self.reflectors[name]
        denied = isinstance(reflector.faults.error, Forbidden) and not reflector.resource_version
        return denied and self.watched[name].optional

    def unlisted(self) -> list[Unlisted]:
        """Return the kinds that cannot be listed although the API server answers.

        The list is empty while the server answers nothing. The missing heartbeat then shows the
        outage.
        """
        now_s = self.now()
        well = [one.last_seen_s for one in self.reflectors.values() if not one.faults.reason]
        return [
            Unlisted(self._kind_of(one), shown(one), reflector.faults.reason, now_s - since_s)
            for name, one in self.watched.items()
            if (since_s := (reflector := self.reflectors[name]).faults.since_s)
            and now_s - since_s >= UNLISTED_S
            and not (self.lacks(name) or self._is_denied(name))
            and well
            and (_is_an_answer(reflector) or max(well) > since_s)
        ]

    def live(self) -> str:
        """Return "" if a change of a required kind would arrive, else the reason."""
        for name, one in self.watched.items():
            reflector = self.reflectors[name]
            if one.optional:
                continue
            if reflector.faults.reason or not reflector.caught_up:
                return f"{name}: {reflector.faults.reason or 'not listed yet'}"
            if (age_s := reflector.age_s(self.now())) > SILENT_LIMIT_S:
                return f"{name}: nothing heard for {age_s:.0f} s"
        return ""

    def show_problems(self, problems: Problems) -> None:
        """Set the metrics, and log each problem once."""
        self.show()
        counts = problems.count()
        for kind in self._problem_kinds | counts.keys():
            self._problems.labels(kind).set(counts.get(kind, 0))
        self._problem_kinds |= counts.keys()
        new = problems.take_new()
        for problem in new[:LOGGED_A_BEAT]:
            self.log.warning(
                "object_not_usable", kind=problem.kind, name=problem.name, why=problem.text
            )
        if len(new) > LOGGED_A_BEAT:
            self.log.warning("objects_not_usable", more=len(new) - LOGGED_A_BEAT)
        self._odd.set(len(self.aside))
        for odd in self.aside.take_unreported():
            about = f"{odd.metadata.namespace}/{odd.metadata.name}"
            self.log.error("object skipped", error=odd.error, kind=odd.resource.kind, about=about)


def shown(one: Watched) -> str:
    """Return the kind as users name it, such as workloads.kueue.x-k8s.io."""
    group = one.resource.group
    return one.part or (f"{one.resource.plural}.{group}" if group else one.resource.plural)


def _is_an_answer(reflector: Reflector[Any]) -> bool:
    """Return whether the API server itself refused, which proves that the server is reachable."""
    return not isinstance(reflector.faults.error, Unreachable | TimedOut)
