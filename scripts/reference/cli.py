"""The page of the command line, from the click commands of `berth`."""

from collections.abc import Iterator
from typing import Final

import click

from berthmaster.cli.main import SECTIONS, berth
from scripts.reference.markdown import MADE_BY, cell, table, wrapped

HEAD: Final = """# Command line

{made_by}

Every command takes `--help`. Commands that talk to the bus also take `--server`, `--context`,
`--data` and `--json` ([Choose the bus](../users/buses.md)).
"""
OF_EVERY_COMMAND: Final = frozenset({"help", "server", "context_name", "data", "as_json"})
UNLISTED: Final = {"serve"}  # its subcommands have the settings, a page of their own


def page() -> str:
    """Return the page: sections as in `berth --help`, a heading for each command."""
    parts = [HEAD.format(made_by=MADE_BY)]
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
    rows = [
        row
        for param in command.get_params(context)
        if param.name not in OF_EVERY_COMMAND and (row := _row(param, context)) is not None
    ]
    if rows:
        yield table(("option", "meaning"), rows) + "\n"
    if isinstance(command, click.Group) and context.info_name not in UNLISTED:
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _entries(below, click.Context(below, info_name=name, parent=context))


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
