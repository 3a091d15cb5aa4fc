"""Carry out orders attempt by attempt: a task for each retries until done, refused or superseded.
Also tracks failures of the API server.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final

from berthmaster.lib.kube.denials import by_authorizer
from berthmaster.lib.kube.errors import NO_ANSWER, Conflict, Forbidden, KubernetesError
from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.lib.runtime.log import LogLike
from berthmaster.worker.executor.attempts import Goal, Held
from berthmaster.worker.executor.core.attempt_status import MAX_MESSAGE_CHARS
from berthmaster.worker.executor.core.cluster_protocol import (
    CreatePods,
    PodEvent,
    PodsExpired,
    PodsWaiting,
    ResizePods,
)
from berthmaster.worker.executor.writer import Expired, JobWriter, RefusedToMake

PAUSES: Final = Backoff(first_s=0.1, most_s=15.0)
SLOW_S: Final = 4.0  # servers under load take seconds; what takes longer may be no server at all


class AttemptEffects:
    def __init__(
        self,
        writer: JobWriter,
        *,
        say: Callable[[PodEvent], None],
        judge: Callable[[Held], None],
        log: LogLike,
    ) -> None:
        self.broken = ""  # an internal error, which stays until an operator acts
        self.trouble = ""  # last failed call; "" since the last success
        self.unanswered = ""  # the same for calls without any answer
        self.unanswered_at_s = 0.0
        self.lacking: dict[str, str] = {}  # namespace -> missing rights
        self._writer = writer
        self._say = say
        self._judge = judge
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._chance = random.Random()
        self._asked_at_s: dict[int, float] = {}  # by attempt: steps under way

    def want(self, held: Held, goal: Goal) -> None:
        """Carry out an order. Published events repeat, because a new order expects an answer."""
        held.told.clear()
        if goal.value >= held.goal.value:
            held.goal = goal
        held.ordered.set()
        self._drive(held)

    def complete(self, held: Held) -> None:
        """Complete an object that an earlier process run left incomplete. Nothing waits for the
        result.
        """
        if held.goal is Goal.NONE:
            held.goal = Goal.COMPLETE
            held.ordered.set()
            self._drive(held)

    async def close(self, helds: Iterable[Held]) -> None:
        """Cancel running work."""
        working = [held.work for held in helds if held.work is not None]
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    def slow(self, now_s: float) -> str:
        """Whether something was asked long ago and is not answered yet, in words."""
        since_s = min(self._asked_at_s.values(), default=now_s)
        if now_s - since_s < SLOW_S:
            return ""
        return f"no answer to a call for {now_s - since_s:.0f} s"

    def _drive(self, held: Held) -> None:
        if held.work is None:
            name = f"{held.goal.name.lower()} {held.text}"
            held.work = self._loop.create_task(self._work(held), name=name)
            held.work.add_done_callback(lambda task: self._done(held, task))

    def _done(self, held: Held, task: asyncio.Task[None]) -> None:
        held.work = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._log.error("order not carried out", error=error, attempt=held.text)
            self.broken = f"an order for {held.text} was not carried out: {error}"
        elif held.ordered.is_set():  # ordered after its last check
            self._drive(held)
        else:
            self._judge(held)

    async def _work(self, held: Held) -> None:
        """Work until the order is done. The order may change on the way."""
        failures = 0
        while held.ordered.is_set() or failures:
            held.ordered.clear()
            goal = held.goal
            self._asked_at_s[id(held)] = self._loop.time()
            try:
                await self._step(held, goal)
                self.trouble = self.unanswered = ""
                failures = 0
            except KubernetesError as error:
                failures += 1
                if not isinstance(error, Conflict):
                    self._note(held, error)
                    if failures == 1:
                        what = f"cannot {goal.name.lower()} yet"
                        self._log.warning(what, attempt=held.text, why=str(error))
                        if goal is Goal.CREATE:
                            self._waits(held, error)
            finally:
                self._asked_at_s.pop(id(held), None)
            if failures:
                await self._pause(held, failures)

    def _waits(self, held: Held, error: KubernetesError) -> None:
        """Report why the object is not created, because the attempt may be evicted before that
        changes.
        """
        words = f"its object cannot be made yet: {error}"
        waiting = PodsWaiting(held.attempt, words[:MAX_MESSAGE_CHARS])
        held.told[PodsWaiting] = waiting  # later states then count as news
        self._say(waiting)

    def _note(self, held: Held, error: KubernetesError) -> None:
        """Note what a failure says about the API server."""
        if isinstance(error, Forbidden) and by_authorizer(error):
            self.lacking[held.namespace] = error.message or str(error)
            return  # concerns that namespace only
        self.trouble = str(error)
        if isinstance(error, NO_ANSWER):
            self.unanswered = str(error)
            self.unanswered_at_s = self._loop.time()

    async def _pause(self, held: Held, failures: int) -> None:
        try:
            async with asyncio.timeout(PAUSES.delay_s(failures, self._chance)):
                await held.ordered.wait()
        except TimeoutError:
            pass

    async def _step(self, held: Held, goal: Goal) -> None:
        match goal:
            case Goal.COMPLETE:
                await self._complete(held)
            case Goal.CREATE if held.order is not None:
                await self._create(held, held.order)
            case Goal.RESIZE if held.resize is not None:
                await self._resize(held, held.resize)
            case Goal.STOP:
                await self._writer.stop(held)
            case Goal.DELETE:
                await self._writer.delete(held)
            case _:
                return
        if not held.refused:
            self.lacking.pop(held.namespace, None)

    async def _complete(self, held: Held) -> None:
        try:
            await self._writer.complete(held)
        except RefusedToMake as error:
            self._refuse(held, error)

    async def _resize(self, held: Held, order: ResizePods) -> None:
        if not held.known and held.order is not None:  # never created, as far as known
            await self._create(held, held.order)
        await self._writer.resize(held, order)

    async def _create(self, held: Held, order: CreatePods) -> None:
        try:
            await self._writer.make(held, order)
        except Expired:
            if held.unsure:  # an earlier call may have created it
                await self._writer.look(held)
            if held.scene.job is None:
                self._say(PodsExpired(held.attempt))
        except RefusedToMake as error:
            self._refuse(held, error)

    def _refuse(self, held: Held, error: RefusedToMake) -> None:
        if isinstance(error.__cause__, Forbidden):
            self._note(held, error.__cause__)
        held.refused, held.hopeless = str(error), error.of_request
        held.known = True
        self._log.warning("order refused by cluster", attempt=held.text, why=held.refused)
