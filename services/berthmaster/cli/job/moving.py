"""Commands that move jobs: hold, release, evict, move, drain."""

import click
import msgspec

from berthmaster.cli.completion import CLUSTER
from berthmaster.cli.fleet.commands import require_known
from berthmaster.cli.session import Session, bus_command, caller, usage
from berthmaster.client import BerthError, Client
from berthmaster.lib.messages.api import ChangeReply, JobOrderRequest


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
            await require_known(berth, to, None, "--to")
            await _must_fit(berth, workload, to)
        if not as_operator:
            reply = await berth.move(workload, to, reason)
        else:
            order = _order(berth.tenant, workload, reason=reason, to=to)
            reply = await berth.order_job("move", order)
        await _tell(session, reply, "is to move")


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
