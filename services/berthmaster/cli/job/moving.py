"""Commands that hold or move jobs: hold, release, evict, move."""

import click
import msgspec

from berthmaster.cli.completion import CLUSTER
from berthmaster.cli.fleet.commands import require_known
from berthmaster.cli.session import Session, bus_command, caller, usage
from berthmaster.client import BerthError, Client
from berthmaster.lib.messages.api import ChangeReply, JobOrderRequest


async def _write_reply(session: Session, reply: ChangeReply, text: str) -> None:
    from berthmaster.cli.output.terminal import safe

    note = f": {reply.note}" if reply.note else ""
    session.out.document(reply, lambda: safe(f"{reply.id} {text}{note}"))


def _request(tenant: str, workload: str, **fields: object) -> JobOrderRequest:
    return JobOrderRequest(tenant=tenant, id=workload, who=caller(), **fields)  # type: ignore[arg-type]


AS_OPERATOR = click.option(
    "--as-operator",
    is_flag=True,
    help="Act as an operator, on any tenant's job; only an operator releases what one holds.",
)
REASON = click.option("--reason", default="", help="Reason, which the event history shows.")


@click.command()
@click.argument("workload")
@click.option("--evict", is_flag=True, help="Also end the attempt if the job runs.")
@REASON
@AS_OPERATOR
@bus_command
async def hold(
    session: Session, workload: str, evict: bool, reason: str, as_operator: bool
) -> None:
    """Keep a job pending until `berth release`."""
    async with session.client() as berth:
        if not as_operator:
            reply = await berth.hold(workload, reason, evict=evict)
        else:
            request = _request(berth.tenant, workload, reason=reason, evict=evict)
            reply = await berth.order_job("hold", request)
        await _write_reply(session, reply, "is held")


@click.command()
@click.argument("workload")
@REASON
@AS_OPERATOR
@bus_command
async def release(session: Session, workload: str, reason: str, as_operator: bool) -> None:
    """End the hold of a job."""
    async with session.client() as berth:
        if not as_operator:
            reply = await berth.release(workload, reason)
        else:
            reply = await berth.order_job(
                "release", _request(berth.tenant, workload, reason=reason)
            )
        await _write_reply(session, reply, "is not held")


@click.command()
@click.argument("workload")
@REASON
@AS_OPERATOR
@bus_command
async def evict(session: Session, workload: str, reason: str, as_operator: bool) -> None:
    """End the attempt of a running job and requeue the job; its retries stay."""
    async with session.client() as berth:
        if not as_operator:
            reply = await berth.evict(workload, reason)
        else:
            reply = await berth.order_job("evict", _request(berth.tenant, workload, reason=reason))
        await _write_reply(session, reply, "is to go")


@click.command()
@click.argument("workload")
@click.option(
    "--to", type=CLUSTER, default="", metavar="CLUSTER", help="Target cluster. [default: any other]"
)
@REASON
@AS_OPERATOR
@bus_command
async def move(session: Session, workload: str, to: str, reason: str, as_operator: bool) -> None:
    """Move a running job to another cluster with capacity for the whole job."""
    async with session.client() as berth:
        if to:
            await require_known(berth, to, None, "--to")
            await _must_fit(berth, workload, to)
        if not as_operator:
            reply = await berth.move(workload, to, reason)
        else:
            request = _request(berth.tenant, workload, reason=reason, to=to)
            reply = await berth.order_job("move", request)
        await _write_reply(session, reply, "is to move")


async def _must_fit(berth: Client, workload: str, to: str) -> None:
    """Refuse a move to a cluster whose filters exclude the job. A move waits where only free
    capacity is missing."""
    from berthmaster.lib.engine.fleetview.shortlist import BUSY, LESS_LIKED

    try:
        request = (await berth.get(workload)).request
        if request is None or (request.clusters and to not in request.clusters):
            return  # the gateway answers
        supposed = msgspec.structs.replace(request, clusters=(to,))
        why = (await berth.dry_run(supposed)).filtered.get(to, BUSY)
    except BerthError:
        return  # the gateway answers
    if why not in (BUSY, LESS_LIKED):
        usage(f"--to: {workload} cannot go to {to} now: {why}")
