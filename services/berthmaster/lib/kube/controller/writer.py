"""Carries writes out to an API server and says in one form what became of each.

A service's writer has the verbs (``write``). Shared is all around them: how many are under way at
once, how long one may take, how errors become answers, for how long a 403 is doubted
(lib/kube/denials.py), and that a fault of ours is an answer too.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer, Declined, Outcome, answer_to
from berthmaster.lib.kube.denials import Denials
from berthmaster.lib.kube.errors import AlreadyExists, Conflict, Forbidden, KubernetesError

AT_ONCE: Final = 16  # a herd of writes must not take all of the server
LIMIT_S: Final = 120.0  # of one write with all its repetitions; each call has a limit of its own
W = TypeVar("W")


class Writer(Generic[W]):
    def __init__(self, client: Client, *, at_once: int = AT_ONCE, limit_s: float = LIMIT_S) -> None:
        self.client = client
        self.may_write: Callable[[], bool] = lambda: True  # asked when a write's turn has come
        self._turns = asyncio.Semaphore(at_once)
        self._limit_s = limit_s
        self._denials = Denials()

    async def write(self, write: W) -> Answer:
        """The verbs. May raise KubernetesError and Declined."""
        raise NotImplementedError

    async def read(self, write: W) -> object:
        """What the server has of it now, asked after a conflict; None where that is of no use."""
        return None

    def right(self, write: W) -> Hashable:
        """What must be allowed for it: refusals are doubted for each of these by itself."""
        return type(write).__name__

    async def carry_out(self, write: W) -> Answer:
        """Do it; what became of it. Raises nothing."""
        try:
            async with self._turns, asyncio.timeout(self._limit_s):
                if not self.may_write():
                    return Answer(Outcome.LATER, "NotActing", "this replica may not act now")
                return await self._written(write)
        except TimeoutError:
            return Answer(Outcome.LATER, "TimedOut", f"not done within {self._limit_s:g} s")
        except Exception as error:  # noqa: BLE001 - one odd object must not end the rest
            # Its text may hold what came out of a Secret.
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
