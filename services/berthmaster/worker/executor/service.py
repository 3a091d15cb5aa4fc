"""`berth serve executor`: run placements in one Kubernetes cluster.

The executor connects to the bus and to its own cluster's API server only. Either may be away for
hours: jobs continue, placements wait, and events are reported afterwards. Several replicas are
safe, because writes are guarded and objects have fixed names, but double the calls. Run one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.door_client.door_facts import DoorMirror
from berthmaster.lib.door_client.service_door import service_door
from berthmaster.lib.jobs.gangs import SERVED_BY, Gangs
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.kinds.table import KINDS
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import Forbidden, KubernetesError
from berthmaster.lib.kube.resources import KAI_POD_GROUPS, VOLCANO_POD_GROUPS, Resource
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.messages.workload import Placed
from berthmaster.lib.runtime.periodic import beats, stopped_within, unless_stopped
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.core.events import ClusterReached
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.core.limits import Limits
from berthmaster.worker.executor.core.manifest import Style
from berthmaster.worker.executor.hub_jobs import HubJobs
from berthmaster.worker.executor.hub_words import HubWords
from berthmaster.worker.executor.logs import LogDesk
from berthmaster.worker.executor.pod_logs import PodLogs
from berthmaster.worker.executor.progress import ProgressReader
from berthmaster.worker.executor.runtime import ClusterRuntime
from berthmaster.worker.executor.settings import ExecutorSettings
from berthmaster.worker.executor.shell import Counts, Shell
from berthmaster.worker.executor.writer import JobWriter

NAME: Final = "executor"
FIGURES_INTERVAL_S: Final = 1.0
LAST_LIMIT_S: Final = 2.0  # for writes and calls under way when told to stop
LOOK_AGAIN_S: Final = 2.0
LOG_BYTES_PER_S: Final = 2 * 1024 * 1024  # of all followed logs together
LOGS_AT_ONCE: Final = 64  # pods whose logs are read
PROGRESS_LOOKS_PER_S: Final = 2.0  # polls of all job logs together, for progress
RIGHTS_TRIES: Final = 3
GANGS_S: Final = 60.0  # interval of checks for gang scheduling, which may be installed or removed
NAMESPACE_S: Final = 2.0
# Between two looks at whether a namespace is being deleted. Kubernetes waits 5 s before it begins,
# and then takes our RoleBinding with the rest, and with it the right to remove a finalizer.
REACH_S: Final = 0.1  # between two looks at whether the API server answers: what was claimed stays

_OF_JOBS: Final = ("create", "watch", "patch", "delete")
_TELLING: Final = (VOLCANO_POD_GROUPS, KAI_POD_GROUPS)  # explain waiting or removed pods

_Value = Callable[[JobWriter, Counts, ProgressReader], int]
_COUNTERS: Final[tuple[tuple[str, str, _Value], ...]] = (  # name, help, and where the value is
    ("jobs_made", "Job objects made", lambda w, c, p: w.made),
    ("jobs_refused", "Job objects that the API server refused", lambda w, c, p: w.refused),
    ("jobs_stopped", "Job objects stopped before their end", lambda w, c, p: w.stopped),
    ("jobs_deleted", "Job objects deleted", lambda w, c, p: w.deleted),
    ("writes_stored", "Events stored", lambda w, c, p: c.stored),
    ("writes_refused", "Writes that came too late", lambda w, c, p: c.refused),
    ("writes_unknown", "Writes whose outcome stayed open", lambda w, c, p: c.unknown),
    ("stories_read", "Workloads read back from the log", lambda w, c, p: c.reloads),
    ("progress_looks", "Looks at logs for what jobs say of themselves", lambda w, c, p: p.looks),
    ("progress_unreadable", "Lines of that which cannot be understood", lambda *a: a[2].unreadable),
    (
        "workloads_frozen",
        "Workloads with events that this version cannot read",
        lambda w, c, p: c.frozen,
    ),
)


class ExecutorMetrics:
    def __init__(self, ctx: Context[ExecutorSettings]) -> None:
        metrics = ctx.metrics
        self._attempts = metrics.gauge("attempts", "Attempts of this executor")
        self._aside = metrics.gauge("set_aside", "Objects skipped because of errors")
        self._objects = metrics.gauge("objects", "Managed job objects in the cluster")
        self._calls = metrics.counter("api_calls", "Calls to the API server", ("verb", "resource"))
        self._away = metrics.gauge(
            "claims_held_back", "1 while claims wait because the API server does not answer"
        )
        self._lacking = metrics.gauge(
            "namespace_closed", "1 for a namespace with missing rights", ("namespace",)
        )
        self._counters = {what: metrics.counter(what, text) for what, text, _ in _COUNTERS}
        self._shown: dict[object, int] = {}

    def show(
        self, client: Client, runtime: ClusterRuntime, shell: Shell, progress: ProgressReader
    ) -> None:
        """Take over the present values."""
        self._attempts.set(shell.core.jobs)
        self._away.set(bool(shell.core.away))
        self._objects.set(runtime.attempts)
        self._aside.set(runtime.set_aside)
        for what, _, read in _COUNTERS:
            value = read(runtime.writer, shell.counts, progress)
            self._counters[what].inc(self._grown(what, value))
        for (verb, resource), value in client.calls.items():
            self._calls.labels(verb, resource).inc(self._grown((verb, resource), value))

    def closed(self, namespaces: Iterable[str], lacking: Mapping[str, str]) -> None:
        for namespace in namespaces:
            self._lacking.labels(namespace).set(namespace in lacking)

    def _grown(self, what: object, value: int) -> int:
        before = self._shown.get(what, 0)
        self._shown[what] = value
        return value - before


async def main(ctx: Context[ExecutorSettings]) -> None:
    async with (
        service_client(ctx, NAME) as client,
        service_door(ctx, ctx.settings.cluster) as door,
    ):
        if door is None:
            return
        served = await _served(ctx, client)
        if served is not None:
            await _Serving(ctx, door, client, served).run()


class Served(NamedTuple):
    """Optional features of the cluster."""

    kinds: tuple[JobKind, ...]  # kinds of job objects; those with a substitute only with all rights
    gangs: Gangs
    groups: tuple[Resource, ...] = ()  # readable kinds of PodGroups


async def _served(ctx: Context[ExecutorSettings], client: Client) -> Served | None:
    """Asked until the cluster answers; None if told to stop before."""
    while not ctx.stopping.is_set():
        try:
            kinds = [kind for kind in KINDS if await _makes(ctx, client, kind)]
            groups = [each for each in _TELLING if await _may(ctx, client, each, "watch")]
            return Served(tuple(kinds), await _gangs(ctx, client), tuple(groups))
        except KubernetesError as error:
            ctx.health.ready("cluster", False, str(error))
        await stopped_within(LOOK_AGAIN_S, ctx.stopping)
    return None


async def _makes(ctx: Context[ExecutorSettings], client: Client, kind: JobKind) -> bool:
    """Whether the cluster serves a kind of job objects, and, where another would do in its place,
    we may make and watch it everywhere. Raises KubernetesError."""
    if kind.has_substitute:
        return await _may(ctx, client, kind.resource, *_OF_JOBS)
    return kind is JOB or kind.resource.plural in await client.served(kind.resource.group_version)


async def _gangs(ctx: Context[ExecutorSettings], client: Client) -> Gangs:
    """Return the gang scheduling of the cluster. Objects without rights would block their pods.
    Raises KubernetesError.
    """
    settings = ctx.settings
    # If Volcano runs the jobs, other kinds use its queues too.
    given = settings.jobs if (settings.gangs, settings.jobs) == ("auto", "volcano") else ""
    for gangs, resource in SERVED_BY.items():
        wanted = Gangs.KUBERNETES if gangs is Gangs.WORKLOAD else gangs
        if (given or settings.gangs) not in ("auto", wanted.value):
            continue
        if resource.plural not in await client.served(resource.group_version):
            continue
        lacking = await _lacking(ctx, client, resource)
        if not lacking:
            return gangs
        ctx.log.warning(
            "gang scheduling lacks rights",
            kind=f"{resource.kind} of {resource.group}",
            namespaces=",".join(lacking),
        )
    return Gangs.NONE


async def _may(
    ctx: Context[ExecutorSettings], client: Client, resource: Resource, *verbs: str
) -> bool:
    """Return whether an optional kind is served, with all these rights in each namespace. Raises
    KubernetesError.
    """
    if resource.plural not in await client.served(resource.group_version):
        return False
    for verb in verbs:
        lacking = await _lacking(ctx, client, resource, verb)
        if lacking:
            ctx.log.warning(
                f"{resource.kind} of {resource.group} is served, and we may not use all of it",
                right=f"{verb} {resource.plural} of {resource.group}",
                namespaces=",".join(lacking),
            )
            return False
    return True


async def _lacking(
    ctx: Context[ExecutorSettings], client: Client, resource: Resource, verb: str = "create"
) -> list[str]:
    """Return namespaces without this right. A server needs a moment to load a new Role."""
    lacking = list(ctx.settings.namespaces)
    for _ in range(RIGHTS_TRIES):
        allowed = [await client.can(verb, resource, namespace=each) for each in lacking]
        lacking = [each for each, yes in zip(lacking, allowed, strict=True) if not yes]
        if not lacking or await stopped_within(LOOK_AGAIN_S, ctx.stopping):
            break
    return lacking


class _Serving:
    def __init__(
        self, ctx: Context[ExecutorSettings], door: DoorClient, client: Client, served: Served
    ) -> None:
        settings = ctx.settings
        self._ctx = ctx
        self._door = door
        self._client = client
        limits = Limits(
            start_s=settings.start_limit_s,
            queue_s=settings.queue_limit_s,
            gang_s=settings.gang_limit_s,
        )
        core = Executor(settings.cluster, limits=limits)
        offers = Offers()
        style = Style(
            kai_scheduler=settings.kai_scheduler,
            kai_queue=settings.kai_queue,
            run_as_non_root=settings.run_as_non_root,
            scheduler=settings.scheduler,
            gangs=served.gangs,
            kinds=tuple(kind for kind in served.kinds if kind.setting in ("", settings.jobs)),
            kai_gangs=settings.gangs == "auto",
            volcano_scheduler=settings.volcano_scheduler,
            volcano_queue=settings.volcano_queue,
        )
        writer = JobWriter(client, core.name, settings.namespaces, offers, style, door.now)
        runtime = ClusterRuntime(
            client,
            writer,
            executor=core.name,
            namespaces=settings.namespaces,
            kinds=served.kinds,
            groups=served.groups,
            offers=offers,
            clock=door.now,
            log=ctx.log,
        )
        self._hub_jobs = HubJobs(client, settings.namespaces, door, ctx.log)
        source = PodLogs(client, runtime, self._hub_jobs)
        self._desk = LogDesk(
            door,
            source,
            bytes_per_s=LOG_BYTES_PER_S,
            pods_at_once=LOGS_AT_ONCE,
        )
        self._progress = ProgressReader(source, looks_per_s=PROGRESS_LOOKS_PER_S, clock=door.now)
        self._hub_words = HubWords(self._progress, self._desk, self._hub_jobs, door, core.name)
        shell = Shell(
            door,
            core,
            runtime,
            logs=self._desk,
            progress=self._progress,
            hub_words=self._hub_words,
            service=NAME,
            serves=self._serves,
        )
        self._offers, self._runtime, self._shell = offers, runtime, shell
        self._untold: set[Attempt] = set()  # claims in namespaces no longer served
        self._told: Mapping[str, str] = {}  # namespaces with missing rights

    async def run(self) -> None:
        ctx, runtime, shell = self._ctx, self._runtime, self._shell
        ctx.health.ready("cluster", False, "its objects have not been listed")
        ctx.health.ready("fleet", False, "the nodes' facts have not been read")
        listed = asyncio.Event()
        mirror = DoorMirror(self._door, ["node"], on_fact=lambda seen: self._offers.take(seen.fact))
        ctx.spawn(mirror.run(caught_up=listed.set), name="mirror of the nodes' facts")
        watching = ctx.spawn(runtime.run(ctx.stopping), name="mirrors of the cluster")
        if await unless_stopped(listed.wait(), ctx.stopping) is None:
            return
        ctx.health.ready("fleet", True)
        working = ctx.spawn(shell.run(ctx.stopping), name="executor")
        ctx.spawn(self._watch_reach(), name="whether the API server answers")
        ctx.spawn(self._watch_gangs(), name="what starts gangs")
        ctx.spawn(self._watch_namespaces(), name="namespaces that are being deleted")
        ctx.spawn(self._desk.run(ctx.stopping), name="logs of pods")
        ctx.spawn(self._progress.run(ctx.stopping), name="what jobs say of themselves")
        ctx.spawn(self._hub_jobs.run(ctx.stopping), name="pods of the hub's jobs")
        ctx.spawn(self._hub_words.run(ctx.stopping), name="what the hub's jobs say")
        figures = ExecutorMetrics(ctx)
        async for _ in beats(FIGURES_INTERVAL_S, ctx.stopping):
            ill = runtime.ill()
            ctx.health.ready("cluster", not ill and runtime.ready, ill or "not listed yet")
            ctx.health.ready("bus", self._door.conn.connected, "no connection to NATS")
            ctx.health.ready("door", not self._door.silent, self._door.silent)
            self._tell_lacking(figures)
            figures.show(self._client, runtime, shell, self._progress)
        await self._desk.close()
        await asyncio.wait({working, watching}, timeout=LAST_LIMIT_S)

    async def _watch_namespaces(self) -> None:
        """Let go of all objects in a namespace that is being deleted."""
        runtime = self._runtime
        unknown: set[str] = set()  # namespaces that the Role hides
        async for _ in beats(NAMESPACE_S, self._ctx.stopping):
            for namespace in self._ctx.settings.namespaces:
                try:
                    if await runtime.writer.is_leaving(namespace):
                        await runtime.release(namespace)
                    unknown.discard(namespace)
                except Forbidden as error:
                    if namespace not in unknown:
                        unknown.add(namespace)
                        self._ctx.log.warning(
                            "namespace not readable", namespace=namespace, why=str(error)
                        )
                except KubernetesError:
                    pass  # reported by the mirrors

    async def _watch_reach(self) -> None:
        """Stop claiming while the cluster cannot create anything."""
        runtime, shell = self._runtime, self._shell
        async for _ in beats(REACH_S, self._ctx.stopping):
            away = runtime.away()
            if bool(away) != bool(shell.core.away):
                if away:
                    self._ctx.log.warning("claiming paused, API server silent", why=away)
                else:
                    self._ctx.log.info("claiming resumed")
                shell.feed(ClusterReached(away))

    async def _watch_gangs(self) -> None:
        """Update the gang scheduling of later jobs."""
        ctx, writer = self._ctx, self._runtime.writer
        ctx.log.info("gang scheduling selected", by=writer.style.gangs.value)
        if ctx.settings.jobs == "volcano":
            what = (
                "Volcano's"
                if VOLCANO_JOB in writer.style.kinds
                else "Kubernetes', as it has no other"
            )
            ctx.log.info("job kinds selected", of=what)
        while not await stopped_within(GANGS_S, ctx.stopping):
            try:
                gangs = await _gangs(ctx, self._client)
            except KubernetesError:
                continue  # reported by the mirrors
            if gangs is not writer.style.gangs:
                writer.style = writer.style._replace(gangs=gangs)
                ctx.log.info("gang scheduling selected", by=gangs.value)

    def _tell_lacking(self, figures: ExecutorMetrics) -> None:
        """Report namespaces without a Role. Other namespaces continue."""
        ctx, lacking = self._ctx, self._runtime.lacking()
        names = ctx.settings.namespaces
        words = "; ".join(f"namespace {name}: {why}" for name, why in sorted(lacking.items()))
        ctx.health.ready("rights", len(lacking) < len(names), words, note=words)
        figures.closed(names, lacking)
        for name, why in lacking.items():
            if name not in self._told:
                ctx.log.warning("namespace not served", namespace=name, why=why)
        for name in self._told:
            if name not in lacking:
                ctx.log.info("namespace served again", namespace=name)
        self._told = lacking

    def _serves(self, placed: Placed) -> bool:
        """Return whether this process can carry out or report an earlier run's claim."""
        attempt = Attempt(placed.tenant, placed.id, placed.attempt)
        if placed.target.namespace in self._ctx.settings.namespaces:
            return True
        if self._runtime.holds(attempt):
            return True
        why = f"{attempt.id} was claimed for namespace {placed.target.namespace}"
        self._ctx.health.ready("namespaces", False, f"{why}, which is not served any more")
        if attempt not in self._untold:
            self._untold.add(attempt)
            self._ctx.log.error("claim in unserved namespace", why=why)
        return False


SERVICE = Service(NAME, ExecutorSettings, main)
