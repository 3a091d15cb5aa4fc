"""Creates the streams and exits: `python -m berthmaster.lib.nats.setup`, with the settings of a
service.

No service may create streams (lib/access/permissions.py). In a deployment without a common parent
process, this runs once at each start or upgrade, as the user "setup". A second run changes nothing.
"""

import sys
from dataclasses import dataclass
from typing import Final

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.streams import GIB, ensure_streams
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.service import Context, Service, run
from berthmaster.lib.runtime.settings import CommonSettings, setting

NAME: Final = "setup"
SERVER_WAIT_S: Final = 60.0  # for a server that is still starting


@dataclass(frozen=True, kw_only=True)
class SetupSettings(CommonSettings):
    """How to create the streams."""

    replicas: int = setting(
        1, least=1, most=5, help="replicas of each stream; 3 with three or more servers"
    )
    workloads_max_gib: int = setting(
        16,
        least=1,
        most=10_000,
        help="GiB of the stream WORKLOADS; near the limit new submits are refused, never events",
    )


async def main(ctx: Context[SetupSettings]) -> None:
    """Connect, create or update the streams, and exit. Raises CannotStart."""
    settings = ctx.settings
    try:
        async with await Connection.open(settings, NAME, ctx.log, timeout_s=SERVER_WAIT_S) as conn:
            await ensure_streams(
                conn,
                replicas=settings.replicas,
                workloads_max_bytes=settings.workloads_max_gib * GIB,
            )
    except BusError as error:
        raise CannotStart(f"the streams cannot be made: {error}") from error
    ctx.log.info("streams_ready", replicas=settings.replicas)


SERVICE: Final = Service(NAME, SetupSettings, main)

if __name__ == "__main__":
    run(SERVICE, sys.argv[1:])
