"""Commands of operators about the fleet: cordon, uncordon, lost, queue."""

import asyncio
import re
import sys
from typing import IO, Any, Final

import click
import msgspec

from berthmaster.cli.completion import CLUSTER, QUEUE
from berthmaster.cli.job.requests import WrongInput, exactly, parse_duration_s, parse_weights
from berthmaster.cli.nearest import did_you_mean
from berthmaster.cli.output.complain import complain
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import Session, bus_command, caller, usage
from berthmaster.client import BerthError, Client, NotAllowedError
from berthmaster.lib.engine.fleetview.rows import ClusterRow, FleetView
from berthmaster.lib.engine.scoring.profiles import PROFILES
from berthmaster.lib.messages.api import OperatorReply, QueueStanding
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.runtime.settings import EmptyMember, members

ACCOUNTS_LIMIT_S: Final = 3.0
_ALLOWED: Final = {
    "allow_tolerations": "tolerations",
    "allow_node_labels": "node_labels",
    "allow_images": "images",
    "allow_models": "gpu_models",
    "allow_resources": "resources",
}
_AMOUNTS: Final = {
    "guarantee": "guarantee_gpu_milli",
    "deserved": "deserved_gpu_milli",
    "limit": "capability_gpu_milli",
    "max_job": "max_job_gpu_milli",
}
_AS_THEY_ARE: Final = ("priority", "weight", "held", "deleted", "via", "preempts", "rebalances")
_YES_NO: Final = {"yes": True, "no": False, "none": None}
_DEFAULTS: Final = {
    "default_max_run": "max_run_s",
    "default_checkpoint_every": "checkpoint_every_s",
    "default_grace": "grace_s",
}
_PLACE: Final = re.compile(
    r"((?P<cluster>[^=]+)=)?(?P<namespace>[^=/@]+)(/(?P<queue>[^=/@]+))?(@(?P<account>[^=/@]+))?"
)


async def fleet_rows(berth: Client) -> list[ClusterRow]:
    view = FleetView()
    for seen in await berth.fleet():
        view.take(seen)
    view.set_control(await berth.control())
    return view.rows(berth.now())


def operator_reply(session: Session, reply: OperatorReply, text: str) -> None:
    """That an order is stored, in words."""
    from berthmaster.cli.output.terminal import safe

    note = f"; {reply.note}" if reply.note else ""
    session.out.document(reply, lambda: safe(f"{text}{note}"))


async def _warn_if_unknown(berth: Client, cluster: str, node: str | None = None) -> None:
    """Whatever it is may come later, so that it is no error; most likely the name is wrong."""
    try:
        facts = [seen.fact for seen in await berth.fleet(nodes=node is not None, cluster=cluster)]
        if node is None:
            known = {cluster} if facts else {seen.fact.cluster for seen in await berth.fleet()}
        else:
            known = {each.node for each in facts if isinstance(each, NodeReport)}
    except BerthError:
        return  # the order was carried out; that we may not look does not change that
    name = cluster if node is None else node
    if name not in known:
        where = "" if node is None else f" {cluster}"
        right = did_you_mean(name, known) or ": is the name right?"
        complain(
            f"nothing was heard of {place_of(cluster, node)} so far{right} "
            f"`berth top{where}` shows what there is"
        )


@click.command()
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@click.option("--reason", default="", help="Why, for those who wonder.")
@bus_command
async def cordon(session: Session, cluster: str, node: str | None, reason: str) -> None:
    """Put nothing new on a cluster or a node; what runs there goes on."""
    async with session.client() as berth:
        reply = await berth.cordon(cluster, node, reason=reason, who=caller())
        operator_reply(session, reply, f"{place_of(cluster, node)} is cordoned")
        await _warn_if_unknown(berth, cluster, node)


@click.command()
@click.argument("cluster", type=CLUSTER)
@click.argument("node", required=False)
@click.option("--reason", default="", help="Why, for those who wonder.")
@bus_command
async def uncordon(session: Session, cluster: str, node: str | None, reason: str) -> None:
    """Remove a cordon and end a drain. Jobs already being evicted still leave."""
    async with session.client() as berth:
        reply = await berth.uncordon(cluster, node, reason=reason)
        operator_reply(session, reply, f"{place_of(cluster, node)} is open again")


