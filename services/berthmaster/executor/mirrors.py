"""Mirrors of what is ours in a cluster: by namespace, Jobs, pods, and JobSets where served."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from berthmaster.executor.kinds import JobObject, PodObject
from berthmaster.kubernetes import labels
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.reflector import Change, Reflector
from berthmaster.kubernetes.resources import JOB_SETS, JOBS, PODS, Resource
from berthmaster.kubernetes.transport import LogLike

STALE_S: Final = 180.0  # without a sign of the API server, which gives one every minute
OnJob = Callable[[Resource, str, Change[JobObject]], None]  # kind, namespace
OnPod = Callable[[Change[PodObject]], None]


class Mirrors:
    """All mirrors of one executor."""

    def __init__(
        self,
        client: Client,
        namespaces: tuple[str, ...],
        *,
        executor: str,
        job_sets: bool,
        on_job: OnJob,
        on_pod: OnPod,
        log: LogLike,
    ) -> None:
        self._client = client
        self._selector = f"{labels.EXECUTOR}={labels.value(executor)}"
        self._on_job = on_job
        self._log = log
        self._jobs: dict[tuple[Resource, str], Reflector[JobObject]] = {}
        self._pods: dict[str, Reflector[PodObject]] = {}
        for namespace in namespaces:
            for kind in (JOBS, JOB_SETS) if job_sets else (JOBS,):
                self._jobs[kind, namespace] = self._of_jobs(kind, namespace)
            self._pods[namespace] = Reflector(
                client,
                PODS,
                PodObject,
                namespace=namespace,
                label_selector=self._selector,
                on_change=on_pod,
                log=log,
            )

    def _of_jobs(self, kind: Resource, namespace: str) -> Reflector[JobObject]:
        return Reflector(
            self._client,
            kind,
            JobObject,
            namespace=namespace,
            label_selector=self._selector,
            on_change=lambda change: self._on_job(kind, namespace, change),
            log=self._log,
        )

    def _all(self) -> list[Reflector[JobObject] | Reflector[PodObject]]:
        return [*self._jobs.values(), *self._pods.values()]

    async def run(self, stopping: asyncio.Event) -> None:
        """Mirror until told to stop."""
        await asyncio.gather(*(mirror.run(stopping) for mirror in self._all()))

    @property
    def complete(self) -> bool:
        """Whether everything was listed once."""
        return all(mirror.resource_version for mirror in self._all())

    def jobs(self, kind: Resource, namespace: str) -> Mapping[tuple[str, str], JobObject]:
        """What is there, by namespace and name."""
        return self._jobs[kind, namespace].objects

    def ill(self, now_s: float) -> str:
        """Why what they hold may be old, in words; "" = it is not."""
        named = [(f"{kind.plural} in {where}", m) for (kind, where), m in self._jobs.items()]
        for what, jobs in named:
            if jobs.trouble or jobs.age_s(now_s) > STALE_S:
                return f"{what}: {jobs.trouble or f'nothing heard for {STALE_S:g} s'}"
        for where, pods in self._pods.items():
            if pods.trouble or pods.age_s(now_s) > STALE_S:
                return f"pods in {where}: {pods.trouble or f'nothing heard for {STALE_S:g} s'}"
        return ""
