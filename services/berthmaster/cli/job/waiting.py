"""Waiting until workloads run, or have ended, with what happens to them shown meanwhile."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Literal

from berthmaster.cli.job.commands import ENDINGS
from berthmaster.cli.session import Session

if TYPE_CHECKING:
    from berthmaster.client import Client, SeenEvent
    from berthmaster.lib.messages.api import WorkloadView

Goal = Literal["running", "ended"]
_SOON_S: Final = 10.0
_PAUSE_S: Final = 0.05


class Waiting:
    def __init__(
        self, session: Session, berth: "Client", open_: set[str], goal: Goal = "ended"
    ) -> None:
        self.bad = 0  # ended otherwise than well
        self.open = open_  # the others
        self.views: dict[str, WorkloadView] = {}  # as they were when they had come so far
        self._session = session
        self._berth = berth
        self._states = {*ENDINGS, "running"} if goal == "running" else set(ENDINGS)

    async def there(self, name: str) -> "WorkloadView | None":
        """The workload if it has come so far. Asked, not folded: an event alone does not tell
        whether it counted. Raises RefusedError where there is no such workload."""
        view = (await self._berth.get(name)).workload
        if view.state not in self._states:
            return None
        self.open.discard(name)
        self.views[name] = view
        self.bad += view.state in ENDINGS and view.state != "succeeded"
        return view

    async def follow_all(self, since: int) -> int:
        """Show events from ``since`` on until all are there; how many ended otherwise than well."""
        if self.open:
            await self._follow(self._berth.watch(since=since))
        return self.bad

    async def _there_soon(self, name: str) -> bool:
        """An event can reach us before the gateway has it, so a "not yet" is asked again."""
        deadline = time.monotonic() + _SOON_S
        while not await self.there(name):
            if time.monotonic() > deadline:
                return False  # it was void: it goes on
            await asyncio.sleep(_PAUSE_S)
        return True

    async def _follow(self, events: "AsyncGenerator[SeenEvent, None]") -> None:
        """Show events until all workloads are there."""
        from berthmaster.cli.job.screen import event_line
        from berthmaster.lib.messages.families import event_kind

        async with aclosing(events):
            async for seen in events:
                event = seen.event
                if event.id not in self.open or event.tenant != self._berth.tenant:
                    continue
                self._session.out.item(
                    seen,
                    lambda seen=seen: event_line(  # type: ignore[misc]
                        seen.event, seen.stored_at_s, width=self._session.out.width
                    ),
                )
                reached = event_kind(event) in self._states
                if reached and await self._there_soon(event.id) and not self.open:
                    return
