"""Read progress and checkpoints from the logs of jobs.

Rules of this file:

- Pod 0 of the first pod set speaks for a job, like rank 0 in all frameworks.
- A log is polled, not followed: the last lines behind those already read. A job with reports is
  polled more often, a silent one ever more seldom.
- A poll without new progress reports for how long there was none. A poll that may have skipped
  lines begins that time again.
- Polls per second and bytes of a cluster are bounded, and due polls wait for their turn. That costs
  only time: a line stays for the next poll.
- The log of a job that is being stopped is followed to its end, because it may write a checkpoint.
  The report that its pods are gone comes after that, within a limit.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from berthmaster.lib.jobs.lines import START, Cursor, Lines
from berthmaster.lib.jobs.pace import Pace
from berthmaster.lib.jobs.progress import heard_in
from berthmaster.lib.requests.validation import uri_fault
from berthmaster.lib.runtime.periodic import beats
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    PodEvent,
    PodsCompleted,
    PodsExpired,
    PodsGone,
    PodsQuiet,
    PodsRunning,
    PodsSaid,
)
from berthmaster.worker.executor.logs import LogSource, NoLog

TICK_S: Final = 1.0
LOOK_S: Final = 10.0  # between two looks at one log, at the least
LOOK_SHARE: Final = 0.01  # share of the run time, so polls become rare
MOST_SPEAKING_S: Final = 60.0  # maximum interval for a job with reports
MOST_SILENT_S: Final = 300.0  # maximum interval for a silent job
TAIL_LINES: Final = 500  # lines of one poll
LOOK_BYTES: Final = 2 * 1024 * 1024
LOOK_LIMIT_S: Final = 5.0
MAX_LOOKS: Final = 4  # at once
BYTES_PER_S: Final = 1024 * 1024.0  # of all looks together
MAX_FOLLOWED: Final = 64  # stopping jobs followed at a time
FOLLOW_LIMIT_S: Final = 3700.0  # the longest grace that a request may ask for, and a little
LAST_WORDS_S: Final = 2.0  # after the last pod is gone


class _Watched(msgspec.Struct):
    attempt: Attempt
    began_s: float
    due_s: float
    pause_s: float = LOOK_S  # of a job without any report
    has_said: bool = False
    quiet_since_s: float = 0.0  # progress was last read, or may have been missed
    behind: Cursor = START
    looked_at_s: float = 0.0  # by the server's clock; 0 = never
    looks: asyncio.Task[None] | None = None


class ProgressReader:
    """Polls the logs of watched attempts."""

    def __init__(
        self,
        source: LogSource,
        *,
        looks_per_s: float,
        clock: Callable[[], float],
    ) -> None:
        """``clock``: the server's time. No look a second: no log is read."""
        self._source = source
        self._rate = looks_per_s
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(BYTES_PER_S)
        self._tell: Callable[[PodEvent], None] = lambda event: None
        self._watched: dict[Attempt, _Watched] = {}
        self._following: dict[Attempt, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._may = 0.0
        self.looks = 0
        self.unreadable = 0  # lines with the right prefix that are malformed

    def start(self, tell: Callable[[PodEvent], None]) -> None:
        """Start to report with ``tell``. Called once."""
        self._tell = tell

    def pass_on(self, event: PodEvent) -> None:
        """Forward an event of the cluster. The end of pods comes after their last reports."""
        following = self._following.get(event.attempt)
        self.see(event)
        if isinstance(event, PodsGone) and following is not None:
            self._spawn(self._tell_after(following, event), "last words")
        else:
            self._tell(event)

    async def _tell_after(self, following: asyncio.Task[None], gone: PodsGone) -> None:
        await asyncio.wait({following}, timeout=LAST_WORDS_S)
        following.cancel()
        self._tell(gone)

    # Watched attempts

    def see(self, event: PodEvent) -> None:
        """Watch a running attempt, and drop an ended one."""
        match event:
            case PodsRunning(attempt):
                self.watch(attempt)
            case PodsGone(attempt) | PodsCompleted(attempt) | PodsExpired(attempt):
                self.leave(attempt)
            case _:
                pass

    def watch(self, attempt: Attempt) -> None:
        """Start polling the log of a running attempt."""
        if attempt not in self._watched and self._rate:
            now_s = self._loop.time()
            self._watched[attempt] = _Watched(
                attempt, began_s=now_s, due_s=now_s + LOOK_S, quiet_since_s=now_s
            )

    def leave(self, attempt: Attempt) -> None:
        watched = self._watched.pop(attempt, None)
        if watched is not None and watched.looks is not None:
            watched.looks.cancel()

    async def run(self, stopping: asyncio.Event) -> None:
        try:
            async for _ in beats(TICK_S, stopping):
                self._look_at_those_due()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _look_at_those_due(self) -> None:
        now_s = self._loop.time()
        self._may = min(self._may + self._rate * TICK_S, max(1.0, self._rate * TICK_S))
        looking = sum(one.looks is not None for one in self._watched.values())
        due = [one for one in self._watched.values() if one.due_s <= now_s and one.looks is None]
        room = max(0, min(MAX_LOOKS - looking, int(self._may)))
        for one in sorted(due, key=lambda each: each.due_s)[:room]:
            self._may -= 1
            self.looks += 1
            one.looks = self._spawn(self._look(one), f"look at the log of {one.attempt.id}")

    async def _look(self, one: _Watched) -> None:
        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                is_whole = await self._read(one, follow=False)
            now_s = self._loop.time()
            if not is_whole:
                one.quiet_since_s = now_s
            elif now_s > one.quiet_since_s:
                self._tell(PodsQuiet(one.attempt, now_s - one.quiet_since_s))
        except (NoLog, TimeoutError):
            pass  # looked at again
        finally:
            one.looks = None
            now_s = self._loop.time()
            if one.has_said:
                every_s = LOOK_SHARE * (now_s - one.began_s)
                one.due_s = now_s + min(max(LOOK_S, every_s), MOST_SPEAKING_S)
            else:
                one.due_s = now_s + one.pause_s
                one.pause_s = min(2 * one.pause_s, MOST_SILENT_S)

    def follow(self, attempt: Attempt) -> None:
        """Follow the log of a stopping attempt to its end."""
        one = self._watched.get(attempt)
        if one is None or attempt in self._following or len(self._following) >= MAX_FOLLOWED:
            return
        if one.looks is not None:
            one.looks.cancel()
        task = self._spawn(self._to_its_end(one), f"last words of {attempt.id}")
        self._following[attempt] = task
        task.add_done_callback(lambda _: self._following.pop(attempt, None))

    async def _to_its_end(self, one: _Watched) -> None:
        try:
            async with asyncio.timeout(FOLLOW_LIMIT_S):
                await self._read(one, follow=True)
        except (NoLog, TimeoutError):
            pass

    async def _read(self, one: _Watched, *, follow: bool) -> bool:
        """Read new lines as they come. Return whether that reached the end, with no line skipped
        before it.
        """
        pods = await self._source.pods(one.attempt)
        if not pods:
            raise NoLog("no pod of it is there")
        before_s, one.looked_at_s = one.looked_at_s, self._clock()
        lines = Lines(one.behind)
        since_s = float(one.behind.since_s) if one.behind.lines else None
        stream = await self._source.open(
            one.attempt, pods[0], since_s=since_s, tail=TAIL_LINES, follow=follow
        )
        size = count = 0
        try:
            while size < LOOK_BYTES or follow:
                await asyncio.sleep(self._pace.wait_s(self._loop.time()))
                data = await stream.read()
                self._pace.read(len(data), self._loop.time())
                size += len(data)
                new = lines.feed(data) if data else lines.end()
                count += len(new)
                self._hear(one, new, before_s)
                one.behind = lines.cursor
                if not data:
                    return count < TAIL_LINES
        finally:
            stream.close()
        return False

    def _hear(self, one: _Watched, lines: list[bytes], before_s: float) -> None:
        progress, checkpoint, said_ns, unreadable = heard_in(lines)
        self.unreadable += unreadable
        if checkpoint is not None and uri_fault(checkpoint.uri) is not None:
            self.unreadable += 1
            checkpoint = None
        if progress is None and checkpoint is None:
            return
        one.has_said = True
        if progress is not None:
            one.quiet_since_s = self._loop.time()
        age_s = 0.0
        if progress is not None and said_ns:
            age_s = max(0.0, self._clock() - said_ns / 1e9)
            if before_s:  # a node's clock may be behind; the line is younger than the last look
                age_s = min(age_s, self._clock() - before_s)
            if progress.eta_s is not None:
                left_s = max(0.0, progress.eta_s - age_s)
                progress = msgspec.structs.replace(progress, eta_s=left_s)
        self._tell(PodsSaid(one.attempt, progress, checkpoint, age_s))

    def _spawn(self, work: "asyncio._CoroutineLike[None]", name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
