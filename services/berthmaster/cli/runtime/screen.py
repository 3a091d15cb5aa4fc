"""Runtimes on the screen."""

from collections.abc import Sequence

from rich.console import RenderableType

from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.messages.runtimes import RuntimeParameter, RuntimeSetting


def table(settings: Sequence[RuntimeSetting]) -> RenderableType:
    """Return one row per runtime, with its parameters and their defaults."""
    shown = plain_table("RUNTIME", "VERSION", "QUEUES", "CLUSTERS", "PARAMETERS", "WHAT")
    for one in settings:
        parameters = [_parameter(name, each) for name, each in one.parameters.items()]
        shown.add_row(
            safe(one.runtime),
            safe(one.version),
            safe(", ".join(one.queues) or "all"),
            safe(", ".join(one.clusters) or "all"),
            safe(", ".join(parameters) or "-"),
            safe(one.description),
        )
    return shown


def _parameter(name: str, parameter: RuntimeParameter) -> str:
    if parameter.default is None:
        return f"{name} ({parameter.type})"
    return f"{name}={parameter.default}"
