"""`berth serve SERVICE [flags]`: one service as this process.

Imports nothing but the service it starts: a container holds only its own extra, and a terminal's
libraries would cost each of them start-up time and memory.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from berthmaster.runtime.service import Service

SERVICES = (
    "gateway",
    "resolver",
    "scorer",
    "archivist",
    "usage",
    "door",
    "accounts",
    "login",
    "telemetry",
    "emulator",
    "inventory",
    "executor",
    "figures",
    "multikueue",
    "karmada",
    "credentials",
    "ocm",
    "admission",
    "placement",
    "dashboard",
    "hub",
    "agent",
)
PODS = {  # several in one pod
    "hub": "berthmaster.supervisor.hub",
    "agent": "berthmaster.supervisor.agent",
}
EXTRAS = {
    "inventory": "kubernetes",
    "executor": "kubernetes",
    "figures": "kubernetes",
    "credentials": "kubernetes",
    "placement": "kubernetes",
    "karmada": "kubernetes",
}
USAGE = f"usage: berth serve {{{','.join(SERVICES)}}} [--help | flags]"
EXIT_USAGE = 2
EXIT_ABSENT = 3


def serve(argv: Sequence[str]) -> int:
    """Run the service named first with the rest as its flags; returns the exit code."""
    if argv[:1] == ["--help"] or argv[:1] == ["-h"]:
        _say(USAGE)
        return 0
    if not argv or argv[0] not in SERVICES:
        given = f"no service {argv[0]!r}\n" if argv else ""
        _say(f"{given}{USAGE}", error=True)
        return EXIT_USAGE
    try:
        service = find(argv[0])
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(argv[0], argv[0])
        _say(
            f"berth serve {argv[0]}: {error.name} is not installed; "
            f"pip install 'berthmaster[{extra}]' brings what this service needs",
            error=True,
        )
        return EXIT_ABSENT
    from berthmaster.runtime.service import run

    return run(service, list(argv[1:]), os.environ)


def find(name: str) -> "Service[Any]":
    """Import one service by name."""
    service: Service[Any] = importlib.import_module(
        PODS.get(name, f"berthmaster.{name}.service")
    ).SERVICE
    return service


def _say(text: str, *, error: bool = False) -> None:
    (sys.stderr if error else sys.stdout).write(f"{text}\n")
