"""`berth serve hub`: all that Berthmaster runs beside a hub, in one pod.

The bus too, unless another is named: a nats-server with its data, keys and certificates in one
folder, served over TLS to the agents in other clusters. `berth cluster add` in this pod lets one
in. Where the bus is somebody else's, the folder of credentials is given and the streams are made if
the one user who may is among them.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berthmaster.bus.keys import KeysError, creds_file
from berthmaster.bus.permissions import PUSHER
from berthmaster.bus.reload import reload_servers
from berthmaster.runtime.confinement import version
from berthmaster.runtime.periodic import beats
from berthmaster.runtime.service import Context, Service
from berthmaster.runtime.settings import setting
from berthmaster.supervisor.plan import (
    HUB_ALSO,
    HUB_SERVICES,
    KARMADA,
    PIPELINE,
    KubeTarget,
    Mode,
    Sync,
    UpOptions,
    entries,
)
from berthmaster.supervisor.pod import Pod, PodSettings
from berthmaster.supervisor.processes import NO_LIMIT_S
from berthmaster.supervisor.stack import SETUP, Stack, make_streams, until_answered

RENEW_EVERY_S: Final = 24 * 3600.0


def _also(names: tuple[str, ...]) -> str:
    return "" if set(names) <= set(HUB_ALSO) else f"some of {', '.join(HUB_ALSO)}"


@dataclass(frozen=True, kw_only=True)
class HubSettings(PodSettings):
    """One hub."""

    nats_url: str = setting("", help="NATS servers that are there already; empty = one of its own")
    keys_dir: Path | None = setting(
        None,
        help="with --nats-url: folder with the credentials of each user, such as gateway.creds",
    )
    data_dir: Path = setting(
        Path("/data"), help="where the bus of its own keeps messages, keys and certificates"
    )
    nats_port: int = setting(4222, least=1, most=65535, help="of the bus of its own")
    external: tuple[str, ...] = setting(
        ("berth-hub.berth-system.svc",),
        help="host names and addresses under which agents reach the bus of its own; they stand in "
        "its certificate",
    )
    sync: Sync = setting("always", help="answer when the disk has it, or let it follow")
    mode: Mode = setting(
        "observe",
        help="observe: write nothing to the hub; order: keep the order of the MultiKueueConfigs; "
        "dispatch: nominate clusters for each Workload; needs Kubernetes 1.36 on the hub where a "
        "ClusterQueue preempts",
    )
    tenants: tuple[str, ...] = setting(("default",), help="make keys for these tenants")
    login_mapping: Path | None = setting(
        None,
        help="file that says whose tokens stand for which tenant or cluster: then the login "
        "service runs too; none = it does not",
    )
    karmada: Path | None = setting(
        None,
        help="kubeconfig of the API server of a Karmada control plane: then the service beside it "
        "runs too; none = it does not",
    )
    also: tuple[str, ...] = setting(
        (),
        check=_also,
        help="services beside the usual ones: ocm writes scores for Open Cluster Management, "
        "admission sees to AdmissionChecks that name a Placement",
    )


def options(settings: HubSettings) -> UpOptions:
    """The plan that these settings mean."""
    kubeconfig = settings.karmada
    karmada = KubeTarget(name=KARMADA, kubeconfig=kubeconfig) if kubeconfig else None
    beside = (KARMADA,) if karmada else ()
    return UpOptions(
        folder=settings.data_dir,
        services=(*PIPELINE, *HUB_SERVICES, *settings.also, *beside),
        nats_port=settings.nats_port,
        sync=settings.sync,
        tenants=settings.tenants,
        log_level=settings.log_level,
        hub=KubeTarget(name="hub", kubeconfig=settings.kubeconfig, context=settings.context),
        karmada=karmada,
        mode=settings.mode,
        external=settings.external,
        login_mapping=settings.login_mapping,
    )


async def main(ctx: Context[HubSettings]) -> None:
    """Run the hub until it is told to stop."""
    if not version():
        why = "this kernel has no Landlock, or does not let it be used"
        ctx.log.warning("services of this pod can read each other's credentials", why=why)
    pod = Pod(ctx)
    if ctx.settings.nats_url:
        await pod.live(_beside_a_bus(pod))
        return
    stack = Stack(
        options(ctx.settings),
        supervisor=pod.supervisor,
        child=pod.child,
        ports=pod.ports,
        start_limit_s=NO_LIMIT_S,
        slow=pod.slow,
    )
    ctx.spawn(_renew(ctx, stack), name="certificates")
    async with AsyncExitStack() as owned:
        await pod.live(owned.enter_async_context(stack))


async def _beside_a_bus(pod: Pod[HubSettings]) -> None:
    settings = pod.ctx.settings
    keys = settings.keys_dir
    told = [
        entry
        for entry in entries(options(settings))
        # Where somebody else keeps the accounts, there is nothing to hold the servers to.
        if entry.user != PUSHER or (keys and creds_file(keys, PUSHER).is_file())
    ]
    seeds = {entry.user: creds_file(keys, entry.user) for entry in told} if keys else {}
    if missing := [str(path) for path in seeds.values() if not path.is_file()]:
        raise KeysError(f"--keys-dir: there is no {', '.join(missing)}")
    if keys and (setup := creds_file(keys, SETUP)).is_file():

        async def once() -> None:
            url, ca_file = settings.nats_url, settings.nats_ca_file
            await make_streams(url, setup, ca_file, plaintext=settings.nats_plaintext)

        await until_answered(once, limit_s=NO_LIMIT_S, slow=pod.slow)
    await pod.start(told, seeds, keys=keys)


async def _renew(ctx: Context[HubSettings], stack: Stack) -> None:
    """A pod may live longer than a certificate."""
    async for _ in beats(RENEW_EVERY_S, ctx.stopping):
        if await asyncio.to_thread(stack.renew_certificates):
            await asyncio.to_thread(reload_servers, stack.folder)
            ctx.log.info("the server's certificate was renewed")


SERVICE = Service("hub", HubSettings, main)
