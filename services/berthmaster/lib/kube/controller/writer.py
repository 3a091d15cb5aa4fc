"""Carries out writes to an API server, and returns an ``Answer`` for each.

A service's writer implements ``write``. The rest is shared: the limit of writes in flight, the time
limit of each write, errors as answers, retries after a 403 (lib/kube/denials.py), and answers for
unexpected exceptions.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer, Declined, Outcome, answer_to
from berthmaster.lib.kube.denials import Denials
from berthmaster.lib.kube.errors import AlreadyExists, Conflict, Forbidden, KubernetesError

AT_ONCE: Final = 16  # a burst of writes must not occupy the whole server
LIMIT_S: Final = 120.0  # of one write with all its retries; each call has its own limit
W = TypeVar("W")


class Writer(Generic[W]):
    def __init__(self, client: Client, *, at_once: int = AT_ONCE, limit_s: float = LIMIT_S) -> None:
        self.client = client
        self.may_write: Callable[[], bool] = lambda: True  # checked just before the write
        self._turns = asyncio.Semaphore(at_once)
        self._limit_s = limit_s
        self._denials = Denials()

    async def write(self, write: W) -> Answer:
        """Carry out one write. May raise KubernetesError and Declined."""
        raise NotImplementedError

    async def read(self, write: W) -> object:
        """Return the server's current object after a conflict, or None if not needed."""
        return None

    def right(self, write: W) -> Hashable:
        """Return the right that a write needs. Retries after a 403 are counted for each right."""
        return type(write).__name__

    async def carry_out(self, write: W) -> Answer:
        """Carry out a write and return the answer. Raise nothing."""
        try:
            async with self._turns, asyncio.timeout(self._limit_s):
                if not self.may_write():
                    return Answer(Outcome.LATER, "NotActing", "this replica may not act now")
                return await self._written(write)
        except TimeoutError:
            return Answer(Outcome.LATER, "TimedOut", f"not done within {self._limit_s:g} s")
        except Exception as error:  # noqa: BLE001 - one odd object must not end the rest
            # The message may hold part of a Secret.
            return Answer(Outcome.DENIED, "Fault", f"a fault of ours: {type(error).__name__}")

    async def _written(self, write: W) -> Answer:
        right = self.right(write)
        try:
            try:
                answer = await self.write(write)
            except (Conflict, AlreadyExists) as error:
                return answer_to(error)._replace(found=await self.read(write))
        except Forbidden as error:
            now_s = asyncio.get_running_loop().time()
            pause_s = self._denials.pause_s(right, error, now_s)
            answer = answer_to(error)
            if pause_s is None:
                return answer
            return answer._replace(outcome=Outcome.LATER, pause_s=pause_s)
        except (KubernetesError, Declined) as error:
            return answer_to(error)
        self._denials.allowed(right)
        return answer
