"""Each user by its JWT, on a real server: what it may do and may not."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import msgspec
import nats
import pytest

from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import EXECUTOR_KINDS, STREAMS, grants, inbox_prefix
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.messages.families import AGENT_REQUESTS
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.durables import DURABLES
from berthmaster.lib.nats.errors import BusError, NoAnswer, NotPermitted
from berthmaster.lib.nats.streams import WORKLOADS, ensure_streams
from berthmaster.lib.nats.subjects import jetstream, without_lanes
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.tools import accounts_of
from tests.support.patience import ANSWER_S, hang_s

USERS = (
    "setup",
    "gateway",
    "resolver",
    "scorer",
    "archivist",
    "usage",
    "door",
    "telemetry",
    "emulator",
    "operator",
    "restorer",
    "tenant.acme",
    "tenant.rival",
    "executor.c1",
    "inventory.c1",
    "agent.c1",
    "members",
    "multikueue",
    "karmada",
    "admission",
    "ocm",
    "claims.c1",
    "telemetry.c1",
    "dashboard",
    "watcher",
    "viewer.acme",
    "steward",
    "figures",
    "figures.c1",
)


P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test, within a time limit."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), hang_s()))

    return run


class Case(NamedTuple):
    """What one user tries. Each line is `pub` or `sub` and a subject."""

    may: tuple[str, ...]
    may_not: tuple[str, ...]


API = "pub $JS.API."
LAST = "nobody.may"
EVENT = "pub berth.workload.acme.job-1."

# What runs in a cluster asks the door of that cluster and is told of it: nothing else exists.
IN_A_CLUSTER = Case(
    may=(
        *(f"pub berth.agent.c1.{verb}" for verb in (*AGENT_REQUESTS, "telemetry", "figures")),
        "sub berth.assign.c1.news",
        "sub berth.assign.c1.>",
        "sub berth.agent.c1.telemetry",
    ),
    may_not=(
        "pub berth.agent.c1",
        "sub berth.lane.*.agent.*.*",
        "pub berth.assign.c1.news",
        "pub berth.held.c1",
        "pub berth.inquiry.c1",
        "sub berth.held.*",
        "sub berth.agent.c1.tell",
        "sub berth.agent.*.tell",
        "sub berth.agent.c1.figures",
        "pub berth.figures.acme.c1.job-1",
        f"{EVENT}claimed.c1",
        f"{EVENT}succeeded.c1",
        f"{EVENT}cancelled.-",
        f"{EVENT}placed.c1",
        "pub berth.fleet.c1.alive",
        "pub berth.fleet.c1.node.n1",
        "pub berth.fleet.c1.score",
        "pub berth.telemetry.c1.n1",
        *(f"pub berth.lease.{name}.c1" for name in ("executor", "inventory", "claims")),
        *(f"pub berth.dead.{name}" for name in ("executor", "inventory", "telemetry", "claims")),
        "pub berth.decision.all",
        f"{API}INFO",
        f"{API}STREAM.NAMES",
        *(f"{API}STREAM.INFO.{stream}" for stream in STREAMS),
        *(f"{API}STREAM.MSG.GET.{stream}" for stream in STREAMS),
        *(f"{API}DIRECT.GET.{stream}" for stream in STREAMS),
        f"{API}CONSUMER.CREATE.WORKLOADS.x.berth.workload.*.*.placed.c1",
        f"{API}CONSUMER.CREATE.FLEET.x.berth.fleet.c1.>",
        f"{API}CONSUMER.MSG.NEXT.WORKLOADS.executor-c1-placed",
        "pub $JS.ACK.WORKLOADS.executor-c1-placed.1.1.1.1.0",
        "pub $JS.FC.WORKLOADS.x",
        "pub $O.SNAPSHOTS.C.x",
        "pub $SRV.PING",
        "sub berth.workload.>",
        "sub berth.event.>",
        "sub berth.stored.workload.>",
        "sub berth.fleet.c1.>",
        "sub _INBOX.>",
        "sub >",
    ),
)
OF_ANOTHER = (
    "pub berth.agent.c2.hello",
    "pub berth.agent.c2.tell",
    "sub berth.assign.c2.news",
    "sub berth.assign.>",
    "sub berth.agent.c2.telemetry",
    "sub berth.agent.*.telemetry",
)


def in_a_cluster(user: str) -> Case:
    other = f"sub _INBOX.{user.replace('c1', 'c2')}.x"
    return IN_A_CLUSTER._replace(may_not=(*IN_A_CLUSTER.may_not, *OF_ANOTHER, other))


CASES: Mapping[str, Case] = {
    **{
        user: in_a_cluster(user)
        for user in ("agent.c1", "executor.c1", "figures.c1", "inventory.c1", "claims.c1")
    },
    # On every node of the cluster, under one key.
    "telemetry.c1": Case(
        may=("pub berth.agent.c1.telemetry", "pub berth.agent.c1.hello"),
        may_not=(
            *(
                f"pub berth.agent.c1.{verb}"
                for verb in (*AGENT_REQUESTS, "figures")
                if verb != "hello"
            ),
            "pub berth.agent.c2.telemetry",
            "sub berth.agent.c1.telemetry",
            "sub berth.assign.c1.news",
            "pub berth.telemetry.c1.n1",
            f"{EVENT}claimed.c1",
            "sub _INBOX.agent.c1.x",
        ),
    ),
    **dict.fromkeys(("emulator", "telemetry", "figures"), IN_A_CLUSTER),  # of all clusters
    "door": Case(
        may=(
            *(f"{EVENT}{kind}.c1" for kind in EXECUTOR_KINDS),
            "pub berth.fleet.c1.alive",
            "pub berth.fleet.c1.node.n1",
            "pub berth.fleet.c1.copy.team-a.job-train",
            "pub berth.lease.executor.c1",
            "pub berth.lease.claims.c1",
            "pub berth.telemetry.c1.n1",
            "pub berth.figures.acme.c1.job-1",
            "pub berth.assign.c1.news",
            "pub berth.held.c1",
            "pub berth.dead.executor",
            "pub berth.dead.door",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            f"{API}STREAM.MSG.GET.CONTROL",
            f"{API}STREAM.MSG.GET.ARCHIVE",
            "pub berth.lease.log.door",
            f"{API}DIRECT.GET.WORKLOADS",
            "sub berth.stored.workload.>",
            f"{API}DIRECT.GET.FLEET",
            "sub berth.stored.fleet.>",
            "sub berth.agent.*.tell",
            "sub berth.lane.0.agent.*.*",
            "sub berth.inquiry.*",
            "sub $SRV.INFO.berth-door",
        ),
        may_not=(
            f"{EVENT}submitted.-",
            f"{EVENT}placed.c1",
            f"{EVENT}withdrawn.c1",
            f"{EVENT}cancel_requested.c1",
            f"{EVENT}recovered.c1",
            f"{EVENT}carried.c1",
            "pub berth.decision.all",
            f"{API}DIRECT.GET.CONTROL",
            f"{API}DIRECT.GET.ARCHIVE",
            f"{API}STREAM.MSG.GET.OBJ_SNAPSHOTS",
            "sub berth.stored.control.>",
            "sub berth.held.*",
            "pub berth.fleet.c1.score",
            "pub berth.fleet.c1.membership",
            "pub berth.control.lost.c1",
            "pub berth.lease.resolver.all",
            "pub berth.lease.members",
            f"{API}STREAM.MSG.DELETE.WORKLOADS",
            f"{API}STREAM.PURGE.FLEET",
            "sub berth.api.*.submit",
            "sub berth.telemetry.*.*",
        ),
    ),
    "setup": Case(
        may=(
            f"{API}STREAM.CREATE.WORKLOADS",
            f"{API}STREAM.UPDATE.FLEET",
            *(f"{API}{durable.create}" for durable in DURABLES),
            "sub _INBOX.setup.x",
        ),
        may_not=(
            f"{API}CONSUMER.CREATE.FLEET.x.berth.fleet.>",
            f"{API}STREAM.DELETE.WORKLOADS",
            f"{API}STREAM.PURGE.WORKLOADS",
            f"{EVENT}submitted.-",
            "pub berth.fleet.c1.alive",
            "sub berth.workload.>",
            "sub _INBOX.gateway.x",
        ),
    ),
    "gateway": Case(
        may=(
            f"{EVENT}submitted.-",
            f"{EVENT}reprioritized.-",
            f"{EVENT}cancel_requested.c1",
            f"{EVENT}cancelled.-",
            "pub berth.control.queue.research",
            "pub berth.control.cordon.c1.-",
            "pub berth.dead.gateway",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            f"{API}STREAM.MSG.GET.ARCHIVE",
            "pub berth.lease.log.gateway",
            f"{API}STREAM.MSG.GET.LEASES",
            f"{API}STREAM.MSG.GET.CONTROL",
            f"{API}DIRECT.GET.WORKLOADS",
            "sub berth.stored.workload.>",
            f"{API}DIRECT.GET.CONTROL",
            "sub berth.stored.control.>",
            "sub berth.api.*.submit",
            "sub berth.lane.0.api.*.*",
            "sub berth.operator.cordon",
            "sub $SRV.PING",
            "sub $SRV.INFO.berth-gateway.4711",
            "sub _INBOX.gateway.x.*",
        ),
        may_not=(
            f"{EVENT}placed.c1",
            f"{EVENT}succeeded.c1",
            "pub berth.decision.all",
            "pub berth.fleet.c1.score",
            "pub berth.archive.workload.acme.job-1",
            "pub berth.lease.resolver.all",
            "pub berth.lease.log.resolver.all",
            "pub berth.dead.resolver",
            f"{API}STREAM.PURGE.WORKLOADS",
            f"{API}STREAM.DELETE.WORKLOADS",
            f"{API}STREAM.UPDATE.WORKLOADS",
            f"{API}DIRECT.GET.FLEET",
            "sub berth.stored.fleet.>",
            "sub berth.telemetry.c1.n1",
            "sub _INBOX.resolver.x",
            "sub _INBOX.>",
        ),
    ),
    "resolver": Case(
        may=(
            "pub berth.decision.all",
            f"{EVENT}placed.c1",
            f"{EVENT}withdrawn.c1",
            f"{EVENT}eviction_requested.c1",
            f"{EVENT}resize_requested.c1",
            f"{EVENT}submitted.-",
            f"{EVENT}divided.-",
            f"{EVENT}committed.c1",
            f"{EVENT}evicted.c1",
            f"{EVENT}succeeded.-",
            "pub berth.lease.resolver.all",
            "pub berth.lease.log.resolver.all",
            f"{API}STREAM.MSG.GET.ARCHIVE",
            f"{API}STREAM.MSG.GET.CONTROL",
            "pub berth.quality.all",
            "pub berth.dead.resolver",
            "pub $O.SNAPSHOTS.C.xyz",
            "pub $O.SNAPSHOTS.M.xyz",
            f"{API}DIRECT.GET.WORKLOADS",
            "sub berth.stored.decision.>",
            f"{API}DIRECT.GET.FLEET",
            "sub berth.stored.fleet.>",
            f"{API}STREAM.MSG.GET.LEASES",
            "sub berth.api.*.why",
            "sub berth.api.*.dry_run",
            "sub berth.api.*.whatif",
            "sub berth.operator.whatif",
            "sub berth.figures.*.*.*",
        ),
        may_not=(
            "sub berth.operator.cordon",
            f"{EVENT}claimed.c1",
            f"{EVENT}running.c1",
            f"{EVENT}succeeded.c1",
            "pub berth.fleet.c1.score",
            "pub berth.fleet.c1.node.n1",
            "pub berth.control.lost.c1",
            "pub berth.lease.scorer.all",
            f"{API}DIRECT.GET.ARCHIVE",
            f"{API}STREAM.PURGE.WORKLOADS",
            "sub berth.api.*.submit",
            "sub berth.telemetry.*.*",
        ),
    ),
    "scorer": Case(
        may=(
            "pub berth.fleet.c1.score",
            "pub berth.dead.scorer",
            f"{API}DIRECT.GET.FLEET",
            "sub berth.stored.fleet.>",
            f"{API}STREAM.MSG.GET.FLEET",
            "sub berth.telemetry.*.*",
            "sub berth.telemetry.c1.*",
        ),
        may_not=(
            "pub berth.fleet.c1.alive",
            "pub berth.fleet.c1.node.n1",
            "pub berth.telemetry.c1.n1",
            f"{EVENT}placed.c1",
            "pub berth.decision.all",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            f"{API}STREAM.PURGE.FLEET",
            "sub berth.api.*.submit",
            "sub berth.fleet.>",
        ),
    ),
    "archivist": Case(
        may=(
            "pub berth.archive.workload.acme.job-1",
            "pub berth.archive.decision.all.7",
            "pub berth.dead.archivist",
            "pub berth.lease.log.archivist",
            f"{API}STREAM.MSG.GET.LEASES",
            f"{API}STREAM.MSG.GET.CONTROL",
            f"{API}STREAM.MSG.DELETE.WORKLOADS",
            f"{API}DIRECT.GET.WORKLOADS",
            f"{API}CONSUMER.MSG.NEXT.WORKLOADS.archivist-failed",
            "pub $JS.ACK.WORKLOADS.archivist-tombstones-failed.1.1.1.1.0",
        ),
        may_not=(
            f"{EVENT}failed.c1",
            f"{EVENT}placed.c1",
            "pub berth.decision.all",
            "pub berth.lease.log.door",
            "pub berth.control.log.WORKLOADS",
            f"{API}DIRECT.GET.CONTROL",
            "sub berth.stored.control.>",
            f"{API}STREAM.PURGE.ARCHIVE",
            f"{API}STREAM.PURGE.FLEET",
            f"{API}STREAM.PURGE.WORKLOADS",
            f"{API}STREAM.DELETE.WORKLOADS",
            f"{API}CONSUMER.MSG.NEXT.WORKLOADS.executor-c1-placed",
            "sub berth.api.*.submit",
        ),
    ),
    "usage": Case(
        may=(
            f"{API}DIRECT.GET.WORKLOADS",
            "sub berth.stored.workload.>",
            f"{API}DIRECT.GET.ARCHIVE",
            "sub berth.stored.archive.workload.>",
            f"{API}DIRECT.GET.FLEET",
            "sub berth.stored.fleet.>",
            f"{API}CONSUMER.MSG.NEXT.WORKLOADS.webhooks-evicted",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            "pub berth.lease.log.usage",
            f"{API}STREAM.MSG.GET.LEASES",
            "pub berth.dead.usage",
            "sub berth.api.*.report",
            "sub berth.api.*.trends",
            "sub berth.api.*.profile",
            "sub berth.api.*.suggest",
            "sub berth.operator.report",
            f"{API}STREAM.MSG.GET.LOG_ENDS",
            "sub berth.quality.*",
            "sub berth.figures.*.*.*",
        ),
        may_not=(
            f"{EVENT}placed.c1",
            f"{EVENT}succeeded.c1",
            "pub berth.archive.workload.acme.job-1",
            "pub berth.control.queue.q",
            "pub berth.decision.all",
            f"{API}CONSUMER.MSG.NEXT.WORKLOADS.archivist-failed",
            "pub berth.lease.log.archivist",
            f"{API}STREAM.PURGE.ARCHIVE",
            f"{API}STREAM.MSG.DELETE.ARCHIVE",
            "sub berth.api.*.submit",
            "sub berth.api.*.why",
            "sub berth.operator.cordon",
        ),
    ),
    "members": Case(
        may=(
            "pub berth.fleet.c1.membership",
            "pub berth.fleet.c9.membership",
            "pub berth.lease.members",
        ),
        may_not=(
            "pub berth.fleet.c1.alive",
            "pub berth.fleet.c1.node.n1",
            "pub berth.fleet.c1.queue.gpus",
            f"{EVENT}claimed.c1",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            "sub berth.fleet.>",
        ),
    ),
    "ocm": Case(
        may=(
            f"{API}DIRECT.GET.FLEET",
            "sub berth.stored.fleet.*.score",
            "sub berth.stored.fleet.*.profile",
            "pub berth.lease.ocm",
            "pub berth.dead.ocm",
        ),
        may_not=(
            "pub berth.fleet.c1.score",
            "pub berth.fleet.c1.membership",
            "pub berth.lease.claims.c1",
            f"{EVENT}placed.c1",
            f"{API}STREAM.MSG.GET.FLEET",
            f"{API}DIRECT.GET.WORKLOADS",
            "sub berth.stored.fleet.>",
            "sub berth.fleet.>",
        ),
    ),
    "multikueue": Case(
        may=(
            "pub berth.decision.hub",
            f"{EVENT}submitted.-",
            f"{EVENT}placed.c1",
            f"{EVENT}claimed.c1",
            f"{EVENT}succeeded.c1",
            f"{API}DIRECT.GET.WORKLOADS",
            "sub berth.stored.decision.>",
            f"{API}DIRECT.GET.FLEET",
            "sub berth.stored.fleet.>",
            "pub berth.lease.multikueue",
            "pub berth.lease.log.multikueue",
            f"{API}STREAM.MSG.GET.CONTROL",
            "sub berth.api.*.why",
        ),
        may_not=(
            f"{API}STREAM.MSG.GET.OBJ_SNAPSHOTS",
            f"{API}DIRECT.GET.ARCHIVE",
            "pub berth.decision.all",
            "pub berth.fleet.c1.membership",
            "pub berth.fleet.c1.score",
            "pub berth.control.queue.gpus",
            "pub berth.lease.resolver.all",
            f"{API}STREAM.PURGE.WORKLOADS",
            "sub berth.api.*.submit",
        ),
    ),
    "karmada": Case(
        may=(
            f"{EVENT}submitted.-",
            f"{EVENT}claimed.c1",
            f"{EVENT}succeeded.c1",
            f"{API}DIRECT.GET.WORKLOADS",
            "sub berth.stored.decision.>",
            "pub berth.lease.karmada",
            "pub berth.lease.log.karmada",
            f"{API}STREAM.MSG.GET.CONTROL",
        ),
        may_not=(
            f"{API}STREAM.MSG.GET.OBJ_SNAPSHOTS",
            f"{API}DIRECT.GET.ARCHIVE",
            "pub berth.decision.all",
            f"{EVENT}placed.c1",
            "pub berth.fleet.c1.score",
            "pub berth.control.queue.gpus",
            "pub berth.lease.multikueue",
            f"{API}STREAM.PURGE.WORKLOADS",
            "sub berth.api.*.submit",
        ),
    ),
    "admission": Case(
        may=(
            f"{API}DIRECT.GET.FLEET",
            "sub berth.stored.fleet.*.copy.*.*",
            "pub berth.lease.admission",
        ),
        may_not=(
            "pub berth.fleet.c1.copy.ml.job-1",
            "pub berth.fleet.c1.membership",
            "pub berth.decision.hub",
            f"{EVENT}submitted.-",
            "sub berth.stored.fleet.>",
            f"{API}DIRECT.GET.WORKLOADS",
            "pub berth.lease.multikueue",
            "sub berth.fleet.>",
        ),
    ),
    "restorer": Case(
        may=(
            f"{EVENT}carried.-",
            "pub berth.decision.all",
            "pub berth.control.queue.q",
            *(
                f"{API}STREAM.{verb}.{stream}"
                for verb in ("INFO", "CREATE", "UPDATE", "MSG.GET")
                for stream in ("WORKLOADS", "CONTROL", "WORKLOADS-OLD-a3")
            ),
            f"{API}STREAM.DELETE.WORKLOADS-OLD-a3",  # which is not there
            f"{API}STREAM.NAMES",
            f"{API}DIRECT.GET.WORKLOADS-OLD-a3",
            "pub berth.archive.workload.acme.1",
            "pub berth.inquiry.c1",
            "sub berth.held.*",
        ),
        may_not=(
            f"{API}STREAM.RESTORE.WORKLOADS",
            f"{API}STREAM.PURGE.WORKLOADS",
            "pub berth.assign.c1.news",
            "sub berth.inquiry.*",
            "pub berth.held.c1",
            "pub berth.agent.c1.holdings",
            "pub berth.archive.decision.all.1",
            "sub berth.assign.c1.news",
            "sub berth.figures.*.*.*",
            "pub berth.fleet.c1.membership",
            "pub berth.lease.door",
            "sub berth.>",
        ),
    ),
    "operator": Case(
        may=(
            "pub berth.operator.cordon",
            "pub berth.api.acme.get",
            f"{API}DIRECT.GET.DEAD",
            "sub berth.stored.dead.>",
            f"{API}DIRECT.GET.WORKLOADS",
            "sub berth.stored.workload.>",
            "sub berth.>",
            "sub berth.telemetry.*.*",
        ),
        may_not=(
            f"{EVENT}cancelled.c1",
            "pub berth.assign.c1.news",
            "pub berth.inquiry.c1",
            "pub berth.held.c1",
            "pub berth.agent.c1.holdings",
            "pub berth.control.lost.c1",
            "pub berth.fleet.c1.score",
            "pub berth.decision.all",
            f"{API}STREAM.PURGE.WORKLOADS",
            f"{API}STREAM.DELETE.WORKLOADS",
            "sub _INBOX.>",
            "sub >",
        ),
    ),
    "dashboard": Case(
        may=(
            *(f"pub berth.api.acme.{verb}" for verb in ("get", "list", "why", "dry_run", "whatif")),
            "pub $SRV.PING",
            *(
                f"{API}{verb}.{stream}"
                for stream in ("WORKLOADS", "FLEET", "CONTROL", "LEASES", "DEAD")
                for verb in ("DIRECT.GET", "STREAM.INFO")
            ),
            f"{API}STREAM.MSG.GET.LEASES",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            "sub berth.telemetry.*.*",
            "sub berth.figures.*.*.*",
            "sub berth.quality.*",
        ),
        may_not=(
            *(f"pub berth.api.acme.{verb}" for verb in ("submit", "cancel", "reprioritize")),
            *(f"pub berth.operator.{verb}" for verb in ("cordon", "uncordon", "lost", "queue")),
            f"{EVENT}submitted.-",
            f"{EVENT}cancelled.-",
            "pub berth.decision.all",
            "pub berth.fleet.c1.score",
            "pub berth.control.cordon.c1.-",
            "pub berth.telemetry.c1.n1",
            "pub berth.lease.resolver.all",
            "pub berth.lease.log.dashboard",
            f"{API}STREAM.MSG.DELETE.WORKLOADS",
            f"{API}STREAM.PURGE.FLEET",
            f"{API}STREAM.MSG.DELETE.DEAD",
            *(f"{API}CONSUMER.CREATE.{stream}.x" for stream in STREAMS),
            *(f"{API}CONSUMER.CREATE.{stream}.x.berth.>" for stream in STREAMS),
            "pub berth.dead.usage",
            "sub berth.api.acme.submit",
            "sub login.token",
            "sub _INBOX.operator.x",
            "sub berth.>",
        ),
    ),
    "watcher": Case(
        may=(
            *(f"{API}DIRECT.GET.{stream}" for stream in ("WORKLOADS", "FLEET", "CONTROL")),
            f"{API}DIRECT.GET.FLEET.berth.fleet.c1.score",
            f"{API}STREAM.INFO.FLEET",
            *(
                f"sub berth.stored.{each}.>"
                for each in ("fleet", "workload", "decision", "control")
            ),
            "sub berth.telemetry.*.*",
            "sub berth.figures.*.*.*",
            "sub berth.quality.*",
            "sub _INBOX.watcher.x",
        ),
        may_not=(
            *(f"pub berth.api.acme.{verb}" for verb in ("submit", "get", "list", "why", "hello")),
            *(f"pub berth.operator.{verb}" for verb in ("cordon", "whatif", "queue")),
            "pub berth.agent.c1.hello",
            f"{EVENT}submitted.-",
            f"{EVENT}cancelled.-",
            "pub berth.decision.all",
            "pub berth.fleet.c1.score",
            "pub berth.control.cordon.c1.-",
            "pub berth.telemetry.c1.n1",
            "pub berth.lease.resolver.all",
            "pub berth.assign.c1.news",
            "pub berth.inquiry.c1",
            "sub berth.assign.c1.news",
            "sub berth.held.*",
            f"{API}CONSUMER.CREATE.WORKLOADS.x",
            f"{API}CONSUMER.CREATE.FLEET.x.berth.fleet.>",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            f"{API}STREAM.MSG.DELETE.WORKLOADS",
            f"{API}STREAM.PURGE.FLEET",
            *(f"{API}DIRECT.GET.{stream}" for stream in ("LEASES", "DEAD", "ARCHIVE", "SNAPSHOTS")),
            "pub $SRV.PING",
            "sub login.token",
            "sub berth.api.>",
            "sub berth.lease.>",
            "sub berth.dead.>",
            "sub _INBOX.>",
            "sub _INBOX.gateway.x",
            "sub >",
        ),
    ),
    "viewer.acme": Case(
        may=(
            *(f"pub berth.api.acme.{verb}" for verb in ("get", "list", "why", "dry_run", "whatif")),
            "sub berth.event.acme.>",
            "sub berth.figures.acme.>",
            "sub _INBOX.viewer.acme.x",
        ),
        may_not=(
            *(f"pub berth.api.acme.{verb}" for verb in ("submit", "cancel", "reprioritize")),
            "pub berth.api.rival.get",
            "pub berth.operator.cordon",
            f"{EVENT}submitted.-",
            f"{API}STREAM.INFO.WORKLOADS",
            f"{API}DIRECT.GET.WORKLOADS",
            f"{API}DIRECT.GET.FLEET",
            "sub berth.event.rival.>",
            "sub berth.fleet.>",
            "sub berth.telemetry.c1.n1",
            "sub _INBOX.tenant.acme.x",
            "sub berth.>",
            "sub berth.figures.rival.>",
        ),
    ),
    "steward": Case(
        may=(
            "pub berth.api.acme.cancel",
            "pub berth.api.acme.reprioritize",
            "pub berth.operator.cordon",
            "pub berth.operator.uncordon",
        ),
        may_not=(
            *(f"pub berth.api.acme.{verb}" for verb in ("submit", "get", "list", "why")),
            *(f"pub berth.operator.{verb}" for verb in ("lost", "found", "queue", "void")),
            "pub berth.control.cordon.c1.-",
            f"{EVENT}cancelled.-",
            f"{API}STREAM.INFO.WORKLOADS",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            "sub berth.>",
            "sub berth.event.>",
        ),
    ),
    "tenant.acme": Case(
        may=(
            "pub berth.api.acme.submit",
            "pub berth.api.acme.get",
            "sub berth.event.acme.>",
            "sub berth.event.acme.job-1.>",
            "sub berth.figures.acme.*.*",
            "sub berth.figures.acme.>",
            "sub _INBOX.tenant.acme.x.*",
        ),
        may_not=(
            "pub berth.api.rival.submit",
            "pub berth.lane.any.api.rival.submit",
            "pub berth.lane.any.api.acme.submit",
            "sub berth.lane.*.api.*.*",
            "pub berth.operator.cordon",
            f"{EVENT}submitted.-",
            f"{EVENT}succeeded.c1",
            f"{API}STREAM.INFO.WORKLOADS",
            f"{API}STREAM.INFO.FLEET",
            f"{API}STREAM.MSG.GET.WORKLOADS",
            f"{API}CONSUMER.CREATE.WORKLOADS.x.berth.workload.acme.>",
            "sub berth.workload.acme.>",
            "pub berth.assign.c1.news",
            "pub berth.inquiry.c1",
            "sub berth.held.*",
            "sub berth.event.rival.>",
            "sub berth.figures.rival.>",
            "sub berth.figures.-.*.*",
            "pub berth.figures.acme.c1.job-1",
            "sub berth.workload.rival.>",
            "sub berth.workload.>",
            "sub berth.api.acme.submit",
            "sub _INBOX.tenant.rival.x",
            "sub berth.>",
        ),
    ),
}


class HeardLog:
    def __init__(self) -> None:
        self.errors: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, /, **fields: object) -> None: ...
    def warning(self, event: str, /, **fields: object) -> None: ...
    def error(self, event: str, /, *, error: BaseException | None = None, **fields: object) -> None:
        self.errors.append((event, fields))


class Settings(msgspec.Struct, frozen=True):
    nats_url: str
    nats_creds_file: Path | None
    inbox_prefix: str
    nats_ca_file: Path | None = None
    nats_plaintext: bool = False


class Bus(NamedTuple):
    """A server that knows the users, and their seeds."""

    server: Server
    keys: Path

    @asynccontextmanager
    async def as_user(self, user: str, log: HeardLog | None = None) -> AsyncIterator[Connection]:
        settings = Settings(self.server.url, creds_file(self.keys, user), inbox_prefix(user))
        heard = log or HeardLog()
        async with await Connection.open(settings, user, heard, timeout_s=ANSWER_S) as conn:
            yield conn


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("permissions")
    config = ServerConfig(sync="default", extra=accounts_of(folder / "keys", USERS))
    with Server(folder / "server", config) as server:
        bus = Bus(server, folder / "keys")
        asyncio.run(make_streams(bus))
        yield bus


async def make_streams(bus: Bus) -> None:
    async with bus.as_user("setup") as conn:
        await ensure_streams(conn)


async def violations(bus: Bus, user: str, tries: tuple[str, ...]) -> set[str]:
    """Which of these the server refuses this user. Bodies are empty: nothing is changed.

    Refusals come in order and beside everything else: when that of a last subject, which nobody
    may use, is there, there are no more.
    """
    refused: set[str] = set()
    complete = asyncio.Event()

    async def on_error(error: Exception) -> None:
        text = str(error).lower()
        assert "permissions violation" in text, text
        kind = "pub" if "violation for publish" in text else "sub"
        refused.add(f"{kind} {without_lanes(text).split(chr(34))[1]}")
        if f"pub {LAST}" in refused:
            complete.set()

    client = await nats.connect(
        bus.server.url,
        user_credentials=creds_file(bus.keys, user),
        inbox_prefix=inbox_prefix(user),
        error_cb=on_error,
        allow_reconnect=False,
    )
    for line in tries:
        kind, subject = line.split(" ", 1)
        if kind == "pub":
            await client.publish(subject, b"")
        else:
            await client.subscribe(subject)
    await client.publish(LAST, b"")
    await asyncio.wait_for(complete.wait(), hang_s())
    await client.close()
    return {line for line in tries if line.lower() in refused}


def test_every_user_has_its_rows_in_the_table() -> None:
    assert set(CASES) == set(USERS) - {"tenant.rival"}
    assert all(len(case.may_not) >= 5 for case in CASES.values())


@pytest.mark.parametrize("user", CASES)
@in_a_loop
async def test_a_user_may_do_what_is_its_own_and_nothing_else(bus: Bus, user: str) -> None:
    case = CASES[user]
    may, may_not = ({by_its_name(line) for line in each} for each in case)
    if user not in ("setup", "restorer"):
        creates = (durable.create for durable in DURABLES)
        may_not |= {by_its_name(f"{API}{each}") for each in (*creates, "CONSUMER.CREATE.FLEET.x")}
    assert await violations(bus, user, tuple(may)) == set()
    assert await violations(bus, user, (*may_not, *case.may_not)) == {*may_not, *case.may_not}


def by_its_name(line: str) -> str:
    """A request to JetStream as every account but STREAMS names it."""
    if not line.startswith(API):
        return line
    return f"pub {jetstream(line.removeprefix(API), imported=True)}"


@in_a_loop
async def test_nobody_gets_in_without_a_key(bus: Bus) -> None:
    settings = Settings(bus.server.url, None, "_INBOX.gateway")
    with pytest.raises(BusError, match=r"(?i)authorization violation"):
        await Connection.open(settings, "stranger", HeardLog(), timeout_s=5)


@in_a_loop
async def test_a_violation_is_an_error_in_the_log_and_for_whoever_asked(bus: Bus) -> None:
    log = HeardLog()
    async with bus.as_user("scorer", log) as conn:
        with pytest.raises(NotPermitted, match=r"(?i)permissions violation for publish"):
            await conn.request("berth.decision.all", b"{}", timeout_s=5)
    [(event, fields)] = log.errors
    assert event == "permission violation"
    assert "berth.decision.all" in str(fields["what"])


@in_a_loop
async def test_what_is_denied_is_not_stored(bus: Bus) -> None:
    async with bus.as_user("tenant.rival") as rival, bus.as_user("gateway") as gateway:
        before = await last_sequence(gateway)
        await rival.publish("berth.workload.acme.job-2.submitted.-", b"{}")
        await told(rival, 1)
        assert await last_sequence(gateway) == before
        await gateway.request("berth.workload.acme.job-2.submitted.-", b"{}", timeout_s=ANSWER_S)
        assert await last_sequence(gateway) == before + 1


async def told(conn: Connection, count: int) -> None:
    """Wait until the server has told of so many violations."""
    async with asyncio.timeout(hang_s()):
        while len(conn.violations) < count:
            await asyncio.sleep(0.01)
    assert len(conn.violations) == count


async def answered(conn: Connection, subject: str) -> bytes:
    """The answer to a request whose listener is only just arriving."""
    async with asyncio.timeout(hang_s()):
        while True:
            try:
                return (await conn.request(subject, b"{}", timeout_s=ANSWER_S)).data
            except NoAnswer:
                await asyncio.sleep(0.01)


async def last_sequence(conn: Connection) -> int:
    info: dict[str, Any] = msgspec.json.decode(await conn.api(f"STREAM.INFO.{WORKLOADS}"))
    return int(info["state"]["last_seq"])


@in_a_loop
async def test_an_answer_reaches_the_tenant_who_asked_and_only_once(bus: Bus) -> None:
    async with bus.as_user("gateway") as gateway, bus.as_user("tenant.acme") as tenant:

        async def answer(msg: Any) -> None:
            await msg.respond(b"first")
            await msg.respond(b"second")  # nobody asked for it

        await gateway.subscribe_raw("berth.lane.*.api.*.get", answer, queue="q")
        heard: list[str] = []
        await tenant.subscribe("_INBOX.tenant.acme.uninvited", lambda where, _: heard.append(where))
        reply = await answered(tenant, "berth.api.acme.get")
        assert reply == b"first"
        # An inbox of another account is not to be reached but by its own request.
        await gateway.publish("_INBOX.tenant.acme.uninvited", b"hello")
        await gateway.flush()
        await tenant.flush()
        assert heard == []
        assert gateway.violations == [
            'permissions violation for publish to "_inbox.tenant.acme.uninvited"'
        ]


@in_a_loop
async def test_node_messages_reach_own_cluster_only(bus: Bus) -> None:
    """The one subject that users of a cluster's account hear of one another."""
    heard: list[tuple[str, bytes]] = []
    async with (
        bus.as_user("door") as door,
        bus.as_user("figures.c1") as figures,
        bus.as_user("telemetry.c1") as node,
    ):
        await DoorClient(figures, "c1").hear_nodes(lambda *told: heard.append(("figures", told[1])))
        await door.subscribe(
            "berth.agent.*.telemetry", lambda *told: heard.append(("door", told[1]))
        )
        await figures.flush()
        await door.flush()
        async with asyncio.timeout(hang_s()):
            while len({who for who, _ in heard}) < 2:  # the listeners are only just arriving
                heard.clear()
                await DoorClient(node, "c1").observe(b"{}")
                await node.flush()
                await asyncio.sleep(0.01)
        assert {who for who, _ in heard} == {"figures", "door"}


@pytest.mark.parametrize(
    "user", ["", "nobody", "tenant", "tenant.", "tenant.a.b", "tenant.*", "tenant.a b", "gateway.x"]
)
def test_a_user_that_means_nothing_is_refused_with_the_names_that_do(user: str) -> None:
    with pytest.raises(ValueError, match=r"there are setup, gateway, .*tenant\.<one token>"):
        grants(user)
