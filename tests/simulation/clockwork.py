"""Virtual time, and processes that live in it: they are paused, cut off, killed and started again.

A process works through its queue, one piece of work after another; between any two pieces it can
be stopped or killed, and what it then still had in hand is done late or never. Work that was asked
for by an earlier life is dropped.
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

START_S: Final = 1_000_000.0
Work = Callable[[], object]  # what it returns is nobody's business


class Clockwork:
    """The one clock, and all that will happen, in order."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.steps = 0
        self._due: list[tuple[float, int, Work]] = []
        self._number = 0

    def at(self, when_s: float, work: Work) -> None:
        self._number += 1
        heapq.heappush(self._due, (max(when_s, self.now_s), self._number, work))

    def after(self, delay_s: float, work: Work) -> None:
        self.at(self.now_s + delay_s, work)

    def run(self, until_s: float) -> None:
        while self._due and self._due[0][0] <= until_s:
            when_s, _, work = heapq.heappop(self._due)
            self.now_s = when_s
            self.steps += 1
            work()
        self.now_s = until_s


class Process:
    """One service on one machine. Subclasses say in ``boot`` what it does when it starts."""

    def __init__(self, clock: Clockwork, name: str) -> None:
        self.clock = clock
        self.name = name
        self.life = 0
        self.up = False
        self.paused = False
        self.cut = False  # no way to the bus
        self.heals = 0  # how often there was one again
        self.on_heal: Work = lambda: None
        self.clock_error_s = 0.0
        self.fuse: tuple[int, Work] | None = None  # after so many pieces of work, this befalls it
        self.trap: Work | None = None  # befalls it just before its next fateful step
        self._queue: deque[Work] = deque()
        self._running = False
        self._on_heal: list[tuple[int, Work]] = []

    def now(self) -> float:
        """What this process takes for the server's time."""
        return self.clock.now_s + self.clock_error_s

    # Life

    def boot(self) -> None:
        """Begin, knowing nothing but what is stored."""
        raise NotImplementedError

    def start(self) -> None:
        self.life += 1
        self.up = True
        self.boot()
        self._run()

    def kill(self) -> None:
        self.life += 1
        self.up = False
        self.paused = False
        self.fuse = self.trap = None
        self._queue.clear()

    def pause(self) -> None:
        self.paused = True

    def wake(self) -> None:
        """SIGCONT: it goes on in the middle of what it did."""
        self.paused = False
        self._run()

    def heal(self) -> None:
        """The way to the bus is open again."""
        if self.cut:
            self.cut = False
            self.heals += 1
            if self.up:
                self.on_heal()
        waiting, self._on_heal = self._on_heal, []
        for life, work in waiting:
            if life == self.life:
                work()

    def when_healed(self, work: Work) -> None:
        """Do this (outside of the process) once it is connected; at once if it is."""
        if self.cut:
            self._on_heal.append((self.life, work))
        else:
            work()

    # Work

    def feed(self, work: Work) -> None:
        """Something to do after all that is there."""
        self._queue.append(work)
        self._run()

    def first(self, works: list[Work]) -> None:
        """Things to do before all else, in this order."""
        self._queue.extendleft(reversed(works))

    def trapped(self, step: Work) -> bool:
        """Whether something befalls it before this step; the step is then its next one, if ever."""
        trap, self.trap = self.trap, None
        if trap is None:
            return False
        self.first([step])
        trap()
        return True

    def later(self, delay_s: float, work: Work) -> None:
        """A timer of this life, or a message to it."""
        life = self.life
        self.clock.after(max(0.0, delay_s), lambda: self.arrive(life, work))

    def arrive(self, life: int, work: Work) -> None:
        """Feed, unless it is not the life that this is for."""
        if self.up and life == self.life:
            self.feed(work)

    def _run(self) -> None:
        if self._running:
            return
        self._running = True
        try:
            while self._queue and self.up and not self.paused:
                if self.fuse is not None:
                    left, fault = self.fuse
                    if left <= 0:
                        self.fuse = None
                        fault()
                        continue
                    self.fuse = (left - 1, fault)
                self._queue.popleft()()
        finally:
            self._running = False
