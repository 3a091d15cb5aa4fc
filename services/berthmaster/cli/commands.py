"""The commands of `berth`, by name, each imported only when it is called.

A new command is one line in COMMANDS: its name, the module and attribute of its click command, and
the line that `berth --help` shows for it, so that showing help imports none of them either.
"""

import importlib

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("berthmaster.cli.commands:serve", "Run one service as this process."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command that was called."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, from COMMANDS alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="berthmaster")
def berth() -> None:
    """Finds every GPU job its berth."""


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    help="Run one service as this process.",
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def serve(argv: tuple[str, ...]) -> None:
    """The same as main.py does by itself; here for programs that call the group."""
    from berthmaster.cli.serve import serve as run

    raise SystemExit(run(list(argv)))
