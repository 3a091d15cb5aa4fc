"""Commands about clusters and nodes: gpus, cordon, uncordon, drain, lost."""

import re
import sys
import time
from datetime import UTC, datetime
from typing import Final

import click

from berthmaster.cli.completion import CLUSTER, MODEL, QUEUE
from berthmaster.cli.output.errors import complain, did_you_mean
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, caller, operator_reply, usage
from berthmaster.cli.values import WrongInput, parse_duration_s
from berthmaster.client import BerthError, Client
from berthmaster.lib.messages.fleet import ClusterProfile, NodeReport


async def _warn_if_unknown(berth: Client, cluster: str, node: str | None = None) -> None:
    """Warn about an unknown name. A cluster may register later, so this is no error."""
    try:
        facts = [seen.fact for seen in await berth.fleet(nodes=node is not None, cluster=cluster)]
        if node is None:
            known = {cluster} if facts else {seen.fact.cluster for seen in await berth.fleet()}
        else:
            known = {each.node for each in facts if isinstance(each, NodeReport)}
    except BerthError:
        return  # the action is stored, though its target cannot be checked
    name = cluster if node is None else node
    if name not in known:
        where = "" if node is None else f" {cluster}"
        right = did_you_mean(name, known) or ": is the name right?"
        complain(
            f"nothing was heard of {place_of(cluster, node)} so far{right} "
            f"`berth top{where}` shows what there is"
        )


_gpu_option = click.option(
    "--gpu",
    type=click.IntRange(0, 1023),
    metavar="INDEX",
    help="One GPU of the node, by its index. [default: the whole node]",
)


@click.command()
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@_gpu_option
@click.option("--reason", default="", help="Reason, which `berth problems cordons` shows.")
@bus_command
async def cordon(
    session: Session, cluster: str, node: str | None, gpu: int | None, reason: str
) -> None:
    """Allow no new jobs on a cluster, node or GPU; running jobs continue."""
    if gpu is not None and node is None:
        usage("--gpu needs the node of the GPU: berth cordon CLUSTER NODE --gpu N")
    async with session.client() as berth:
        reply = await berth.cordon(cluster, node, gpu=gpu, reason=reason, who=caller())
        operator_reply(session, reply, f"{place_of(cluster, node, gpu)} is cordoned")
        await _warn_if_unknown(berth, cluster, node)


@click.command()
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@_gpu_option
@click.option("--reason", default="", help="Reason, which `berth problems cordons` shows.")
@bus_command
async def uncordon(
    session: Session, cluster: str, node: str | None, gpu: int | None, reason: str
) -> None:
    """Remove a cordon and end a drain. Jobs already being evicted still leave.

    With --gpu: open a cordoned or faulty GPU to new jobs. A new fault closes the GPU again.
    """
    if gpu is not None and node is None:
        usage("--gpu needs the node of the GPU: berth uncordon CLUSTER NODE --gpu N")
    async with session.client() as berth:
        reply = await berth.uncordon(cluster, node, gpu=gpu, reason=reason, who=caller())
        operator_reply(session, reply, f"{place_of(cluster, node, gpu)} is open again")


def place_of(cluster: str, node: str | None, gpu: int | None = None) -> str:
    if gpu is not None:
        return f"GPU {gpu} of node {node} of {cluster}"
    return f"node {node} of {cluster}" if node else cluster


@click.command()
@click.argument("cluster", type=CLUSTER)
@click.option(
    "--reason",
    required=True,
    help="Evidence that the cluster is gone; stored with the declaration.",
)
@click.option("--yes", is_flag=True, help="Skip the question.")
@click.option("--undo", is_flag=True, help="Undo the declaration: the cluster exists.")
@bus_command
async def lost(session: Session, cluster: str, reason: str, yes: bool, undo: bool) -> None:
    """Declare a cluster lost. Other clusters get the jobs claimed by the lost cluster."""
    if undo:
        async with session.client() as berth:
            reply = await berth.found(cluster, reason)
            operator_reply(session, reply, f"{cluster} is not lost any more")
        return
    risk = f"If {cluster} still runs its jobs, they will run twice."
    if not yes and not sys.stdin.isatty():
        usage(f"{risk} Say --yes if it is gone for certain")
    if not yes:
        click.confirm(f"{risk} Is it gone?", abort=True, err=True)
    async with session.client() as berth:
        reply = await berth.lost(cluster, reason)
        operator_reply(session, reply, f"{cluster} is declared lost")
        await _warn_if_unknown(berth, cluster)


