"""Poll Kueue's Workloads of resizable Jobs while they may have news.

Kueue writes nothing on the Job: the reason of a delayed resize is on a Workload, and a released
quota shows only there (lib/kueue/workloads.py). A Job is polled once it runs, and while its pods
wait for Kueue or one of its Workloads has no quota.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from berthmaster.lib.kube.errors import KubernetesError
from berthmaster.lib.runtime.log import LogLike
from berthmaster.worker.executor.attempts import Goal, Held
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.writer import JobWriter, ended

FIRST_S: Final = 1.0  # Kueue mostly needs less
AGAIN_S: Final = 5.0
AFTER_ERROR_S: Final = 60.0  # such as where the Role lacks the right
MAX_AT_ONCE: Final = 8  # after a restart all are due together
_MADE: Final = (Goal.NONE, Goal.COMPLETE, Goal.CREATE, Goal.RESIZE)


class ElasticLooks:
    """Polling of one runtime: a task for each Job."""

    def __init__(self, writer: JobWriter, *, judge: Callable[[Held], None], log: LogLike) -> None:
        self._writer = writer
        self._judge = judge
        self._log = log
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)

    def follow(self, held: Held) -> None:
        """Start polling after a change, if needed."""
        if held.attempt not in self._tasks and _is_open(held):
            name = f"look at Kueue's slices of {held.text}"
            task = asyncio.get_running_loop().create_task(self._look(held), name=name)
            self._tasks[held.attempt] = task
            task.add_done_callback(lambda task: self._done(held, task))

    def _done(self, held: Held, task: asyncio.Task[None]) -> None:
        self._tasks.pop(held.attempt, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._log.error("Kueue Workloads not checked", error=error, attempt=held.text)
        else:
            self.follow(held)  # a change may have come after its last check

    async def close(self) -> None:
        while tasks := list(self._tasks.values()):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, held: Held) -> None:
        pause_s, told = FIRST_S, False
        while _is_open(held):
            await asyncio.sleep(pause_s)
            try:
                async with self._turns:
                    held.scene.saw(await self._writer.slices(held))
            except KubernetesError as error:
                if not told:
                    self._log.warning(
                        "Kueue Workloads unreadable", attempt=held.text, why=str(error)
                    )
                pause_s, told = AFTER_ERROR_S, True
                continue
            pause_s = AGAIN_S
            self._judge(held)


def _is_open(held: Held) -> bool:
    """Return whether its Workloads may have news."""
    scene, job = held.scene, held.scene.job
    if job is None or not scene.resizable or held.goal not in _MADE:
        return False
    if job.spec.suspend or job.metadata.deletion_timestamp is not None or ended(job):
        return False
    slices = scene.slices
    if slices is None or slices.waits or not slices.have_quota:
        return True
    return any(pod.spec.waits_for_kueue for pod in scene.pods.values() if not pod.over)
