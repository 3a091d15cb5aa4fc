"""`berth tour`: the choice of clusters, shown on a real hub and real workers.

Two tours, each with its own Jobs on the hub. The Jobs are deleted at the end, whatever happens:

- ``gpus``: each job goes to the cluster with most free GPUs at that time, and each job changes the
  free GPUs;
- ``labels``: all jobs go to clusters with a label, such as accelerator=nvidia-tesla-t4. Meanwhile
  the LocalQueue carries the annotation that requires the label.

Without `--hub` the hub is that of the lab on this machine (`berth lab`). Another hub needs mode
dispatch (`berth doctor --mode dispatch`) and the service that nominates: a `berth up --mode
dispatch` or a hub's pod.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

from berthmaster.cli.fleet.rows import fleet_rows
from berthmaster.cli.session import (
    EXIT_FAILED,
    Session,
    bus_command,
    option_group,
    target_of,
    usage,
)
from berthmaster.client import BerthError, Client
from berthmaster.lab.sandbox.state import lab_folder, running
from berthmaster.lib.accelerators.table import NVIDIA
from berthmaster.lib.kueue.names import MULTIKUEUE, QUEUE_LABEL, SELECTOR_ANNOTATION
from berthmaster.lib.messages.fleet import ClusterProfile, Membership
from berthmaster.lib.supervisor.plan import PlanError, kube_target

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.lib.kube.client import Client as Api

CLUSTER_LIMIT_S: Final = 60.0
SEEN_LIMIT_S: Final = 90.0  # seconds until the fleet's free GPUs reflect a placed job
POLL_S: Final = 0.25
IMAGE: Final = "busybox"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    cluster: str
    free_gpus: dict[str, float]  # free GPUs of every cluster at the submission
    right: bool


class TourReport(msgspec.Struct, frozen=True, kw_only=True):
    story: str
    jobs: list[Sent]
    right: bool


def goes_to_most_free(cluster: str, free: dict[str, float]) -> bool:
    """Return whether a cluster had the most free GPUs."""
    return bool(free) and free.get(cluster, -1.0) >= max(free.values())


def has_labels(labels: dict[str, str], wanted: dict[str, str]) -> bool:
    """Return whether a cluster has all requested labels."""
    return wanted.items() <= labels.items()


def job_of(
    name: str, namespace: str, queue: str, gpus: int, annotations: dict[str, str]
) -> dict[str, Any]:
    """Return a Job for MultiKueue that only sleeps."""
    amounts = {"cpu": "100m", NVIDIA: str(gpus)}
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sleep", "600"],
        "resources": {"requests": amounts, "limits": {NVIDIA: str(gpus)}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {QUEUE_LABEL: queue}},
        "spec": {
            "suspend": True,
            "managedBy": MULTIKUEUE,
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


@click.group()
def tour() -> None:
    """Show on real clusters where jobs go, and why."""


_flags = option_group(
    click.option(
        "--hub", metavar="CLUSTER", help="Hub, as for `berth up`. [default: the hub of `berth lab`]"
    ),
    click.option("--namespace", metavar="NS", help="Namespace of the tour's Jobs; needs --hub."),
    click.option("--local-queue", metavar="NAME", help="LocalQueue in it; needs --hub."),
    click.option(
        "--annotation",
        "annotations",
        multiple=True,
        metavar="KEY=VALUE",
        help="Annotation of the Jobs' pods, if your clusters require some; may be repeated.",
    ),
    click.option("--jobs", type=click.IntRange(1, 50), default=4, show_default=True),
)


@tour.command()
@_flags
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True, help="Of a job.")
@bus_command
async def gpus(
    session: Session,
    hub: str | None,
    namespace: str | None,
    local_queue: str | None,
    annotations: tuple[str, ...],
    jobs: int,
    gpus: int,
) -> int:
    """Show jobs going to the cluster with most free GPUs at each time."""
    ground = _ground(session, hub, namespace, local_queue, annotations)
    sent: list[Sent] = []
    async with (
        ground.session.client() as berth,
        _hub(ground.hub) as api,
        _Jobs(api, ground.namespace, ground.local_queue, ground.annotations) as made,
    ):
        for _ in range(jobs):
            free = await _free(berth)
            name = await made.submit(gpus)
            cluster = await made.cluster_of(name)
            right = goes_to_most_free(cluster, free)
            sent.append(Sent(job=name, cluster=cluster, free_gpus=free, right=right))
            session.out.say(f"{name} → {cluster} ({_shown(free)} free)")
            await _until_seen(berth, cluster, free.get(cluster, 0.0) - gpus)
    return _end(session, "gpus", sent)


@tour.command()
@_flags
@click.option(
    "--label",
    default="accelerator=nvidia-tesla-t4",
    show_default=True,
    metavar="KEY=VALUE",
    help="Only clusters with this label.",
)
@bus_command
async def labels(
    session: Session,
    hub: str | None,
    namespace: str | None,
    local_queue: str | None,
    annotations: tuple[str, ...],
    jobs: int,
    label: str,
) -> int:
    """Show jobs going to clusters with a label, although others have free GPUs."""
    key, equals, value = label.partition("=")
    if not key or not equals:
        usage(f"--label {label!r}: right is KEY=VALUE")
    ground = _ground(session, hub, namespace, local_queue, annotations)
    sent: list[Sent] = []
    async with ground.session.client() as berth, _hub(ground.hub) as api:
        known = await _labels(berth)
        if not any(has_labels(each, {key: value}) for each in known.values()):
            names = ", ".join(sorted(known)) or "none"
            raise BerthError(f"no cluster has the label {label}; clusters: {names}")
        async with (
            _selected(api, ground.namespace, ground.local_queue, label),
            _Jobs(api, ground.namespace, ground.local_queue, ground.annotations) as made,
        ):
            free = await _free(berth)
            names_ = [await made.submit(1) for _ in range(jobs)]
            for name in names_:
                cluster = await made.cluster_of(name)
                right = has_labels(known.get(cluster, {}), {key: value})
                sent.append(Sent(job=name, cluster=cluster, free_gpus=free, right=right))
                session.out.say(f"{name} → {cluster}")
    return _end(session, f"labels: {label}", sent)


class _Ground(NamedTuple):
    """The cluster and settings of a tour."""

    session: Session
    hub: str
    namespace: str
    local_queue: str
    annotations: tuple[str, ...]


def _ground(
    session: Session,
    hub: str | None,
    namespace: str | None,
    local_queue: str | None,
    annotations: tuple[str, ...],
) -> _Ground:
    """Return the hub of the flags, or the lab of this machine with its own bus."""
    if hub is not None:
        if not namespace or not local_queue:
            usage("--hub needs --namespace and --local-queue")
        return _Ground(session, hub, namespace, local_queue, annotations)
    if namespace or local_queue:
        usage("--namespace and --local-queue need --hub")
    lab = running(lab_folder(os.environ))
    if lab is None:
        usage("no lab runs here: start one with `berth lab`, or name a hub with --hub")
    target = target_of(
        server=None, context=None, tenant=None, creds_file=None, ca_file=None, data=Path(lab.data)
    )
    return _Ground(
        Session(target, session.out, session.timeout_s),
        f"{lab.hub}={lab.kubeconfig}:{lab.hub}",
        lab.namespace,
        lab.local_queue,
        (*lab.annotations, *annotations),
    )


def _end(session: Session, story: str, sent: list[Sent]) -> int:
    report = TourReport(story=story, jobs=sent, right=all(one.right for one in sent))
    session.out.document(report, lambda: screen(report))
    return 0 if report.right else EXIT_FAILED


def screen(report: TourReport) -> "RenderableType":
    from rich.console import Group

    from berthmaster.cli.output.terminal import plain_table, safe

    table = plain_table("JOB", "CLUSTER", "", "FREE GPUS THEN", right=())
    for one in report.jobs:
        table.add_row(
            safe(one.job),
            safe(one.cluster),
            safe("as said" if one.right else "elsewhere", style="green" if one.right else "red"),
            safe(_shown(one.free_gpus)),
        )
    verdict = "Every job went where it should." if report.right else "Not every job did."
    return Group(table, safe(), safe(verdict))


def _shown(free: dict[str, float]) -> str:
    ranked = sorted(free.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name} {gpus:g}" for name, gpus in ranked)


# ---- the bus


async def _free(berth: Client) -> dict[str, float]:
    rows = await fleet_rows(berth)
    return {row.cluster: row.free_gpus for row in rows if row.free_gpus is not None}


async def _labels(berth: Client) -> dict[str, dict[str, str]]:
    """Return the labels of every cluster. The hub's value overrides the cluster's own."""
    own: dict[str, dict[str, str]] = {}
    hubs: dict[str, dict[str, str]] = {}
    for seen in await berth.fleet():
        match seen.fact:
            case ClusterProfile() as profile:
                own[profile.cluster] = profile.labels
            case Membership() as membership:
                hubs[membership.cluster] = membership.labels
            case _:
                pass
    return {name: own.get(name, {}) | hubs.get(name, {}) for name in {*own, *hubs}}


async def _until_seen(berth: Client, cluster: str, free_gpus: float) -> None:
    """Wait until the fleet reflects the last choice, so that the next choice knows it."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + SEEN_LIMIT_S
    while (await _free(berth)).get(cluster, 0.0) > free_gpus:
        if loop.time() > deadline_s:
            raise BerthError(f"{cluster} does not report the job that went there: is its pod up?")
        await asyncio.sleep(POLL_S)


