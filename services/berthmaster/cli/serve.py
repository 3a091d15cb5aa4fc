"""`berth serve SERVICE [flags]`: runs one service as this process.

Imports only the started service: a container holds only its own extra, and a terminal's libraries
would cost start-up time and memory.
"""

import importlib
from typing import TYPE_CHECKING, Any

import click

from berthmaster.lib.runtime.errors import EXIT_CANNOT_START
from berthmaster.services import SERVICES

if TYPE_CHECKING:
    from berthmaster.lib.runtime.service import Service


class Absent(click.ClickException):
    """A library of the service is not installed."""

    exit_code = EXIT_CANNOT_START


class ServiceGroup(click.Group):
    """A group whose services are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of services.py."""
        return list(SERVICES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the called service. Raises Absent."""
        if cmd_name not in SERVICES:
            return None
        try:
            service = find(cmd_name)
        except ModuleNotFoundError as error:
            extra = SERVICES[cmd_name].extra
            raise Absent(
                f"berth serve {cmd_name}: {error.name} is not installed; "
                f"pip install 'berthmaster[{extra}]' brings what this service needs"
            ) from error
        from berthmaster.lib.runtime.service import command_of

        return command_of(service)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list in --help, without an import."""
        with formatter.section("Services"):
            formatter.write_text(", ".join(SERVICES))


@click.group(cls=ServiceGroup, context_settings={"help_option_names": ["-h", "--help"]})
def serve() -> None:
    """Run one service as this process; `berth serve SERVICE --help` lists its settings."""


def find(name: str) -> "Service[Any]":
    """Import one service by name."""
    service: Service[Any] = importlib.import_module(SERVICES[name].module).SERVICE
    return service
