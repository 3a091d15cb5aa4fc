"""`berth submit`: requests from files, standard input or flags; and, if asked, to their end."""

import asyncio
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berthmaster.cli.completion import CLUSTER, MODEL, QUEUE, RUNTIME
from berthmaster.cli.job.waiting import Waiting
from berthmaster.cli.output.complain import complain
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage
from berthmaster.lib.engine.scoring.profiles import COMPONENTS, PROFILES

if TYPE_CHECKING:
    from berthmaster.client import Client
    from berthmaster.lib.messages.api import SubmitReply

MAX_FILE_BYTES = 64 * 1024 * 1024
MODELS_LIMIT_S = 0.5  # a job is not kept waiting for whoever knows the models
_FLAGS = [
    click.option("--id", help="Its id; made up if not given."),
    click.option(
        "--gpus",
        metavar="N",
        help="GPUs of each pod: 0, 1, 8, a share such as 0.5, or one's memory such as 8Gi.",
    ),
    click.option("--mig", metavar="PROFILE", help="A MIG slice for each pod: 1g.10gb."),
    click.option(
        "--model", type=MODEL, multiple=True, help="A GPU model that will do; may be repeated."
    ),
    click.option(
        "--prefer-model",
        type=MODEL,
        multiple=True,
        metavar="MODEL",
        help="Taken before others that will do, the first named first; may be repeated.",
    ),
    click.option("--gpu-memory", metavar="MEM", help="Each GPU has at least this: 40Gi."),
    click.option(
        "--isolation",
        metavar="HOW",
        help="How hard the limit of a part of a GPU is, at least: hardware, memory or none.",
    ),
    click.option("--tpus", type=int, metavar="N", help="TPU chips of each pod."),
    click.option(
        "--tpu-accelerator",
        multiple=True,
        metavar="KIND",
        help="A kind of TPU that will do: tpu-v5-lite-podslice; may be repeated.",
    ),
    click.option(
        "--tpu-topology", metavar="AxB", help="Chips of the slice that all pods make: 2x4, 2x2x4."
    ),
    click.option(
        "--resource",
        multiple=True,
        metavar="NAME=N",
        help="Pieces of another resource of nodes: rdma/hca=1; may be repeated.",
    ),
    click.option(
        "--claim",
        multiple=True,
        metavar="NAME",
        help="A ResourceClaimTemplate where the pods run; may be repeated.",
    ),
    click.option("--cpu", metavar="N", help="CPUs of each pod: 4, 0.5, 250m [1]."),
    click.option("--memory", metavar="MEM", help="Memory of each pod: 512Mi, 16Gi [1Gi]."),
    click.option("--count", type=int, metavar="N", help="Pods, all or none of which start [1]."),
    click.option("--min-count", type=int, metavar="N", help="So few will do [--count]."),
    click.option("--max-count", type=int, metavar="N", help="So many, where idle [--count]."),
    click.option(
        "--same", metavar="LABEL", help="All pods on nodes with one value of it; node: on one node."
    ),
    click.option("--max-pods-a-node", type=int, metavar="N", help="No more pods than this on one."),
    click.option(
        "--fewest-nodes", is_flag=True, default=None, help="All pods on as few nodes as can be."
    ),
    click.option(
        "--one-gpu-domain",
        is_flag=True,
        default=None,
        help="GPUs of each pod in one NVLink or NUMA domain.",
    ),
    click.option("--queue", type=QUEUE, help="Queue to wait in [default]."),
    click.option("--priority", type=int, metavar="N", help="More goes first [0]."),
    click.option("--duration", metavar="TIME", help="How long it will run, about: 90s, 2h."),
    click.option(
        "--deadline", metavar="TIME", help="Stop it so long after its start, for certain."
    ),
    click.option(
        "--not-preemptible",
        is_flag=True,
        default=None,
        help="Once it runs, it is not ended to make room for others.",
    ),
    click.option(
        "--checkpoint-every", metavar="TIME", help="So much work is lost at most if it is ended."
    ),
    click.option("--grace", metavar="TIME", help="From SIGTERM to SIGKILL when it is ended."),
    click.option("--max-run", metavar="TIME", help="It has failed once it ran for longer."),
    click.option(
        "--retries", type=int, metavar="N", help="Run it again so often if it fails by itself [0]."
    ),
    click.option(
        "--backoff", metavar="TIME", help="Before the first of them, doubled with each [10s]."
    ),
    click.option(
        "--no-retry-exit-code",
        multiple=True,
        type=int,
        metavar="N",
        help="With it, it has failed for good; may be repeated.",
    ),
    click.option(
        "--runtime", type=RUNTIME, metavar="NAME", help="How it is run: torch, mpi, jax, plain, …"
    ),
    click.option(
        "--param", multiple=True, metavar="K=V", help="A parameter of the runtime; may be repeated."
    ),
    click.option(
        "--cluster", type=CLUSTER, multiple=True, help="A cluster that will do; may be repeated."
    ),
    click.option("--cluster-label", multiple=True, metavar="K=V", help="Required of the cluster."),
    click.option("--profile", metavar="NAME", help=f"How clusters rank: {', '.join(PROFILES)}."),
    click.option(
        "--weight",
        multiple=True,
        metavar="PART=N",
        help=f"What a part of the score counts, -10 to 10: {', '.join(COMPONENTS)}.",
    ),
    click.option(
        "--data-at",
        multiple=True,
        metavar="PLACE",
        help="Where its data is: a cluster, or a label or property of clusters as K=V.",
    ),
    click.option("--node-label", multiple=True, metavar="K=V", help="Required of the nodes."),
    click.option("--label", multiple=True, metavar="K=V", help="A label of your own."),
    click.option("--set", "set_name", metavar="NAME", help="A name for several jobs."),
    click.option(
        "--array",
        metavar="0-99%8",
        help="So many jobs ID-0 … of the set ID, with BERTH_ARRAY_INDEX; 8 of them at once.",
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="ID[:succeeded|ended]",
        help="Only when that job has succeeded, or ended; may be repeated.",
    ),
    click.option(
        "--divide",
        type=click.Choice(("room", "weight")),
        help="Its pods may run in several clusters: in as few as have room, or spread over all.",
    ),
    click.option("--min-part", type=int, metavar="N", help="No cluster gets fewer pods [1]."),
    click.option("--image", help="Container image, for real clusters."),
    click.option("--env", multiple=True, metavar="K=V", help="A variable; no secret."),
    click.option(
        "--secret-env",
        multiple=True,
        metavar="K=NAME/KEY",
        help="A variable from the Secret TENANT.NAME where the pods run.",
    ),
]


