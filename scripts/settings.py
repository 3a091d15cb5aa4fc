"""Writes docs/reference/settings.md: every setting of every service, from the services themselves.

::

    python -m scripts.settings          write the page
    python -m scripts.settings --check  exit with 1 where the page differs
"""

import dataclasses
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import click

from berthmaster.cli.serve import find
from berthmaster.lib.nats import setup
from berthmaster.lib.runtime.service import Service
from berthmaster.lib.runtime.settings import CommonSettings, options
from berthmaster.services import SERVICES
from scripts.generated import ROOT, write_or_check

PAGE: Final = ROOT / "docs" / "reference" / "settings.md"
MAX_NAMED: Final = 6  # services in a heading
HEAD: Final = """# Settings

<!-- python -m scripts.settings writes this page. -->

All settings of all services, {count} in total. Each is a flag of `berth serve NAME` and an
environment variable: `--log-level` of the gateway is `BERTH_GATEWAY_LOG_LEVEL`. The settings under
"All services" also have a variable for all services of one environment: `BERTH_LOG_LEVEL`.

A flag wins over the service's own variable, that one over the variable of all services, and that
one over the default. An empty variable counts as none. Lists have commas between their values.
Paths of secrets are settings, secrets are not: services read them from files.
"""


def services() -> list[Service[Any]]:
    """Return all services, and the one that makes the streams."""
    return [*(find(name) for name in SERVICES), setup.SERVICE]


def declared() -> dict[type[CommonSettings], list[str]]:
    """Return the classes that declare settings, with the names of the services that have them."""
    found: dict[type[CommonSettings], list[str]] = {}
    for service in services():
        for cls in reversed(service.settings.__mro__):
            if issubclass(cls, CommonSettings) and vars(cls).get("__annotations__"):
                found.setdefault(cls, []).append(service.name)
    return found


def rows(cls: type[CommonSettings], name: str) -> Iterator[str]:
    """Yield a table line for each setting that ``cls`` declares itself."""
    by_name = {option.name: option for option in options(cls, name)}
    for field in dataclasses.fields(cls):
        if field.name in vars(cls)["__annotations__"]:
            yield _row(by_name[field.name])


def _row(option: click.Option) -> str:
    context = click.Context(click.Command("berth"))
    extra = option.get_help_extra(context)
    default = "required" if option.required else f"`{extra.get('default', '') or 'none'}`"
    kind = extra.get("range") or option.make_metavar(context)
    cells = (f"`{option.opts[0]}`", default, f"`{kind}`", option.help or "")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def page() -> str:
    """Return the page: shared settings first, then those of each service."""
    classes = declared()
    count = sum(len(vars(cls)["__annotations__"]) for cls in classes)
    parts = [HEAD.format(count=count)]
    shared = {cls: names for cls, names in classes.items() if len(names) > 1}
    for cls, names in [
        *shared.items(),
        *(each for each in classes.items() if each[0] not in shared),
    ]:
        lines = rows(cls, names[0])
        parts.append(f"## {_title(cls, names)}\n")
        if cls is not CommonSettings and len(names) > MAX_NAMED:
            parts.append(textwrap.fill(f"Settings of {', '.join(names)}.", 99) + "\n")
        parts.append(
            "| Flag | Default | Values | Meaning |\n|---|---|---|---|\n" + "\n".join(lines) + "\n"
        )
    return "\n".join(parts)


def _title(cls: type[CommonSettings], names: list[str]) -> str:
    if cls is CommonSettings:
        return "All services"
    return ", ".join(names) if len(names) <= MAX_NAMED else f"{len(names)} services"


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: page()}, "scripts.settings", sys.argv[1:]))
