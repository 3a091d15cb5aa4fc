"""A door on a test's server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from berthmaster.control.door.service import main
from berthmaster.control.door.settings import DoorSettings
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.runtime.service import Context
from tests.bus.shells import running
from tests.bus.tools import Lines, connected
from tests.support.patience import patient


@asynccontextmanager
async def door(url: str, **settings: Any) -> AsyncIterator[Context[DoorSettings]]:
    """One replica on this server; the streams are there."""
    given = patient(DoorSettings, "door", nats_url=url, http_port=-1, **settings)
    async with running("door", given, main) as ctx:
        yield ctx


@asynccontextmanager
async def with_door(url: str, *, log: Lines | None = None) -> AsyncIterator[Connection]:
    async with connected(url, replicas=1, log=log) as conn, door(url):
        yield conn