def place_of(cluster: str, node: str | None) -> str:
    return f"node {node} of {cluster}" if node else cluster


@click.command()
@click.argument("cluster", type=CLUSTER)
@click.option("--reason", required=True, help="How you know; it is kept.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--undo", is_flag=True, help="Take the declaration back: the cluster is there.")
@bus_command
async def lost(session: Session, cluster: str, reason: str, yes: bool, undo: bool) -> None:
    """Declare a cluster lost: jobs that it claimed are placed again elsewhere."""
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


@click.group()
def queue() -> None:
    """Set queues, or list them."""


@queue.command("list")
@form_option
@bus_command
async def queue_list(session: Session, form: Form | None) -> None:
    """List the queues that operators have set, each below its parent, and what they have now.

    A tenant is told of those that are open to it.
    """
    from berthmaster.cli.fleet import screen as fleet

    async with session.client() as berth:
        try:
            found = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
        except NotAllowedError:
            told = (await berth.why()).accounts
            write_list(
                session.out,
                form,
                told,
                told,
                lambda each: each.queue,
                lambda _: fleet.standings(told),
            )
            return
        accounts: tuple[QueueStanding, ...] = ()
        if found and not session.out.as_json and form in (None, "wide"):
            accounts = await _accounts(berth)
        write_list(
            session.out,
            form,
            found,
            found,
            lambda each: each.queue,
            lambda _: fleet.queues(found, accounts),
        )


async def _accounts(berth: Client) -> tuple[QueueStanding, ...]:
    """What queues have now; nothing if nobody says it, or to us."""
    try:
        async with asyncio.timeout(ACCOUNTS_LIMIT_S):
            return (await berth.why()).accounts
    except (BerthError, TimeoutError):
        return ()


async def _warn_if_overcommitted(berth: Client) -> None:
    """Of guarantees beyond what the fleet has: it may grow, so that it is no error."""
    from berthmaster.cli.queue.file import overcommitted_in

    known = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
    if not any(setting.guarantee_gpu_milli or setting.resources for setting in known):
        return
    try:
        nodes = [seen.fact for seen in await berth.fleet(nodes=True)]
    except BerthError:
        return  # the order was carried out; that we may not look does not change that
    for told in overcommitted_in(known, nodes):
        complain(f"warning: {told}")


