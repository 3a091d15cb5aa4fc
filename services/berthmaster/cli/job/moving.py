"""Commands that move jobs: hold, release, evict, move, drain."""

import re
import time
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from berthmaster.cli.completion import CLUSTER
from berthmaster.cli.job.requests import WrongInput, parse_duration_s
from berthmaster.cli.nearest import did_you_mean
from berthmaster.cli.session import Session, bus_command, caller, usage
from berthmaster.client import BerthError, Client
from berthmaster.lib.messages.api import ChangeReply, JobOrderRequest
from berthmaster.lib.messages.fleet import ClusterProfile, NodeReport

_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}\Z")


def parse_time_s(text: str, now_s: float) -> float:
    """Seconds since 1970 of ``2h``, ``18:30`` (the next one, local time) or an ISO time. Raises
    WrongInput."""
    if _CLOCK.match(text):
        hour, minute = map(int, text.split(":"))
        try:
            today = datetime.fromtimestamp(now_s, UTC).astimezone()
            at = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
        except ValueError as error:
            raise WrongInput(f"{text}: {error}") from error
        at_s = at.timestamp()
        return at_s if at_s > now_s else at_s + 86_400.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return now_s + parse_duration_s(text)


async def _tell(session: Session, reply: ChangeReply, text: str) -> None:
    from berthmaster.cli.output.terminal import safe

    note = f": {reply.note}" if reply.note else ""
    session.out.document(reply, lambda: safe(f"{reply.id} {text}{note}"))


def _order(tenant: str, workload: str, **fields: object) -> JobOrderRequest:
    return JobOrderRequest(tenant=tenant, id=workload, who=caller(), **fields)  # type: ignore[arg-type]


AS_OPERATOR = click.option(
    "--as-operator",
    is_flag=True,
    help="In an operator's right, of whatever tenant: what he holds only operators release.",
)
REASON = click.option("--reason", default="", help="Why, for those who read its story.")


@click.command()
@click.argument("workload")
@click.option("--evict", is_flag=True, help="Also if it runs: it is ended for that.")
@REASON
@AS_OPERATOR
@bus_command
async def hold(
    session: Session, workload: str, evict: bool, reason: str, as_operator: bool
) -> None:
    """Have a workload wait, whoever's turn it is, until it is released."""
    async with session.client() as berth:
        if not as_operator:
            reply = await berth.hold(workload, reason, evict=evict)
        else:
            order = _order(berth.tenant, workload, reason=reason, evict=evict)
            reply = await berth.order_job("hold", order)
        await _tell(session, reply, "is held")


@click.command()
@click.argument("workload")
@REASON
@AS_OPERATOR
@bus_command
async def release(session: Session, workload: str, reason: str, as_operator: bool) -> None:
    """Hold a workload no more."""
    async with session.client() as berth:
        if not as_operator:
            reply = await berth.release(workload, reason)
        else:
            reply = await berth.order_job("release", _order(berth.tenant, workload, reason=reason))
        await _tell(session, reply, "is not held")


@click.command()
@click.argument("workload")
@REASON
@AS_OPERATOR
@bus_command
async def evict(session: Session, workload: str, reason: str, as_operator: bool) -> None:
    """End the attempt of a workload that runs; it waits again, and it counts against nobody."""
    async with session.client() as berth:
        if not as_operator:
            reply = await berth.evict(workload, reason)
        else:
            reply = await berth.order_job("evict", _order(berth.tenant, workload, reason=reason))
        await _tell(session, reply, "is to go")


@click.command()
@click.argument("workload")
@click.option(
    "--to", type=CLUSTER, default="", metavar="CLUSTER", help="Where; else any other cluster."
)
@REASON
@AS_OPERATOR
@bus_command
async def move(session: Session, workload: str, to: str, reason: str, as_operator: bool) -> None:
    """Have a workload that runs go on in another cluster, once there is room for all of it."""
    async with session.client() as berth:
        if to:
            await _must_be_known(berth, to, None, "--to")
            await _must_fit(berth, workload, to)
        if not as_operator:
            reply = await berth.move(workload, to, reason)
        else:
            order = _order(berth.tenant, workload, reason=reason, to=to)
            reply = await berth.order_job("move", order)
        await _tell(session, reply, "is to move")


async def _must_be_known(berth: Client, cluster: str, node: str | None, what: str) -> None:
    """A drain or a move of what nobody has heard of is a slip: say what may have been meant."""
    try:
        seen = [each.fact for each in await berth.fleet(nodes=node is not None)]
    except BerthError:
        return  # who may not look is answered by those who decide
    clusters = {f.cluster for f in seen if isinstance(f, ClusterProfile | NodeReport)}
    if cluster not in clusters:
        usage(f"{what}: nothing is known of cluster {cluster}{did_you_mean(cluster, clusters)}")
    nodes = {f.node for f in seen if isinstance(f, NodeReport) and f.cluster == cluster}
    if node is not None and node not in nodes:
        usage(f"{what}: {cluster} has no node {node}{did_you_mean(node, nodes)}")


async def _must_fit(berth: Client, workload: str, to: str) -> None:
    """A move to where it cannot be would be wished for in vain: say why it is out there. Where only
    the room is lacking now, the move waits for it."""
    from berthmaster.lib.engine.fleetview.filters import BUSY, LESS_LIKED

    try:
        request = (await berth.get(workload)).request
        if request is None or (request.clusters and to not in request.clusters):
            return  # the gateway says what would be right
        supposed = msgspec.structs.replace(request, clusters=(to,))
        why = (await berth.dry_run(supposed)).filtered.get(to, BUSY)
    except BerthError:
        return  # whoever decides answers
    if why not in (BUSY, LESS_LIKED):
        usage(f"--to: {workload} cannot go to {to} now: {why}")


@click.command()
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@click.option(
    "--by", metavar="TIME", help="When all must be gone: 2h, 18:30, 2026-12-01T18:30. Else never."
)
@click.option("--reason", default="", help="Why, for those who are moved.")
@bus_command
async def drain(
    session: Session, cluster: str, node: str | None, by: str | None, reason: str
) -> None:
    """Put nothing new on a cluster or a node, and move away what runs there at the least cost."""
    from berthmaster.cli.job.moving_screen import cordons as render
    from berthmaster.cli.output.terminal import safe

    async with session.client() as berth:
        now_s = berth.now()
        try:
            by_s = parse_time_s(by, now_s) if by is not None else None
        except WrongInput as error:
            usage(f"--by: {error}; or a time: 18:30, 2026-12-01T18:30")
        if by_s is not None and by_s <= now_s:
            usage(f"--by {by}: a time ahead is wanted; now is {time.strftime('%H:%M:%S')}")
        await _must_be_known(berth, cluster, node, "drain")
        reply = await berth.drain(cluster, node, by_s=by_s, reason=reason, who=caller())
        if session.out.as_json:
            session.out.document(reply, lambda: safe(""))
            return
        found = await berth.cordons(cluster)
        session.out.document(found, lambda: render(found, now_s))