# ---- the hub


@asynccontextmanager
async def _hub(text: str) -> AsyncIterator["Api"]:
    from berthmaster.lib.kube.client import Client as Api
    from berthmaster.lib.kube.config import from_kubeconfig
    from berthmaster.lib.kube.errors import KubernetesError
    from berthmaster.lib.runtime.log import Log

    try:
        target = kube_target(text, Path.is_file)
    except PlanError as error:
        usage(str(error))
    log = Log("tour", level="error", format="text")
    try:
        access = await from_kubeconfig(target.kubeconfig, target.context)
        async with await Api.open(access, user_agent="berth-tour", log=log) as api:
            yield api
    except KubernetesError as error:
        raise BerthError(f"hub {target.name}: {error}") from error


class _Jobs:
    """The tour's Jobs on the hub, deleted at the end."""

    def __init__(
        self, api: "Api", namespace: str, queue: str, annotations: tuple[str, ...]
    ) -> None:
        pairs = [text.partition("=") for text in annotations]
        self._annotations = {key: value for key, _, value in pairs}
        self._api = api
        self._namespace = namespace
        self._queue = queue
        self._prefix = f"tour-{secrets.token_hex(3)}"
        self._names: list[str] = []

    async def __aenter__(self) -> "_Jobs":
        return self

    async def __aexit__(self, *_: object) -> None:
        from berthmaster.lib.kube.resources import JOBS

        for name in self._names:
            await self._api.delete(JOBS.path(namespace=self._namespace, name=name))

    async def submit(self, gpus: int) -> str:
        """Create another Job."""
        from berthmaster.lib.kube.objects import Object
        from berthmaster.lib.kube.resources import JOBS

        name = f"{self._prefix}-{len(self._names) + 1}"
        body = job_of(name, self._namespace, self._queue, gpus, self._annotations)
        await self._api.create(JOBS.path(namespace=self._namespace), body, Object)
        self._names.append(name)
        return name

    async def cluster_of(self, name: str) -> str:
        """Return the cluster that MultiKueue chose. Raises BerthError after a limit."""
        from berthmaster.lib.kube.resources import KUEUE_WORKLOADS
        from berthmaster.lib.kueue.workloads import KueueWorkload

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + CLUSTER_LIMIT_S
        while True:
            pages = self._api.list_pages(KUEUE_WORKLOADS, KueueWorkload, namespace=self._namespace)
            async for page in pages:
                for one in page.items:
                    owners = [owner.name for owner in one.metadata.owner_references]
                    if name in owners and one.status and one.status.cluster_name:
                        return one.status.cluster_name
            if loop.time() > deadline_s:
                raise BerthError(
                    f"{name} was sent nowhere in {CLUSTER_LIMIT_S:g} s: kubectl -n "
                    f"{self._namespace} describe workload, and berth doctor --mode dispatch"
                )
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def _selected(api: "Api", namespace: str, queue: str, label: str) -> AsyncIterator[None]:
    """Restrict the LocalQueue to clusters with this label, for the time of the block."""
    from berthmaster.lib.kube.objects import Object
    from berthmaster.lib.kube.resources import LOCAL_QUEUES

    path = LOCAL_QUEUES.path(namespace=namespace, name=queue)
    before = (await api.get(path, Object)).metadata.annotations.get(SELECTOR_ANNOTATION)

    def patch(text: str | None) -> dict[str, object]:
        return {"metadata": {"annotations": {SELECTOR_ANNOTATION: text}}}

    await api.merge_patch(path, patch(label), Object)
    try:
        await asyncio.sleep(1.0)  # watches see the change within this second
        yield
    finally:
        await api.merge_patch(path, patch(before), Object)
