"""Runtimes: list them, show one, set them from a file, remove one."""

from collections.abc import Mapping
from typing import IO

import click
from msgspec.structs import replace

from berthmaster.cli.completion import RUNTIME
from berthmaster.cli.job.files import read_named
from berthmaster.cli.output.errors import complain, did_you_mean
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import Session, bus_command, operator_reply, usage
from berthmaster.cli.values import WrongInput
from berthmaster.client import Client
from berthmaster.lib.jobs.kinds.ray_job import ray_words
from berthmaster.lib.messages.fleet import ClusterProfile
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN
from berthmaster.lib.requests.templates import runtime_setting


@click.group()
def runtime() -> None:
    """Set or list runtimes. Requests name a runtime with --runtime."""


@runtime.command("list")
@form_option
@bus_command
async def runtime_list(session: Session, form: Form | None) -> None:
    """List all runtimes: built-in and set by operators."""
    from berthmaster.cli.runtime import screen

    async with session.client() as berth:
        found = await _known(berth)
        settings = [one for _, one in sorted(found.items()) if not one.deleted]
        write_list(
            session.out,
            form,
            settings,
            settings,
            lambda one: one.runtime,
            lambda _: screen.table(settings),
        )


@runtime.command("show")
@click.argument("name", type=RUNTIME)
@bus_command
async def runtime_show(session: Session, name: str) -> None:
    """Show a runtime as JSON, in the form of `berth runtime apply`.

    For a runtime of Ray, standard error names the creator of the pods in each cluster.
    """
    import msgspec

    async with session.client() as berth:
        found = await _of(berth, name)
        from berthmaster.cli.output.terminal import safe

        text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
        session.out.document(found, lambda: safe(text))
        if found.template.kuberay and not session.out.as_json:
            profiles = [seen.fact for seen in await berth.fleet()]
            for one in profiles:
                if isinstance(one, ClusterProfile) and one.job_kinds is not None:
                    complain(f"{one.cluster}: {ray_words(one.job_kinds)}")


@runtime.command("apply")
@click.option(
    "-f",
    "--file",
    "file",
    required=True,
    type=click.File("rb"),
    help="Runtimes as JSON: one, an array, or one a line; '-' reads standard input.",
)
@bus_command
async def runtime_apply(session: Session, file: IO[bytes]) -> None:
    """Set runtimes from a file. Submitted jobs keep their version.

    All runtimes are validated before the first is set.
    """
    try:
        settings = read_runtimes(file.read(), file.name)
    except WrongInput as error:
        usage(str(error))
    async with session.client() as berth:
        for setting in settings:
            reply = await berth.set_runtime(setting)
            text = f"runtime {setting.runtime} is set, version {setting.version}"
            operator_reply(session, reply, text)


@runtime.command("remove")
@click.argument("name", type=RUNTIME)
@bus_command
async def runtime_remove(session: Session, name: str) -> None:
    """Remove a runtime from new requests; submitted jobs continue."""
    async with session.client() as berth:
        setting = replace(await _of(berth, name), deleted=True, set_by="", set_at_s=0.0)
        reply = await berth.set_runtime(setting)
        operator_reply(session, reply, f"runtime {name} is removed")


def read_runtimes(data: bytes, where: str) -> list[RuntimeSetting]:
    """Return all runtimes of a file, each validated as in the gateway. Raises WrongInput."""
    return read_named(data, where, "runtime", runtime_setting, lambda setting: setting.runtime)


async def _known(berth: Client) -> Mapping[str, RuntimeSetting]:
    facts = [fact for fact in await berth.control() if isinstance(fact, RuntimeSetting)]
    return {**BUILT_IN, **{fact.runtime: fact for fact in facts}}


async def _of(berth: Client, name: str) -> RuntimeSetting:
    found = await _known(berth)
    if name not in found or found[name].deleted:
        names = [one.runtime for one in found.values() if not one.deleted]
        usage(f"there is no runtime {name!r}{did_you_mean(name, names)}")
    return found[name]
