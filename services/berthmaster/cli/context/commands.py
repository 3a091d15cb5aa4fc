"""`berth context list | set | use | show | remove`: several buses under names of the user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from berthmaster.cli.context.file import (
    Contexts,
    ContextsWrong,
    config_folder,
    load_contexts,
    named,
    save_contexts,
    with_context,
    without,
)
from berthmaster.cli.context.identity import show
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import Output

if TYPE_CHECKING:
    from rich.console import RenderableType

NONE = "-"  # argument of `berth context use`: no context


class Listed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    current: bool
    server: str
    tenant: str = ""
    queue: str = ""
    creds_file: str = ""
    ca_file: str = ""


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@click.group()
def context() -> None:
    """Manage contexts: names for a bus with its address, tenant, queue and key."""


context.add_command(show)


@contextmanager
def _kept() -> Iterator[Path]:
    """Yield the folder of the file, and turn an invalid file or name into one line."""
    try:
        yield config_folder(os.environ)
    except ContextsWrong as error:
        raise click.UsageError(str(error)) from error


def listed(contexts: Contexts) -> list[Listed]:
    return [
        Listed(
            name=name,
            current=name == contexts.current,
            server=each.server,
            tenant=each.tenant,
            queue=each.queue,
            creds_file=each.creds_file,
            ca_file=each.ca_file,
        )
        for name, each in sorted(contexts.contexts.items())
    ]


@context.command("list")
@form_option
@json_option
def list_(form: Form | None, as_json: bool) -> None:
    """List contexts. A star marks the context in use."""
    with _kept() as folder:
        rows = listed(load_contexts(folder))
    output = Output(as_json=as_json)
    write_list(output, form, rows, rows, lambda row: row.name, lambda wide: _table(rows, wide))


def _table(rows: list[Listed], wide: bool) -> "RenderableType":
    from berthmaster.cli.output.terminal import plain_table, safe

    if not rows:
        return safe("No contexts; `berth context set NAME` makes one.")
    table = plain_table("", "NAME", "SERVER", "TENANT", "QUEUE", "KEY", *("CA",) * wide)
    for row in rows:
        cells = [row.name, row.server, row.tenant, row.queue, row.creds_file]
        cells += [row.ca_file] * wide
        table.add_row("*" if row.current else "", *(safe(cell or "-") for cell in cells))
    return table


@context.command("set")
@click.argument("name")
@click.option("--server", metavar="URL", help="Address of the NATS server.")
@click.option("--tenant", metavar="NAME", help="Tenant to act as.")
@click.option(
    "--queue", metavar="NAME", help="Queue of jobs that `berth submit` builds from flags."
)
@click.option("--creds-file", metavar="FILE", help="Credentials file (JWT and seed).")
@click.option("--ca-file", metavar="FILE", help="Certificate authority of a tls:// server.")
@click.option(
    "--plaintext/--tls", default=None, help="Allow a NATS server on another machine without TLS."
)
@json_option
def set_(name: str, as_json: bool, **flags: str | bool | None) -> None:
    """Create a context, or change the given fields. The first context is used at once."""
    given = {field: value for field, value in flags.items() if value is not None}
    for field in ("creds_file", "ca_file"):  # absolute, because commands use it from any folder
        if given.get(field):
            given[field] = str(Path(str(given[field])).expanduser().absolute())
    with _kept() as folder:
        changed = with_context(load_contexts(folder), name, given)
        save_contexts(folder, changed)
    _show(Output(as_json=as_json), changed, name)


@context.command()
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Forget a context. Its file of credentials stays."""
    from berthmaster.cli.output.terminal import safe

    with _kept() as folder:
        changed = without(load_contexts(folder), name)
        save_contexts(folder, changed)
    used = f"{changed.current} is used" if changed.current else "none is used"
    Output(as_json=as_json).document(
        {"removed": name, "current": changed.current}, lambda: safe(f"{name} is forgotten; {used}")
    )


@context.command()
@click.argument("name")
@json_option
def use(name: str, as_json: bool) -> None:
    """Use a context from now on, in every command without --context; - uses none."""
    with _kept() as folder:
        known = load_contexts(folder)
        if name != NONE:
            named(known, name)
        changed = msgspec.structs.replace(known, current="" if name == NONE else name)
        save_contexts(folder, changed)
    _show(Output(as_json=as_json), changed, changed.current)


def _show(output: Output, contexts: Contexts, name: str) -> None:
    from berthmaster.cli.output.terminal import safe

    row = next((row for row in listed(contexts) if row.name == name), None)
    if row is None:
        text = "no context is used; commands look for a `berth up` on this machine"
        output.document({"current": ""}, lambda: safe(text))
        return
    tenant = f", tenant {row.tenant}" if row.tenant else ""
    used = "is used" if row.current else f"`berth context use {name}` uses it"
    output.document(row, lambda: safe(f"{name}: {row.server}{tenant}; {used}"))
