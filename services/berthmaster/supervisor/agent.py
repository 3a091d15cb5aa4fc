"""`berth serve agent`: all that Berthmaster runs in one worker cluster, in one pod.

Inventory and executor, and a telemetry agent where that was asked for, under the one key that
`berth cluster add` made. It connects to the hub's bus and is connected to by nobody.
"""

from dataclasses import dataclass

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
    seeds = {user: settings.nats_creds_file} if settings.nats_creds_file else {}
    ctx.log.info("agent", user=user, inbox_prefix=inbox_prefix(user))
    await pod.live(pod.start(told, seeds))


SERVICE = Service("agent", AgentSettings, main)
