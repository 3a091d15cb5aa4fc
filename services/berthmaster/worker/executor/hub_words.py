"""Output of jobs sent by a hub: progress goes to the log, and ends of container logs are stored.

MultiKueue deletes pods after the end of their job, so the end of a log is read when its pod ends or
is deleted. The executor reports only progress and checkpoints, which the hub's reconciler cannot
see. Both write to the same workload. The loser of a race is refused, reads the workload's sequence
and reports again.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.lifecycle.instructions import Refused, Stored
from berthmaster.lib.lifecycle.workload import progress_every_s
from berthmaster.lib.messages.door import MAX_LOG_ENDS, HubWork
from berthmaster.lib.messages.workload import Checkpoint, Checkpointed, Progress, Progressed
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.periodic import beats
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    PodEvent,
    PodsSaid,
)
from berthmaster.worker.executor.core.executor import (
    CHECKPOINT_EVERY_S,
    CHECKPOINT_SHARE,
    MAX_REFUSALS,
)
from berthmaster.worker.executor.core.log_events import counted_from
from berthmaster.worker.executor.core.objects import PodObject
from berthmaster.worker.executor.hub_jobs import HubJobs
from berthmaster.worker.executor.logs import LogDesk
from berthmaster.worker.executor.progress import ProgressReader

TICK_S: Final = 0.5
MAX_TELLING: Final = 16  # events under way
MAX_KEEPING: Final = 64  # ends being read or waiting


class _Heard(msgspec.Struct):
    """Reports of one attempt, and what the log has of them."""

    began_s: float
    work: HubWork | None = None  # as the door said last; its pods may be gone by now
    progress: Progress | None = None  # not told yet
    said_at_s: float = 0.0
    progress_due_s: float = 0.0
    checkpoint: Checkpoint | None = None  # not told yet
    told: Checkpoint | None = None
    checkpoint_due_s: float = 0.0
    refusals: int = 0
    telling: bool = False
    leaving: bool = False
    kept: set[tuple[str, bool]] = msgspec.field(default_factory=set)  # pods, and whether over

    def due(self, now_s: float) -> Progress | Checkpoint | None:
        """Return the report to write now, checkpoints first."""
        if self.checkpoint is not None and (self.leaving or now_s >= self.checkpoint_due_s):
            return self.checkpoint
        if self.progress is not None and now_s >= self.progress_due_s:
            return self.progress
        return None


class HubWords:
    """Reports of the hub's jobs on their way into the log."""

    def __init__(
        self, progress: ProgressReader, desk: LogDesk, jobs: HubJobs, door: DoorClient, name: str
    ) -> None:
        """``name``: writer of the events."""
        self._progress = progress
        self._desk = desk
        self._jobs = jobs
        self._door = door
        self._name = name
        self._heard: dict[Attempt, _Heard] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._keeping: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        jobs.tell(self._on_pods)

    async def run(self, stopping: asyncio.Event) -> None:
        try:
            async for _ in beats(TICK_S, stopping):
                self._tell_those_due()
        finally:
            under_way = self._telling | self._keeping
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    # Pods

    def _on_pods(
        self, attempt: Attempt, pods: Sequence[PodObject], changed: PodObject | None
    ) -> None:
        if not pods:
            self._progress.leave(attempt)
            return
        if any(pod.status.phase == "Running" for pod in pods):
            if attempt not in self._heard:
                self._heard[attempt] = _Heard(began_s=self._door.now())
            self._progress.watch(attempt)
        if changed is not None and (changed.over or changed.leaving):
            self._on_end(attempt, changed)

    def _on_end(self, attempt: Attempt, pod: PodObject) -> None:
        heard = self._heard.setdefault(attempt, _Heard(began_s=self._door.now()))
        number = self._jobs.number_of(attempt, pod)
        if pod.leaving and number == 0 and not heard.leaving:
            heard.leaving = True
            self._progress.follow(attempt)
        seen = pod.metadata.name, pod.over
        if number >= MAX_LOG_ENDS or seen in heard.kept or len(self._keeping) >= MAX_KEEPING:
            return
        heard.kept.add(seen)
        ends = self._desk.keep_end(
            attempt, pod.metadata.name, number, len(self._jobs.pods_of(attempt))
        )
        task = self._loop.create_task(ends, name=f"end of the log of {attempt.id}")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    # Reports

    def takes(self, event: PodEvent) -> bool:
        """Apply a report of a hub's job. Return False for other jobs."""
        heard = self._heard.get(event.attempt)
        if heard is not None and isinstance(event, PodsSaid):
            if event.progress is not None:
                heard.progress, heard.said_at_s = event.progress, self._door.now()
            if event.checkpoint is not None and event.checkpoint != heard.told:
                heard.checkpoint = event.checkpoint
        return heard is not None

    def _tell_those_due(self) -> None:
        now_s = self._door.now()
        for attempt, heard in list(self._heard.items()):
            there = self._jobs.work_of(attempt)
            heard.work = work = there or heard.work
            words = heard.due(now_s)
            if heard.telling:
                continue
            if words is None or work is None:
                if there is None and heard.checkpoint is None:
                    del self._heard[attempt]  # its pods are gone
                continue
            if len(self._telling) >= MAX_TELLING:
                return
            heard.telling = True
            task = self._loop.create_task(
                self._told(attempt, work, heard, words), name=f"words of {attempt.id}"
            )
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _told(
        self, attempt: Attempt, work: HubWork, heard: _Heard, words: Progress | Checkpoint
    ) -> None:
        try:
            outcome = await self._door.append(self._event(work, heard, words))
        except BusError:
            return  # once more, by the next beat
        finally:
            heard.telling = False
        now_s = self._door.now()
        match outcome:
            case Stored(sequence):
                self._jobs.stored(attempt, sequence)
                heard.work = msgspec.structs.replace(work, sequence=sequence)
                heard.refusals = 0
                _is_told(heard, words, now_s)
            case Refused() if heard.refusals + 1 < MAX_REFUSALS:
                heard.refusals += 1
                heard.progress_due_s = heard.checkpoint_due_s = now_s + 2 * TICK_S
                self._jobs.ask_again(attempt)
            case Refused():  # refused by the log; more reports follow
                heard.refusals = 0
                _is_told(heard, words, now_s)
                self._jobs.ask_again(attempt)
            case _:
                heard.progress_due_s = heard.checkpoint_due_s = now_s + CHECKPOINT_EVERY_S

    def _event(
        self, work: HubWork, heard: _Heard, words: Progress | Checkpoint
    ) -> Progressed | Checkpointed:
        now_s = self._door.now()
        head = {
            "tenant": work.tenant,
            "id": work.id,
            "after": work.sequence,
            "at_s": now_s,
            "by": self._name,
            "cluster": self._door.cluster,
            "attempt": work.attempt,
        }
        if isinstance(words, Checkpoint):
            return Checkpointed(**head, checkpoint=words)  # type: ignore[arg-type]
        progress = counted_from(words, heard.said_at_s, now_s)
        return Progressed(**head, progress=progress)  # type: ignore[arg-type]


def _is_told(heard: _Heard, words: Progress | Checkpoint, now_s: float) -> None:
    """Newer words may have come meanwhile."""
    ran_s = max(0.0, now_s - heard.began_s)
    if isinstance(words, Checkpoint):
        heard.told = words
        heard.checkpoint_due_s = now_s + max(CHECKPOINT_EVERY_S, CHECKPOINT_SHARE * ran_s)
        if heard.checkpoint == words:
            heard.checkpoint = None
        return
    heard.progress_due_s = now_s + progress_every_s(ran_s)
    if heard.progress is words:
        heard.progress = None
