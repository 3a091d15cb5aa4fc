"""Mirrors of managed objects in a cluster, by namespace: pods, and served kinds of job objects and
PodGroups.

A namespace without read rights is *closed*: its mirrors are not awaited, nothing is created there,
and existing objects keep their last state. Other namespaces are served meanwhile.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.watch import metadata_of
from berthmaster.lib.kube.denials import GRACE_S
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.reflector import Change, Reflector
from berthmaster.lib.kube.resources import KAI_POD_GROUPS, PODS, VOLCANO_POD_GROUPS, Resource
from berthmaster.lib.runtime.log import LogLike
from berthmaster.worker.executor.core.objects import GroupObject, KaiGroupObject, PodObject

ABSENT_S: Final = 10.0  # interval of checks of a closed namespace
STALE_S: Final = 180.0  # without news from the API server, which sends some every minute
T = TypeVar("T", bound=Object)
OnJob = Callable[[JobKind, str, Change[JobObject]], None]  # kind, namespace
OnPod = Callable[[Change[PodObject]], None]
OnGroup = Callable[[Change[GroupObject]], None]
OnKaiGroup = Callable[[Change[KaiGroupObject]], None]
GroupMirror = Reflector[GroupObject] | Reflector[KaiGroupObject]
Mirror = Reflector[JobObject] | Reflector[PodObject] | GroupMirror


class JobMirrors:
    def __init__(
        self,
        client: Client,
        namespaces: tuple[str, ...],
        *,
        executor: str,
        kinds: Sequence[JobKind],
        groups: Sequence[Resource],
        on_job: OnJob,
        on_pod: OnPod,
        on_group: OnGroup,
        on_kai_group: OnKaiGroup,
        log: LogLike,
    ) -> None:
        self._client = client
        self._selector = f"{labels.EXECUTOR}={labels.value(executor)}"
        self.aside = SetAside()
        self._log = log
        self._jobs: dict[tuple[JobKind, str], Reflector[JobObject]] = {}
        self._pods: dict[str, Reflector[PodObject]] = {}
        self._groups: dict[tuple[Resource, str], GroupMirror] = {}
        for namespace in namespaces:
            for kind in kinds:
                self._jobs[kind, namespace] = self._mirror(
                    kind.resource, kind.object_type, namespace, partial(on_job, kind, namespace)
                )
            self._pods[namespace] = self._mirror(PODS, PodObject, namespace, on_pod)
            if (volcanos := VOLCANO_POD_GROUPS) in groups:
                mirror = self._mirror(volcanos, GroupObject, namespace, on_group)
                self._groups[volcanos, namespace] = mirror
            if (kais := KAI_POD_GROUPS) in groups:
                of_kai = self._mirror(kais, KaiGroupObject, namespace, on_kai_group)
                self._groups[kais, namespace] = of_kai

    def _mirror(
        self, kind: Resource, type_: type[T], namespace: str, hear: Callable[[Change[T]], None]
    ) -> Reflector[T]:
        return Reflector(
            self._client,
            kind,
            type_,
            namespace=namespace,
            label_selector=self._selector,
            on_change=lambda change: self._hear(kind, change, lambda: hear(change)),
            absent_s=ABSENT_S,
            log=self._log,
        )

    def _hear(self, kind: Resource, change: Change[Any], hear: Callable[[], None]) -> None:
        """Handle a change. An object that raises is skipped until it changes."""
        with self.aside.trying(Phase.HEARING, kind, metadata_of(change)):
            hear()
        for odd in self.aside.take_unreported():
            self._log.error(
                "object skipped",
                error=odd.error,
                object=f"{odd.metadata.namespace}/{odd.metadata.name}",
                why=odd.why,
            )

    def _all(self) -> list[Mirror]:
        return [*self._jobs.values(), *self._pods.values(), *self._groups.values()]

    async def run(self, stopping: asyncio.Event) -> None:
        await asyncio.gather(*(mirror.run(stopping) for mirror in self._all()))

    def _of(self, namespace: str) -> list[Mirror]:
        """Return the mirrors that decide what exists. Groups only explain waits."""
        jobs = [jobs for (_, where), jobs in self._jobs.items() if where == namespace]
        return [*jobs, self._pods[namespace]]

    def closed(self, namespace: str, now_s: float) -> str:
        """Return why a namespace is not readable; "" = readable, or about to be."""
        for mirror in self._of(namespace) if namespace in self._pods else ():
            if mirror.faults.denied_for_s(now_s) >= GRACE_S:
                return mirror.faults.reason
        return ""

    def all_closed(self, now_s: float) -> dict[str, str]:
        found = {namespace: self.closed(namespace, now_s) for namespace in self._pods}
        return {namespace: why for namespace, why in found.items() if why}

    def complete(self, now_s: float) -> bool:
        """Return whether every readable namespace is listed, and there is one."""
        closed = self.all_closed(now_s)
        rest = [namespace for namespace in self._pods if namespace not in closed]
        groups = [
            mirror
            for (_, where), mirror in self._groups.items()
            if where in rest and not (mirror.faults.is_absent or mirror.faults.denied_for_s(now_s))
        ]
        needed = [*groups, *(mirror for where in rest for mirror in self._of(where))]
        return bool(rest) and all(mirror.resource_version for mirror in needed)

    def unanswered(self) -> str:
        """Return why the API server does not answer; "" = it does."""
        silent = [mirror for mirror in self._all() if mirror.faults.is_unanswered]
        return silent[0].faults.reason if silent else ""

    @property
    def heard_at_s(self) -> float:
        """When the API server was heard last."""
        return max(mirror.last_seen_s for mirror in self._all())

    def jobs(self, kind: JobKind, namespace: str) -> Mapping[tuple[str, str], JobObject]:
        """Return objects by namespace and name."""
        return self._jobs[kind, namespace].objects

    def ill(self, now_s: float) -> str:
        """Return why data of open namespaces may be old; "" = current."""
        closed = self.all_closed(now_s)
        if len(closed) == len(self._pods):
            return next(iter(closed.values()))
        named: list[tuple[str, str, Mirror]] = [
            *((f"{kind.resource.plural} in", where, m) for (kind, where), m in self._jobs.items()),
            *(("pods in", where, pods) for where, pods in self._pods.items()),
        ]
        for what, where, mirror in named:
            if where not in closed and (mirror.faults.reason or mirror.age_s(now_s) > STALE_S):
                why = mirror.faults.reason or f"nothing heard for {STALE_S:g} s"
                return f"{what} {where}: {why}"
        return ""
