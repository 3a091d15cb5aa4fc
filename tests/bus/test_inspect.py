"""A person looks at a story in which something cannot be read; the audit names it."""

import msgspec

from berthmaster.cli.audit.report import audit
from berthmaster.cli.audit.story import BEHIND, UNREAD, inspect
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.nats import subjects
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.test_resolver import fleet
from tests.bus.tools import reprioritized, story
from tests.support.builders import job
from tests.support.patience import ANSWER_S


@story
async def test_a_story_is_shown_up_to_what_nobody_can_read_and_beyond(server: Server) -> None:
    async with fleet(server.url) as world:
        await world.submit(job("a", gpus=1))
        await world.submit(job("b", gpus=1))
        assert await inspect(world.conn, "team", "never") == []
        assert (await audit(world.conn)).clean
        first = (await inspect(world.conn, "team", "a"))[0]

        # Somebody follows on what was never of this workload, then comes garbage, then the truth.
        lie = msgspec.structs.replace(reprioritized("a", 2, 7), tenant="team")
        where = subjects.workload_event("team", "a", "reprioritized", None)
        lied = await world.conn.store(where, msgspec.json.encode(lie), timeout_s=ANSWER_S)
        torn = await world.conn.store(where, b"\x00 garbage", timeout_s=ANSWER_S)
        behind = msgspec.structs.replace(reprioritized("a", torn, 8), tenant="team")
        assert isinstance(await world.log.append(behind), Stored)

        lines = await inspect(world.conn, "team", "a")
        assert [(line.sequence, line.verdict, line.kind) for line in lines] == [
            (first.sequence, "counted", "submitted"),
            (lied, "ahead", "reprioritized"),
            (torn, UNREAD, ""),
            (torn + 1, BEHIND, "reprioritized"),
        ]
        assert lines[2].why
        assert [line.verdict for line in await inspect(world.conn, "team", "b")] == ["counted"]
        report = await audit(world.conn)
        assert not report.clean
        frozen = [f for f in report.findings if f.rule == "no workload is frozen"]
        assert [(f.sequence, f.where) for f in frozen] == [(torn, "team/a")]
        assert report.frozen == 1