def request_flags(function: Any) -> Any:
    for option in reversed(_FLAGS):
        function = option(function)
    return function


@click.command(epilog="Flags after -- are the command to run: berth submit --gpus 1 -- python t.py")
@click.argument("words", nargs=-1, metavar="[FILE]... [-- COMMAND]")
@request_flags
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="The same as naming it; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show where it would go; submit nothing.")
@click.option("--wait", is_flag=True, help="Follow it to its end; exit code 1 if it fails.")
@bus_command
async def submit(
    session: Session,
    /,
    words: tuple[str, ...],
    files: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    **flags: Any,
) -> int:
    """Submit jobs: files of JSON or YAML ('-' is standard input), or one job made of flags.

    A file holds a request, an array of them, one a line, or YAML documents. `after: ID`, or a list
    of ID, ID:succeeded or ID:ended, names the jobs that a job waits for. Each job is submitted
    after those. Jobs that wait for each other in a circle are refused with that circle, before any
    is submitted. Submitting the same id with the same content again is harmless.
    """
    from berthmaster.cli.job.requests import WrongInput

    models = (*flags["model"], *flags["prefer_model"])
    if files and _any_given(flags):
        usage("-f: give files or flags, not both")
    words = (*files, *words)
    if session.target.queue and flags.get("queue") is None and _any_given(flags):
        flags["queue"] = session.target.queue
    try:
        bodies = bodies_of(words, flags)
    except WrongInput as error:
        usage(str(error))
    return await _send(session, bodies, dry_run=dry_run, wait=wait, models=models)


def bodies_of(words: tuple[str, ...], flags: dict[str, Any]) -> list[bytes]:
    """Requests as JSON, of files or of flags. Raises WrongInput."""
    from berthmaster.cli.job.arrays import array_of, in_order, parse_after
    from berthmaster.cli.job.files import read_jobs
    from berthmaster.cli.job.requests import WrongInput, from_flags
    from berthmaster.lib.messages.families import encode

    if _any_given(flags):
        if words and (words[0] == "-" or words[0].endswith((".json", ".yaml", ".yml"))):
            raise WrongInput("give files or flags, not both; a command to run stands after --")
        array = flags.pop("array", None)
        flags["after"] = parse_after(flags.get("after") or ()) or None
        request = from_flags(flags, words, f"job-{secrets.token_hex(4)}")
        return [encode(one) for one in (array_of(request, array) if array else [request])]
    if not words:
        raise WrongInput("give a file, - for standard input, or flags such as --gpus 1")
    return in_order([body for word in words for body in read_jobs(_read(word), word)])


