"""Steps as processes: each has a time limit and tells the CPU time of itself and its children."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.suite.tiers import ROOT

_POLL_S: Final = 0.05
_BACKGROUND_NICE: Final = 15


@dataclass(frozen=True)
class Outcome:
    """How a step ended."""

    code: int  # -1: ended by its limit
    wall_s: float
    cpu_s: float  # of all processes that it waited for; a Docker engine's containers are not among

    def __add__(self, later: "Outcome") -> "Outcome":
        """Both, one after the other: the later one's exit code counts."""
        return Outcome(later.code, self.wall_s + later.wall_s, self.cpu_s + later.cpu_s)


class Step:
    """A command that runs, in a session of its own."""

    def __init__(self, argv: list[str], log: Path | None = None) -> None:
        """With a log it is in the background: out of the way of what runs beside it."""
        self.name = argv[0]
        self._started_s = time.monotonic()
        self._outcome: Outcome | None = None
        make_room: Callable[[], object] = lambda: os.nice(_BACKGROUND_NICE)  # noqa: E731
        if log is None:
            self._process = subprocess.Popen(argv, cwd=ROOT, start_new_session=True)
            return
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                argv,
                cwd=ROOT,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=make_room,  # noqa: PLW1509 # takes no lock, and no thread runs here
            )

    def poll(self) -> Outcome | None:
        """What came of it; None while it runs."""
        if self._outcome is None:
            # Not Popen.poll(): only wait4 tells the CPU time of this one child and its children.
            pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
            if not pid:
                return None
            self._process.returncode = os.waitstatus_to_exitcode(status)
            wall_s = time.monotonic() - self._started_s
            self._outcome = Outcome(self._process.returncode, wall_s, used.ru_utime + used.ru_stime)
        return self._outcome

    def wait(self, limit_s: float) -> Outcome:
        """Until it has ended; past the limit it and its children are ended."""
        deadline_s = time.monotonic() + limit_s
        try:
            while (outcome := self.poll()) is None:
                if time.monotonic() > deadline_s:
                    print(f"\n{self.name}: not done after {limit_s:.0f} s, ended", flush=True)
                    ended = self.end()
                    return Outcome(-1, ended.wall_s, ended.cpu_s)
                time.sleep(_POLL_S)
            return outcome
        finally:
            self.end()  # also on Ctrl-C, which a session of its own does not receive

    def end(self) -> Outcome:
        """kill -9 of it and its children, if it still runs."""
        while (outcome := self.poll()) is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        return outcome


def call(argv: list[str], limit_s: float) -> Outcome:
    """Run one step with its output shown."""
    return Step(argv).wait(limit_s)
