"""`berth serve agent`: all that Berthmaster runs in one worker cluster, in one pod.

Inventory and executor, and a telemetry agent where that was asked for, under the one key that
`berth cluster add` made. It connects to the hub's bus and is connected to by nobody.

Or without a key: then it shows the login service a token of its pod, and does so again before what
it got for it ends.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from berthmaster.bus.claims import Creds
from berthmaster.bus.keys import creds_file
from berthmaster.bus.login import keep_logged_in, log_in, read_token
from berthmaster.bus.permissions import inbox_prefix
from berthmaster.bus.subjects import SubjectError, token
from berthmaster.runtime.service import Context, Service
from berthmaster.runtime.settings import required, setting
from berthmaster.supervisor.plan import (
    WORKER_ALSO,
    WORKER_SERVICES,
    Entry,
    KubeTarget,
    worker_entries,
)
from berthmaster.supervisor.pod import Pod, PodSettings


def _name(text: str) -> str:
    try:
        token(text)
    except SubjectError as error:
        return f"a name that can stand in a subject ({error})"
    return ""


def _some(names: tuple[str, ...]) -> str:
    return "" if names else "at least one namespace"


def _also(names: tuple[str, ...]) -> str:
    return "" if set(names) <= set(WORKER_ALSO) else f"some of {', '.join(WORKER_ALSO)}"


@dataclass(frozen=True, kw_only=True)
class AgentSettings(PodSettings):
    """One worker cluster's agent."""

    cluster: str = required(
        check=_name, help="this cluster's name, as its MultiKueueCluster on the hub is named"
    )
    namespaces: tuple[str, ...] = required(
        check=_some,
        help="namespaces in which jobs may be made; more than the Role allows is denied",
    )
    telemetry: bool = setting(
        False,
        help="read GPUs from this pod too; for a cluster of one node, or with a dcgm-exporter of "
        "the whole cluster. Else a DaemonSet of `berth serve telemetry` does it",
    )
    sentinel_file: Path | None = setting(
        None,
        help="sentinel.creds of the bus: where there is such a file and none of this agent's own "
        "credentials, it logs in with its token",
    )
    login_token_file: Path = setting(
        Path("/var/run/secrets/berth/token"),
        help="token of the pod for the login service, read anew at each login; it must be made for "
        "the audience that the service's mapping names",
    )
    also: tuple[str, ...] = setting(
        (),
        check=_also,
        help="services beside the usual ones: ocm keeps ClusterClaims in this cluster",
    )


def entries(settings: AgentSettings) -> list[Entry]:
    """What runs, all of it as one user of the bus."""
    user = f"agent.{token(settings.cluster)}"
    here = KubeTarget(
        name=settings.cluster, kubeconfig=settings.kubeconfig, context=settings.context
    )
    services = (*WORKER_SERVICES, *settings.also)
    found = worker_entries(here, settings.namespaces, services, user=user)
    if settings.telemetry:
        told = ("--cluster", settings.cluster)
        found.append(Entry(f"telemetry-{token(settings.cluster)}", "telemetry", user, told))
    return found


async def main(ctx: Context[AgentSettings]) -> None:
    """Run the agent until it is told to stop."""
    settings = ctx.settings
    pod = Pod(ctx)
    told = entries(settings)
    user = told[0].user
    ctx.log.info("agent", user=user, inbox_prefix=inbox_prefix(user))
    own = settings.nats_creds_file
    sentinel = settings.sentinel_file
    if sentinel is None or not sentinel.is_file() or (own is not None and own.is_file()):
        await pod.live(pod.start(told, {user: own} if own else {}))
        return
    with tempfile.TemporaryDirectory(prefix="berth-agent-") as folder:
        await pod.live(_after_login(ctx, pod, sentinel, creds_file(Path(folder), user), told))


async def _after_login(
    ctx: Context[AgentSettings],
    pod: Pod[AgentSettings],
    sentinel: Path,
    path: Path,
    entries: Sequence[Entry],
) -> None:
    """Start once there are credentials; they are renewed for as long as the pod lives."""
    settings = ctx.settings
    there = asyncio.Event()
    failing = ctx.metrics.gauge("login_failing", "1 while the login service does not let us in")

    async def login(seed: str) -> Creds:
        token = await asyncio.to_thread(read_token, settings.login_token_file)
        cluster = settings.cluster
        return await log_in(settings, sentinel, token, ctx.log, seed=seed, cluster=cluster)

    def told(trouble: str) -> None:
        failing.set(bool(trouble))
        ctx.health.ready("login", not trouble, trouble)
        if trouble:
            ctx.log.warning("not let in; tried again", why=trouble)
        else:
            ctx.log.info("logged in")
            there.set()

    ctx.health.ready("login", False, "not logged in yet")
    ctx.spawn(keep_logged_in(login, path, ctx.stopping, told=told), name="login")
    await there.wait()
    await pod.start(entries, {entries[0].user: path})


SERVICE = Service("agent", AgentSettings, main)