@queue.command("set")
@click.argument("name", type=QUEUE)
@click.option(
    "--parent",
    type=QUEUE,
    metavar="QUEUE",
    help="The queue of whose shares it has a part; 'none' = it has its part of the fleet.",
)
@click.option("--priority", type=int, help="Queues with more go first, of one parent.")
@click.option(
    "--weight", type=click.FloatRange(min=0, min_open=True), help="Its share beside others."
)
@click.option("--guarantee", metavar="GPUS", help="GPUs that nobody borrows while it wants them.")
@click.option("--deserved", metavar="GPUS", help="GPUs up to which it goes before others.")
@click.option("--limit", metavar="GPUS", help="GPUs that it never exceeds; 'none' = no limit.")
@click.option("--max-job", metavar="GPUS", help="GPUs of its largest job; 'none' = no limit.")
@click.option("--max-running", metavar="JOBS", help="Jobs of it that run; 'none' = no limit.")
@click.option("--max-waiting", metavar="JOBS", help="Jobs of it that wait; 'none' = no limit.")
@click.option("--max-priority", metavar="N", help="Of its jobs; 'none' = no limit.")
@click.option(
    "--preempts",
    type=click.Choice(["never", "queue", "all"]),
    help="Whose jobs of lower priority make room for its jobs: nobody's, its own, all queues'.",
)
@click.option(
    "--preempts-equals",
    type=click.Choice(["yes", "no"]),
    help="Whether its jobs may stop each other: of one priority, one that has clearly more left.",
)
@click.option(
    "--rebalances",
    type=click.Choice(["never", "queue", "all"]),
    help="Whose jobs are moved to room that is free so that one of its jobs fits that has waited "
    "for long: nobody's, its own, all queues'.",
)
@click.option(
    "--max-evictions",
    metavar="N",
    help="Of its jobs in an hour, to make room for others; 'none' = as many as of the fleet.",
)
@click.option(
    "--default-max-run", metavar="TIME", help="Of its jobs that say none; 'none' = no limit."
)
@click.option(
    "--default-checkpoint-every",
    metavar="TIME",
    help="Of its jobs that say none; 'none' = unknown.",
)
@click.option(
    "--default-grace", metavar="TIME", help="Of its jobs that say none; 'none' = the cluster's own."
)
@click.option(
    "--default-preemptible",
    type=click.Choice(["yes", "no", "none"]),
    help="Whether its jobs that do not say may be ended to make room.",
)
@click.option(
    "--allow-tolerations",
    metavar="KEY,…",
    help="Taints that its jobs may tolerate; 'any' = all, '' = none.",
)
@click.option(
    "--allow-node-labels",
    metavar="KEY,…",
    help="Node labels that its jobs may require; 'any' = all, '' = none.",
)
@click.option(
    "--allow-images",
    metavar="IMAGE,…",
    help="Images of its jobs, or beginnings that end in / or :; 'any' = all.",
)
@click.option(
    "--allow-models", metavar="MODEL,…", help="GPU models that its jobs may name; 'any' = all."
)
@click.option(
    "--allow-resources",
    metavar="NAME,…",
    help="Extended resources that its jobs may ask for, such as rdma/hca; 'any' takes the list "
    "back: then all are allowed, or none where models are listed.",
)
@click.option("--allow", multiple=True, metavar="TENANT", help="Who may use it; may be repeated.")
@click.option("--everybody", is_flag=True, help="Everybody may use it.")
@click.option(
    "--via",
    type=click.Choice(["direct", "worker", "hub"]),
    help="A plain Job in the worker cluster, one for its Kueue, or one for the hub's MultiKueue.",
)
@click.option(
    "--place",
    "places",
    multiple=True,
    metavar="[CLUSTER=]NAMESPACE[/LOCALQUEUE][@ACCOUNT]",
    help="Where its jobs are made: in this cluster, on the 'hub', or in every other one; may be "
    "repeated, and replaces all that were set.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help=f"How clusters rank for its jobs: {', '.join(PROFILES)}; 'none' = as elsewhere.",
)
@click.option(
    "--score-weight",
    "score_weights",
    multiple=True,
    metavar="PART=N",
    help="What a part of the score counts for its jobs, -10 to 10; may be repeated, and replaces "
    "all that were set; 'none' = as its profile says.",
)
@click.option("--hold/--release", "held", default=None, help="Dispatch nothing / dispatch again.")
@click.option(
    "--delete/--restore", "deleted", default=None, help="Refuse new requests / take them."
)
@bus_command
async def queue_set(session: Session, /, name: str, everybody: bool, **flags: Any) -> None:
    """Make a queue, or change what is given and keep the rest."""
    async with session.client() as berth:
        known = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
        setting = next((fact for fact in known if fact.queue == name), QueueSetting(queue=name))
        try:
            reply = await berth.set_queue(changed(setting, everybody, flags))
        except WrongInput as error:
            usage(str(error))
        operator_reply(session, reply, f"queue {name} is set")
        await _warn_if_overcommitted(berth)


@queue.command("apply")
@click.option(
    "-f",
    "--file",
    "file",
    required=True,
    type=click.File("rb"),
    help="Settings of queues as JSON: one, an array, or one a line; '-' reads standard input.",
)
@bus_command
async def queue_apply(session: Session, file: IO[bytes]) -> None:
    """Set queues as a file says; a field that it leaves out is as it is by default.

    All are checked before the first is set. `berth queue list --json` writes such a file.
    """
    from berthmaster.cli.queue.file import in_order, read_settings

    try:
        settings = read_settings(file.read(), file.name)
    except WrongInput as error:
        usage(str(error))
    async with session.client() as berth:
        known = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
        try:
            ordered = in_order(settings, known)
        except WrongInput as error:
            usage(f"{file.name}: {error}")
        for setting in ordered:
            reply = await berth.set_queue(setting)
            operator_reply(session, reply, f"queue {setting.queue} is set")
        await _warn_if_overcommitted(berth)


