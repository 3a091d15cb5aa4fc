"""`berth whatif`: the jobs that a change would move. A question changes nothing.

Each kind of change takes the arguments of the command that makes the change.
"""

from typing import Any

import click
import msgspec

from berthmaster.cli.completion import CLUSTER, MODEL
from berthmaster.cli.job.requests import ARRAY, OPTIONS
from berthmaster.cli.job.submit import bodies_of
from berthmaster.cli.queue.commands import queue_set
from berthmaster.cli.queue.settings import changed
from berthmaster.cli.session import Session, bus_command, usage
from berthmaster.cli.values import WrongInput, parse_duration_s, parse_memory_mib
from berthmaster.lib.messages.api import (
    AddedCluster,
    CordonRequest,
    DrainRequest,
    RebalanceRequest,
    SupposedQueue,
    WhatifRequest,
)
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.families import encode
from berthmaster.lib.requests.validation import is_name

_MINE = click.option(
    "--mine", is_flag=True, help="Ask as a tenant: other tenants' jobs are counted, not named."
)


@click.group()
def whatif() -> None:
    """Show the jobs that one change would move, without changing anything."""


@whatif.command("submit")
@click.argument("words", nargs=-1, metavar="[FILE] [-- COMMAND]")
@OPTIONS
@ARRAY
@bus_command
async def submit(session: Session, /, words: tuple[str, ...], **flags: Any) -> None:
    """Show where a new job would run, or why the job would wait, and the jobs with a later start.

    Takes the arguments of `berth submit`, for one job.
    """
    await _ask(session, b'{"submit":' + _one_job(words, flags) + b"}", of_all=False)


def _one_job(words: tuple[str, ...], flags: dict[str, Any]) -> bytes:
    """Return one request, in the form of `berth submit`."""
    try:
        bodies = bodies_of(words, flags)
    except WrongInput as error:
        usage(str(error))
    if len(bodies) != 1:
        usage(f"one job at a time; this is {len(bodies)}")
    return bodies[0]


@whatif.command("cordon")
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@_MINE
@bus_command
async def cordon(session: Session, cluster: str, node: str | None, mine: bool) -> None:
    """Show the jobs that could use other clusters after a cordon, and the jobs without another
    cluster."""
    request = WhatifRequest(cordon=CordonRequest(cluster=cluster, node=node))
    await _ask(session, encode(request), of_all=not mine)


@whatif.command("uncordon")
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@_MINE
@bus_command
async def uncordon(session: Session, cluster: str, node: str | None, mine: bool) -> None:
    """Show the jobs that would be placed on a cluster or node after an uncordon."""
    request = WhatifRequest(uncordon=CordonRequest(cluster=cluster, node=node))
    await _ask(session, encode(request), of_all=not mine)


@whatif.command("drain")
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@_MINE
@bus_command
async def drain(session: Session, cluster: str, node: str | None, mine: bool) -> None:
    """Show the jobs that a drain would move and the cost, and the jobs that would stay with the
    reason."""
    request = WhatifRequest(drain=DrainRequest(cluster=cluster, node=node))
    await _ask(session, encode(request), of_all=not mine)


@whatif.command("preempt")
@click.argument("words", nargs=-1, metavar="WORKLOAD | [FILE] [-- COMMAND]")
@OPTIONS
@ARRAY
@bus_command
async def preempt(session: Session, /, words: tuple[str, ...], **flags: Any) -> None:
    """Show the jobs that would be preempted for a pending or a new job, and the cost.

    Takes the id of a pending job, or the arguments of `berth submit`.
    """
    given = any(value not in (None, (), False) for value in flags.values())
    if len(words) == 1 and not given and is_name(words[0]):
        await _ask(session, encode(WhatifRequest(preempt=words[0])), of_all=False)
        return
    await _ask(session, b'{"preempt_for":' + _one_job(words, flags) + b"}", of_all=False)


@whatif.command("rebalance")
@click.option(
    "--whose",
    type=click.Choice(["queue", "all"]),
    default="all",
    show_default=True,
    help="Queues whose jobs may be moved: that of the pending job, or all.",
)
@click.option(
    "--moves",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Maximum number of moves for one job. [default: the resolver's setting]",
)
@click.option(
    "--after",
    metavar="TIME",
    help="Minimum wait of the pending job, such as 10m. [default: the resolver's setting]",
)
@bus_command
async def rebalance(session: Session, whose: str, moves: int | None, after: str | None) -> None:
    """Show the moves if all queues allowed rebalancing, with beneficiaries, gain and cost.

    Omitted options follow the settings of the resolver.
    """
    try:
        after_s = parse_duration_s(after) if after else None
    except WrongInput as error:
        usage(f"--after: {error}")
    supposed = RebalanceRequest(
        whose="queue" if whose == "queue" else "all", moves=moves, after_s=after_s
    )
    await _ask(session, encode(WhatifRequest(rebalance=supposed)), of_all=True)


@whatif.command("add-cluster")
@click.argument("name")
@click.option(
    "--like",
    type=CLUSTER,
    default="",
    metavar="CLUSTER",
    help="Existing cluster to copy as an empty one.",
)
@click.option(
    "--model",
    type=MODEL,
    default="",
    help="GPU model of the nodes, shaped like the fleet's nodes of this model.",
)
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", help="GPUs of each node.")
@click.option("--gpu-memory", metavar="MEM", help="Memory of each GPU, such as 80Gi.")
@_MINE
@bus_command
async def add_cluster(
    session: Session,
    name: str,
    like: str,
    model: str,
    nodes: int,
    gpus: int | None,
    gpu_memory: str | None,
    mine: bool,
) -> None:
    """Show the jobs that would be placed on one more cluster, or would rank it first."""
    try:
        gpu_memory_mib = parse_memory_mib(gpu_memory) if gpu_memory else None
    except WrongInput as error:
        usage(f"--gpu-memory: {error}")
    added = AddedCluster(
        name=name,
        like=like,
        model=model,
        nodes=nodes,
        gpus_a_node=gpus,
        gpu_memory_mib=gpu_memory_mib,
    )
    await _ask(session, encode(WhatifRequest(add_cluster=added)), of_all=not mine)


@bus_command
async def _queue(session: Session, /, name: str, everybody: bool, **flags: Any) -> None:
    async with session.client() as berth:
        known = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
    setting = next((fact for fact in known if fact.queue == name), QueueSetting(queue=name))
    try:
        supposed = msgspec.to_builtins(changed(setting, everybody, flags))
    except WrongInput as error:
        usage(str(error))
    supposed.pop("type")  # a hypothetical queue is no message of its own
    request = WhatifRequest(queue=msgspec.convert(supposed, SupposedQueue))
    await _ask(session, encode(request), of_all=True)


whatif.add_command(
    click.Command(
        "queue",
        params=queue_set.params,
        callback=_queue,
        help="Show which jobs would be placed after a `berth queue set` with these options.",
    )
)


async def _ask(session: Session, body: bytes, *, of_all: bool) -> None:
    from berthmaster.cli.whatif import screen

    async with session.client() as berth:
        reply = await berth.whatif_raw(body, of_all=of_all)
        session.out.document(reply, lambda: screen.whatif(reply, berth.now()))
