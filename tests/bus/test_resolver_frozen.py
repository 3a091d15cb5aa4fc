"""A workload that was frozen is looked at again when its reader starts again."""

import asyncio
from pathlib import Path

import msgspec

from berthmaster.bus import subjects
from berthmaster.bus.embedded import Server
from berthmaster.bus.snapshots import load
from berthmaster.bus.streams import WORKLOADS
from berthmaster.messages.api import WhyReply
from tests.bus.test_resolver import fleet, resolver
from tests.bus.tools import accept_log
from tests.support.builders import job


def test_an_event_that_nobody_can_read_freezes_until_a_restart_finds_it_cured(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with fleet(server.url) as world:
                # No cluster has reported, so it waits; then comes what this version cannot read.
                await world.submit(job("a", gpus=1))
                subject = subjects.workload_event("team", "a", "reprioritized", None)
                strange = b'{"type": "workload.reprioritized.v9", "tenant": "team", "id": "a"}'
                acked = await world.conn.request(subject, strange, timeout_s=5)
                sequence = msgspec.json.decode(acked.data)["seq"]
                async with resolver(server.url, snapshot_s=1.0):
                    why = await world.ask("why", b'{"id": "a"}')
                    assert isinstance(why, WhyReply)
                    assert why.summary.startswith("frozen: ")
                    await world.report()
                    await world.submit(job("b", gpus=1))
                    assert await world.placed("b") is not None
                    why = await world.ask("why", b'{"id": "a"}')  # with room for it, too
                    assert isinstance(why, WhyReply)
                    assert why.summary.startswith("frozen: ")
                    for _ in range(500):
                        if await load(world.conn, "resolver-all") is not None:
                            break
                        await asyncio.sleep(0.02)

                # A person has looked, and took it out; a newer reader would have read it.
                await world.conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", {"seq": sequence})
                await accept_log(world.conn)
                async with resolver(server.url):
                    assert await world.placed("a") is not None

    asyncio.run(story())
