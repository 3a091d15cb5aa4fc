"""`berth submit`: requests from files, standard input or flags, followed to their end by --wait."""

import asyncio
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berthmaster.cli.job.arrays import array_of, in_order
from berthmaster.cli.job.files import id_of, read_jobs
from berthmaster.cli.job.requests import ARRAY, OPTIONS, from_flags
from berthmaster.cli.job.wait import Waiting
from berthmaster.cli.output.errors import complain, did_you_mean
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage
from berthmaster.cli.values import WrongInput
from berthmaster.lib.messages.families import encode

if TYPE_CHECKING:
    from berthmaster.client import Client
    from berthmaster.lib.messages.api import SubmitReply

MAX_FILE_BYTES = 64 * 1024 * 1024
MODELS_LIMIT_S = 0.5  # seconds; a submit waits no longer for the list of models


@click.command(epilog="Flags after -- are the command to run: berth submit --gpus 1 -- python t.py")
@click.argument("words", nargs=-1, metavar="[FILE]... [-- COMMAND]")
@OPTIONS
@ARRAY
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="File of jobs, as FILE; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show where the job would be placed; submit nothing.")
@click.option(
    "--wait", is_flag=True, help="Follow the jobs to their end; exit code 1 if one fails."
)
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
    """Submit jobs from files of JSON or YAML ('-' is standard input), or one job from options.

    A file has one request, an array, one request a line, or YAML documents. `after: ID`, or a list
    of ID, ID:succeeded or ID:ended, names the predecessors of a job. Predecessors are submitted
    first. A file with a circle of predecessors is refused as a whole. Repeating a submit with the
    same id and content is harmless.
    """
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
    """Return requests as JSON, from files or flags. Raises WrongInput."""
    if _any_given(flags):
        if words and (words[0] == "-" or words[0].endswith((".json", ".yaml", ".yml"))):
            raise WrongInput("give files or flags, not both; a command to run stands after --")
        array = flags.pop("array", None)
        request = from_flags(flags, words, f"job-{secrets.token_hex(4)}")
        return [encode(one) for one in (array_of(request, array) if array else [request])]
    if not words:
        raise WrongInput("give a file, - for standard input, or flags such as --gpus 1")
    return in_order([body for word in words for body in read_jobs(_read(word), word)])


def _any_given(flags: dict[str, Any]) -> bool:
    return any(value not in (None, ()) for value in flags.values())


def _read(word: str) -> bytes:
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
    """Return warnings about models that no cluster has.

    A cluster may register later, so these are no errors. Return none if the gateway does not answer
    in time.
    """
    from berthmaster.client.errors import BerthError
    from berthmaster.lib.engine.fleet.gpus import is_model

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
    from berthmaster.cli.job import screen

    placed = True
    for body in bodies:
        reply = await berth.dry_run_raw(body)
        placed &= reply.placed
        if len(bodies) == 1:
            session.out.document(reply, lambda reply=reply: screen.dry_run(reply, berth.now()))  # type: ignore[misc]
        else:
            session.out.screen(reply, lambda reply=reply: screen.dry_run(reply, berth.now()))  # type: ignore[misc]
    return 0 if placed else EXIT_FAILED


async def _submit(session: Session, berth: "Client", bodies: list[bytes], *, wait: bool) -> int:
    """Submit all requests, and write each reply. A refusal does not stop the others."""
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
            await waiting.check(name)  # an ended job has no further event
        refused += await waiting.follow_all(since)
    elif len(accepted) == 1 and not refused and sys.stderr.isatty():
        session.out.say(f"berth why {accepted[0]} says where it goes, or why not yet")
    return EXIT_FAILED if refused else 0


def _accepted(reply: "SubmitReply") -> str:
    if reply.existing:
        return f"{reply.id} was accepted before and is {reply.state}"
    return f"{reply.id} accepted for tenant {reply.tenant} (event {reply.sequence})"
