"""The door (agent API) for a service in a worker cluster: a connection, once the door answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.service_connection import connected
from berthmaster.lib.runtime.periodic import stopped_within
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
NAME_FIRST_S: Final = 5.0  # until the first check whether this cluster has another name
NAME_EVERY_S: Final = 60.0  # between two checks
NAME: Final = "name of the cluster"
S = TypeVar("S", bound=CommonSettings)


@asynccontextmanager
async def service_door(ctx: Context[S], cluster: str) -> AsyncIterator[DoorClient | None]:
    """Yield a client of a cluster's door once the door answers; None if the service stops before.
    Raises CannotStart when the server refuses this user.
    """
    async with connected(ctx, clock_subject=subjects.agent(cluster, "hello")) as conn:
        if conn is None:
            yield None
            return
        door = DoorClient(conn, cluster)
        if not await door_answers(ctx, door):
            yield None
            return
        ctx.spawn(_watch_name(ctx, door), name=NAME)
        ctx.spawn(door.keep_greeting(ctx.stopping), name="greet the door")
        yield door


async def _watch_name(ctx: Context[S], door: DoorClient) -> None:
    """Report if this cluster's API server is in the fleet under a second name: once in the log, and
    in /readyz. The service stays ready, since running jobs need the service.
    """
    reported = ""
    pause_s = NAME_FIRST_S
    while not await stopped_within(pause_s, ctx.stopping):
        pause_s = NAME_EVERY_S
        try:
            same_as = (await door.hello()).same_as
        except BusError:
            continue  # the component "door" reports the error
        if same_as == reported:
            continue
        reported = same_as
        why = f"cluster {door.cluster} is the API server of cluster {same_as}, which counts"
        ctx.health.ready(NAME, True, note=why if same_as else "")
        if same_as:
            ctx.log.error("cluster has two names", cluster=door.cluster, same_as=same_as)


async def door_answers(ctx: Context[S], door: DoorClient) -> bool:
    """Wait for the door. Return False if the service stops before."""
    ctx.health.ready("door", False, "the door has not answered yet")
    is_logged = False
    pause_s = FIRST_PAUSE_S
    while not ctx.stopping.is_set():
        try:
            await door.hello()
        except BusError as error:
            ctx.health.ready("door", False, str(error))
            if not is_logged:
                ctx.log.warning("waiting for the door", why=str(error))
                is_logged = True
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            ctx.health.ready("door", True)
            return True
        await stopped_within(pause_s, ctx.stopping)
    return False
