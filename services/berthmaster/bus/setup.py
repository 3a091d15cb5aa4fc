"""Makes the streams and ends: `python -m berthmaster.bus.setup`, with the settings of a service.

For deployments where nobody's process is the parent of all: no service may make streams (see
permissions.py), so this runs once at each start or upgrade, as the user "setup". Running it again
changes nothing.
"""

import sys
from dataclasses import dataclass
from typing import Final

from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import BusError
from berthmaster.bus.streams import GIB, Storage, ensure_streams
from berthmaster.runtime.errors import CannotStart
from berthmaster.runtime.service import Context, Service, run
from berthmaster.runtime.settings import CommonSettings, setting

NAME: Final = "setup"


@dataclass(frozen=True, kw_only=True)
class SetupSettings(CommonSettings):
    """How the streams are to be."""

    replicas: int = setting(
        1, least=1, most=5, help="servers that hold each stream; 3 where there are three of them"
    )
    storage: Storage = setting(
        "file", help="file: outlives the server; memory: for trials that may forget everything"
    )
    workloads_max_gib: int = setting(
        16,
        least=1,
        most=10_000,
        help="GiB of the workloads' stream; near it new submits are refused, events never",
    )
    wait_s: float = setting(
        60.0, least=1, most=3600, help="seconds to wait for a server that is just starting"
    )


async def main(ctx: Context[SetupSettings]) -> None:
    """Connect, make or update, end. Raises CannotStart."""
    settings = ctx.settings
    try:
        async with await Connection.open(
            settings, NAME, ctx.log, timeout_s=settings.wait_s
        ) as conn:
            await ensure_streams(
                conn,
                replicas=settings.replicas,
                storage=settings.storage,
                workloads_max_bytes=settings.workloads_max_gib * GIB,
            )
    except BusError as error:
        raise CannotStart(f"the streams cannot be made: {error}") from error
    ctx.log.info("streams_ready", replicas=settings.replicas, storage=settings.storage)


SERVICE: Final = Service(NAME, SetupSettings, main)

if __name__ == "__main__":
    run(SERVICE, sys.argv[1:])