def _defaults(flags: dict[str, Any]) -> dict[str, Any]:
    """Of jobs that do not say it. Raises WrongInput."""
    found: dict[str, Any] = {}
    for flag, field in _DEFAULTS.items():
        if (text := flags.get(flag)) is not None:
            zero = field == "grace_s"
            found[field] = None if text == "none" else parse_duration_s(text, zero=zero)
    if (text := flags.get("default_preemptible")) is not None:
        found["preemptible"] = _YES_NO[text]
    return found


def changed(setting: QueueSetting, everybody: bool, flags: dict[str, Any]) -> QueueSetting:
    """The setting with what the flags say. Raises WrongInput."""
    new: dict[str, Any] = {
        name: flags[name] for name in _AS_THEY_ARE if flags.get(name) is not None
    }
    if (text := flags.get("preempts_equals")) is not None:
        new["preempts_equals"] = _YES_NO[text]
    for flag, field in _AMOUNTS.items():
        if flags.get(flag) is not None:
            new[field] = _gpu_milli(f"--{flag.replace('_', '-')}", flags[flag])
    for flag in ("max_running", "max_waiting"):
        if flags.get(flag) is not None:
            new[f"{flag}_jobs"] = _jobs(f"--{flag.replace('_', '-')}", flags[flag])
    if flags.get("max_evictions") is not None:
        new["max_evictions_per_hour"] = _jobs("--max-evictions", flags["max_evictions"])
    if defaults := _defaults(flags):
        new["defaults"] = msgspec.structs.replace(setting.defaults, **defaults)
    if flags.get("max_priority") is not None:
        new["max_priority"] = _priority(flags["max_priority"])
    if allows := {
        field: _listed(f"--{flag.replace('_', '-')}", flags[flag])
        for flag, field in _ALLOWED.items()
        if flags.get(flag) is not None
    }:
        new["allows"] = msgspec.structs.replace(setting.allows, **allows)
    if everybody or flags.get("allow"):
        new["tenants"] = () if everybody else tuple(flags["allow"])
    if flags.get("parent") is not None:
        new["parent"] = "" if flags["parent"] == "none" else flags["parent"]
    if flags.get("profile") is not None:
        new["profile"] = "" if flags["profile"] == "none" else flags["profile"]
    if flags.get("score_weights"):
        texts = [text for text in flags["score_weights"] if text != "none"]
        new["weights"] = parse_weights(texts)
    if flags.get("places"):
        new["places"] = dict(map(queue_place, flags["places"]))
    return msgspec.structs.replace(setting, set_by="", set_at_s=0.0, **new)


def queue_place(text: str) -> tuple[str, QueuePlace]:
    """berlin=ml/main@runner -> where the jobs of a queue are made in berlin. Raises WrongInput."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise WrongInput(f"--place {text!r}: right is [CLUSTER=]NAMESPACE[/LOCALQUEUE][@ACCOUNT]")
    place = QueuePlace(
        namespace=found["namespace"],
        service_account=found["account"] or "",
        local_queue=found["queue"] or "",
    )
    return found["cluster"] or "*", place


def _listed(flag: str, text: str) -> tuple[str, ...] | None:
    if text == "any":
        return None
    try:
        return members(text)
    except EmptyMember as error:
        raise WrongInput(f"{flag} {text!r}: {error}; right is A,B, '' or 'any'") from error


def _priority(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise WrongInput(f"--max-priority {text!r}: right is a number, or 'none'") from None


def _jobs(flag: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or not text.isascii():
        raise WrongInput(f"{flag} {text!r}: right is a number of jobs, or 'none'")
    return int(text)


def _gpu_milli(flag: str, text: str) -> int | None:
    if text == "none":
        return None
    milli = exactly(text, 1000)
    if milli is None:
        raise WrongInput(f"{flag} {text!r}: right is a number of GPUs such as 8 or 2.5, or 'none'")
    return milli