@click.command()
@click.argument("models", type=MODEL, nargs=-1, metavar="[MODEL]...")
@click.option(
    "--gpus",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of GPUs on one node for the expected wait.",
)
@click.option("--queue", type=QUEUE, default="", help="Show only models that this queue may use.")
@form_option
@bus_command
async def gpus(
    session: Session, models: tuple[str, ...], gpus: int, queue: str, form: Form | None
) -> int:
    """List GPU models: free and total GPUs, expected wait, price per hour.

    Free GPUs count the whole fleet; limits of queues apply in addition (`berth queue list`).
    """
    from msgspec.structs import replace

    from berthmaster.cli.fleet import screen
    from berthmaster.lib.engine.fleet.gpus import is_model

    async with session.client() as berth:
        reply = await berth.gpus(gpus, queue=queue or session.target.queue)
    known = [one.model for one in reply.models]
    for model in models:
        if not any(is_model(model, one) for one in known):
            usage(f"no cluster has GPUs of model {model}{did_you_mean(model, known)}")
    if models:
        found = [one for one in reply.models if any(is_model(name, one.model) for name in models)]
        reply = replace(reply, models=tuple(found))
    write_list(
        session.out,
        form,
        reply,
        reply.models,
        lambda one: one.model,
        lambda wide: screen.gpu_models(reply, wide=wide),
    )
    return 0 if reply.models else EXIT_FAILED


_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}\Z")


def parse_time_s(text: str, now_s: float) -> float:
    """Return seconds since 1970 of ``2h``, ``18:30`` (the next one, local time) or an ISO time.

    Raises WrongInput.
    """
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


async def require_known(berth: Client, cluster: str, node: str | None, what: str) -> None:
    """Refuse a drain or move of an unknown cluster or node, with the nearest known name."""
    try:
        seen = [each.fact for each in await berth.fleet(nodes=node is not None)]
    except BerthError:
        return  # the gateway answers a caller that may not read the fleet
    clusters = {f.cluster for f in seen if isinstance(f, ClusterProfile | NodeReport)}
    if cluster not in clusters:
        usage(f"{what}: nothing is known of cluster {cluster}{did_you_mean(cluster, clusters)}")
    nodes = {f.node for f in seen if isinstance(f, NodeReport) and f.cluster == cluster}
    if node is not None and node not in nodes:
        usage(f"{what}: {cluster} has no node {node}{did_you_mean(node, nodes)}")


@click.command()
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@click.option(
    "--by",
    metavar="TIME",
    help="Time by which all jobs must be gone: 2h, 18:30 or 2026-12-01T18:30. [default: none]",
)
@click.option("--reason", default="", help="Reason, which the moved jobs show.")
@bus_command
async def drain(
    session: Session, cluster: str, node: str | None, by: str | None, reason: str
) -> None:
    """Cordon a cluster or node, and move its running jobs away at the least cost."""
    from berthmaster.cli.fleet import screen
    from berthmaster.cli.output.terminal import safe

    async with session.client() as berth:
        now_s = berth.now()
        try:
            by_s = parse_time_s(by, now_s) if by is not None else None
        except WrongInput as error:
            usage(f"--by: {error}; or a time: 18:30, 2026-12-01T18:30")
        if by_s is not None and by_s <= now_s:
            usage(f"--by {by}: a time ahead is wanted; now is {time.strftime('%H:%M:%S')}")
        await require_known(berth, cluster, node, "drain")
        reply = await berth.drain(cluster, node, by_s=by_s, reason=reason, who=caller())
        if session.out.as_json:
            session.out.document(reply, lambda: safe(""))
            return
        found = await berth.cordons(cluster)
        session.out.document(found, lambda: screen.cordons(found, now_s))
