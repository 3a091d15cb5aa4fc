"""A replay that is stopped still tells the truth about what it has submitted."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from berthmaster.cli.context.target import BusTarget
from berthmaster.cli.demo.load import Account
from berthmaster.cli.demo.replay import Replay
from berthmaster.cli.session import Output, Session
from berthmaster.client import SeenEvent
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.api import SubmitReply
from berthmaster.lib.messages.workload import JobRequest, Submitted
from tests.support.builders import job


class Far:
    """A client whose events come long after the answers."""

    def __init__(self) -> None:
        self.tenant = "default"
        self.all_submitted = asyncio.Event()
        self.may_come = asyncio.Event()
        self._requests: list[JobRequest] = []

    async def last_sequence(self) -> int:
        return 0

    async def submit(self, request: JobRequest) -> SubmitReply:
        self._requests.append(request)
        if len(self._requests) == 3:
            self.all_submitted.set()
        return SubmitReply(tenant=self.tenant, id=request.id, sequence=len(self._requests))

    async def watch(self, *, since: int) -> AsyncGenerator[SeenEvent, None]:
        await self.may_come.wait()
        for sequence, request in enumerate(self._requests[since:], since + 1):
            submitted = Submitted(
                tenant=self.tenant,
                id=request.id,
                after=0,
                at_s=1.0,
                by="test",
                request=request,
                digest=request_digest(request),
            )
            yield SeenEvent(sequence=sequence, stored_at_s=1.0, event=submitted)
        await asyncio.Event().wait()


def test_ctrl_c_reads_to_the_last_that_was_accepted_before_it_calls_any_missing() -> None:
    async def story() -> Account:
        target = BusTarget(url="", tenant="", creds_file="", inbox_prefix="", source="")
        session = Session(target, Output(as_json=True), 1.0)
        far: Any = Far()
        arrivals = [(0.0, job(name)) for name in ("a", "b", "c")] + [(1e6, job("never"))]
        stopping = asyncio.Event()
        playing = asyncio.create_task(
            Replay(session, far, arrivals, 1.0, 10.0, 8).play(stopping, 60.0)
        )
        await far.all_submitted.wait()
        stopping.set()  # Ctrl-C, while all three events are still on their way
        for _ in range(100):
            await asyncio.sleep(0)
        assert not playing.done()
        far.may_come.set()
        report = await playing
        assert report.balanced
        return report.account

    account = asyncio.run(story())
    assert (account.submitted, account.waiting, account.missing) == (3, 3, 0)
