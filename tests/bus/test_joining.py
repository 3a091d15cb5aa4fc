"""A service that has joined the bus is not ready before it could say what else it waits for."""

import asyncio

from berthmaster.lib.nats.stream_connection import request_connections, stream_connection
from berthmaster.lib.nats.streams import WORKLOADS
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.shells import client, in_loop, running


@in_loop
async def test_it_is_ready_only_when_what_it_named_after_it_joined_is_there(server: Server) -> None:
    ready: list[bool] = []

    async def main(ctx: Context[CommonSettings]) -> None:
        async with stream_connection(ctx, WORKLOADS) as conn:
            assert conn is not None
            ready.append(ctx.health.readiness()[0])
            async with request_connections(ctx, conn, lanes=0):
                ready.append(ctx.health.readiness()[0])
                ctx.health.ready("log", False, "not read")
                await asyncio.sleep(0.01)
                ready.append(ctx.health.readiness()[0])
                ctx.health.ready("log", True)
                await ctx.stopping.wait()

    settings = CommonSettings(nats_url=server.url, http_port=-1)
    async with client(server.url), running("reader", settings, main):
        assert ready == [False, False, False]