def _any_given(flags: dict[str, Any]) -> bool:
    return any(value not in (None, ()) for value in flags.values())


def _read(word: str) -> bytes:
    from berthmaster.cli.job.requests import WrongInput

    try:
        if word == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(word).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise WrongInput(f"cannot read {word}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise WrongInput(f"{word} is larger than {MAX_FILE_BYTES:,} bytes; submit it in parts")
    return data


async def _send(
    session: Session,
    bodies: list[bytes],
    *,
    dry_run: bool,
    wait: bool,
    models: Sequence[str] = (),
) -> int:
    async with session.client() as berth:
        for warning in await _unknown_models(berth, models):
            complain(f"{warning}")
        if dry_run:
            return await _dry_run(session, berth, bodies)
        return await _submit(session, berth, bodies, wait=wait)


async def _unknown_models(berth: "Client", models: Sequence[str]) -> list[str]:
    """Of models that no cluster has: one may come yet, so that it is no error; most likely the name
    is wrong. Nothing if nobody says what there is."""
    from berthmaster.cli.nearest import did_you_mean
    from berthmaster.client.errors import BerthError
    from berthmaster.lib.engine.fleet.models import is_model

    if not models:
        return []
    try:
        async with asyncio.timeout(MODELS_LIMIT_S):
            known = [one.model for one in (await berth.gpus()).models]
    except (BerthError, TimeoutError):
        return []
    return [
        f"no cluster has GPUs of model {model}{did_you_mean(model, known)}"
        for model in dict.fromkeys(models)
        if not any(is_model(model, one) for one in known)
    ]


async def _dry_run(session: Session, berth: "Client", bodies: list[bytes]) -> int:
    from berthmaster.cli.job import why_screen as why

    placed = True
    for body in bodies:
        reply = await berth.dry_run_raw(body)
        placed &= reply.placed
        if len(bodies) == 1:
            session.out.document(reply, lambda reply=reply: why.dry_run(reply))  # type: ignore[misc]
        else:
            session.out.screen(reply, lambda reply=reply: why.dry_run(reply))  # type: ignore[misc]
    return 0 if placed else EXIT_FAILED


async def _submit(session: Session, berth: "Client", bodies: list[bytes], *, wait: bool) -> int:
    """Submit all, an answer each; one that is refused does not keep the others back."""
    from berthmaster.cli.job.requests import id_of
    from berthmaster.cli.output.terminal import safe
    from berthmaster.client.errors import RefusedError, TooLargeError, describe

    since = await berth.position() if wait else 0
    accepted: list[str] = []
    existing: set[str] = set()
    refused = 0
    number = 0
    async for _, reply in berth.submit_many(bodies):
        number += 1
        if isinstance(reply, RefusedError | TooLargeError):
            error = reply
            refused += 1
            name = id_of(bodies[number - 1]) or (f"request {number}" if len(bodies) > 1 else "")
            text = describe(error.refusal) if isinstance(error, RefusedError) else str(error)
            if session.out.as_json:
                refusal = error.refusal if isinstance(error, RefusedError) else None
                code = {"code": "too_large", "message": text}
                session.out.line({"id": name, "error": refusal or code})
            complain(f"{f'{name}: ' if name else ''}{text}")
            continue
        accepted.append(reply.id)
        if reply.existing:
            existing.add(reply.id)
        session.out.item(reply, lambda reply=reply: safe(_accepted(reply)))  # type: ignore[misc]
    if wait and accepted:
        waiting = Waiting(session, berth, set(accepted))
        for name in sorted(existing):
            await waiting.there(name)  # if it had ended, no event will come
        refused += await waiting.follow_all(since)
    elif len(accepted) == 1 and not refused and sys.stderr.isatty():
        session.out.say(f"berth why {accepted[0]} says where it goes, or why not yet")
    return EXIT_FAILED if refused else 0


def _accepted(reply: "SubmitReply") -> str:
    if reply.existing:
        return f"{reply.id} was accepted before and is {reply.state}"
    return f"{reply.id} accepted for tenant {reply.tenant} (event {reply.sequence})"
