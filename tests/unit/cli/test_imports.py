"""What a command pays for before it does anything: it imports what it uses, and nothing else."""

import json
import subprocess
import sys

import pytest

import berthmaster.client
from berthmaster.services import SERVICES
from tests.support.patience import hang_s

PROGRAM = """
import json, sys
from berthmaster.cli.main import main
sys.argv = ["berth", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit:
    pass
print()
print(json.dumps(sorted(sys.modules)))
"""


def imported_by(*argv: str) -> set[str]:
    """The modules that one command has imported at its end."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(argv)],
        check=True,
        capture_output=True,
        text=True,
        timeout=hang_s(),
    )
    return set(json.loads(told.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "argv",
    [
        ("--version",),
        ("--help",),
        ("jobs", "--help"),
        ("submit", "--help"),
        ("why", "--help"),
        ("watch", "--help"),
        ("submit",),  # without anything to submit: a usage error
    ],
    ids=" ".join,
)
def test_what_asks_nobody_needs_no_bus(argv: tuple[str, ...]) -> None:
    assert not imported_by(*argv) & {"nats", "aiohttp", "numpy", "berthmaster.client.client"}


def test_only_who_talks_to_an_api_server_pays_for_the_client_of_kubernetes() -> None:
    heavy = {"kubernetes_asyncio", "aiohttp"}
    assert not imported_by("--version") & heavy
    assert not imported_by("serve", "scorer", "--help") & heavy
    light = ("archivist", "emulator", "gateway", "resolver", "scorer", "telemetry")
    program = "".join(f"import {SERVICES[name].module}\n" for name in light)
    program += f"import sys; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=hang_s())


def test_a_command_that_asks_the_bus_takes_nats_without_websockets() -> None:
    modules = imported_by("jobs", "--server", "nats://127.0.0.1:1")
    assert "nats.aio.client" in modules
    assert not modules & {"aiohttp", "numpy", "nats.micro", "uvloop", "prometheus_client"}


def test_websockets_are_there_for_who_names_one() -> None:
    program = """
import sys
from berthmaster.lib.nats import connection, nats_py
from nats.aio import transport
assert transport.aiohttp is None and "aiohttp" not in sys.modules
nats_py.allow_websockets()
import aiohttp
assert transport.aiohttp is aiohttp and transport.multidict is not None
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=hang_s())


def test_every_name_of_the_client_is_found_when_it_is_asked_for() -> None:
    for name in berthmaster.client.__all__:
        assert getattr(berthmaster.client, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        _ = berthmaster.client.Klient
