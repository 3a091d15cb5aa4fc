"""Submits a stream of requests at its own pace, and tracks the result of each.

Arrivals are open-loop: a slow response does not slow the stream, up to a limit of requests in
flight. A request without a response in time is unknown until the log shows it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from berthmaster.client import BerthError, Client, RefusedError, TooLargeError, UnavailableError
from berthmaster.lib.messages.workload import JobRequest

MAX_IN_FLIGHT: Final = 256
SHOWN_PROBLEMS: Final = 5


class LoadResult(msgspec.Struct, kw_only=True):
    """The results of the requests so far."""

    offered: int = 0
    accepted: int = 0
    existing: int = 0  # number of accepted requests that were submitted before
    refused: int = 0
    unknown: int = 0  # number without a response in time: they may be in the log
    problems: dict[str, int] = {}  # the first few problems, with their counts
    late_s: float = 0.0  # delay of the stream in seconds

    def note(self, problem: str) -> None:
        """Count the reason of a refusal, up to a limit of reasons."""
        if problem in self.problems or len(self.problems) < SHOWN_PROBLEMS:
            self.problems[problem] = self.problems.get(problem, 0) + 1


class Load:
    """One stream of requests in flight."""

    def __init__(
        self,
        berth: Client,
        *,
        before: Callable[[JobRequest], None] = lambda request: None,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        """Call ``before`` with each request before it is sent."""
        self._berth = berth
        self._before = before
        self._slots = asyncio.Semaphore(max_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self.result = LoadResult()
        self.accepted_ids: set[str] = set()
        self.last_sequence = 0  # last sequence of the accepted requests' events
        self.unknown_ids: set[str] = set()

    async def run(self, arrivals: Iterable[tuple[float, JobRequest]], speed: float) -> None:
        """Submit each request at its time in seconds, times ``speed``, and wait for the responses.

        ``speed`` 0 submits as fast as responses arrive.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            for at_s, request in arrivals:
                due_s = began_s + at_s / speed if speed else loop.time()
                if (wait_s := due_s - loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                await self._slots.acquire()
                self.result.late_s = max(0.0, loop.time() - due_s)
                self._before(request)
                self.result.offered += 1
                task = asyncio.create_task(self._submit(request), name=f"submit {request.id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _submit(self, request: JobRequest) -> None:
        result = self.result
        try:
            reply = await self._berth.submit(request)
            result.accepted += 1
            result.existing += reply.existing
            self.accepted_ids.add(request.id)
            self.last_sequence = max(self.last_sequence, reply.sequence)
        except (RefusedError, TooLargeError) as error:
            result.refused += 1
            result.note(str(error))
        except UnavailableError as error:
            result.unknown += 1
            result.note(str(error))
            self.unknown_ids.add(request.id)
        except BerthError as error:
            result.refused += 1
            result.note(str(error))
        finally:
            self._slots.release()


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The state of every submitted workload. The sum must be right."""

    offered: int
    refused: int
    submitted: int  # number of workloads that the log must have
    succeeded: int
    failed: int
    cancelled: int
    running: int  # owned by a cluster or on the way there: placed, claimed, admitted, running
    waiting: int
    missing: int  # accepted, but missing in the log: must be 0
    missing_ids: tuple[str, ...] = ()

    @property
    def balanced(self) -> bool:
        """Return whether submitted = succeeded + failed + cancelled + running + waiting."""
        known = self.succeeded + self.failed + self.cancelled + self.running + self.waiting
        return self.missing == 0 and self.submitted == known and self.offered >= self.submitted


def account(
    result: LoadResult, states: Counter[str], expected: set[str], seen: set[str]
) -> Account:
    """Compare the accepted jobs (``expected``) with the log (``seen``, ``states``)."""
    missing = sorted(expected - seen)
    held = sum(states[state] for state in ("placed", "claimed", "admitted", "running"))
    return Account(
        offered=result.offered,
        refused=result.refused,
        submitted=len(expected | seen),
        succeeded=states["succeeded"],
        failed=states["failed"],
        cancelled=states["cancelled"],
        running=held,
        waiting=states["queued"],
        missing=len(missing),
        missing_ids=tuple(missing[:20]),
    )
