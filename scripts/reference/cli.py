"""The page of the command line, from the click commands of `berth`."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

import click

from berthmaster.cli.main import SECTIONS, berth
from berthmaster.cli.session import bus_options
from scripts.reference.markdown import MADE_BY, cell, table, wrapped

COLUMNS: Final = ("option", "meaning")
HEAD: Final = """# Command line

{made_by}

Every command takes `--help`.

## Bus options

Commands that talk to the bus take these options, too ([Choose the bus](../users/buses.md)):

{options}
"""
HELP_OPTION: Final = "_click_default_help"
BUS_OPTIONS: Final = "Also takes the [bus options](#bus-options).\n"
UNLISTED: Final = {"serve"}  # its subcommands have the settings, a page of their own


def page() -> str:
    """Return the page: sections as in `berth --help`, a heading for each command."""
    parts = [HEAD.format(made_by=MADE_BY, options=table(COLUMNS, _bus_rows()))]
    context = click.Context(berth, info_name="berth")
    for title, commands in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in commands:
            command = berth.get_command(context, name)
            assert command is not None, name
            parts += _entries(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(parts)


def _entries(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"### {context.command_path}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```\n{context.command_path} {usage}\n```\n"
    for paragraph in (command.help or "").split("\n\n"):
        yield wrapped(_escaped(paragraph.replace("\b", ""))) + "\n"
    rows, shared = _rows(command, context), _bus_rows()
    on_bus = set(shared) <= set(rows)
    if own := [row for row in rows if not (on_bus and row in shared)]:
        yield table(COLUMNS, own) + "\n"
    if on_bus:
        yield BUS_OPTIONS
    if isinstance(command, click.Group) and context.info_name not in UNLISTED:
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _entries(below, click.Context(below, info_name=name, parent=context))


@cache
def _bus_rows() -> Sequence[tuple[str, str]]:
    command = click.command()(bus_options(lambda: None))
    return _rows(command, click.Context(command))


def _rows(command: click.Command, context: click.Context) -> Sequence[tuple[str, str]]:
    return [
        row
        for param in command.get_params(context)
        if param.name != HELP_OPTION and (row := _row(param, context)) is not None
    ]


def _row(param: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    if not isinstance(param, click.Option):
        return None
    record = param.get_help_record(context)
    if record is None:
        return None
    names, text = record
    return f"`{cell(names)}`".replace("&lt;", "<"), cell(text)


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
