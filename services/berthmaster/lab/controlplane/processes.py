"""Programs that run beside a test, and end with it in any case.

The kernel kills a child when the *thread* that started it ends. So one thread starts all children
and lives as long as this process. Thereby a test may start an API server from any thread, including
the event loop's helpers. Programs are killed, not asked to stop: a watched API server lingers for
ten seconds, and tests want a crash anyway.
"""

import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from berthmaster.lab.controlplane.patience import HANG_S, Hung, hang_s, wait_until
from berthmaster.lib.runtime.process_setup import end_with_parent
from berthmaster.lib.supervisor.embedded import all_stopped

_LAST_LINES: Final = 6
_LAST_BYTES: Final = 32 * 1024

Answer = TypeVar("Answer")


class Failed(Exception):
    """A program did not start, died, or was not ready in time. The text gives the reason."""


class _Call(Generic[Answer]):
    """A call for the starting thread, with its result."""

    def __init__(self, work: Callable[[], Answer]) -> None:
        self._work = work
        self._done = threading.Event()
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    def perform(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:  # noqa: BLE001 # raised where it is waited for
            self._error = error
        self._done.set()

    def wait(self) -> Answer:
        if not self._done.wait(hang_s()):
            raise Failed("the thread that starts programs does not answer")
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


class _Starter:
    """The thread that is the parent of all children."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call[subprocess.Popen[bytes]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="starter", daemon=True)
                self._thread.start()
        call = _Call(work)
        self._calls.put(call)
        return call.wait()

    def _run(self) -> None:
        while True:
            self._calls.get().perform()


_STARTER: Final = _Starter()


class Process:
    """One program with its log, restarted with the same arguments."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log_path = log_path
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """Return the process id; 0 = never started."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the program without waiting until it is ready. Raises Failed."""
        if self.running:
            raise Failed(f"{self.name} is running already (pid {self.pid})")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0

        def start() -> subprocess.Popen[bytes]:
            with self.log_path.open("ab") as log:
                return subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C is for the tests
                    preexec_fn=end_with_parent(),  # noqa: PLW1509 # takes no lock
                )

        try:
            self._process = _STARTER.start(start)
        except OSError as error:
            raise Failed(f"{self.name}: {error}") from error

    def wait_ready(self, ready: Callable[[], bool], *, hang_s: float = HANG_S) -> None:
        """Wait until `ready` returns True. Raises Failed with the program's last output."""

        def settled() -> bool:
            if not self.running:
                raise Failed(f"{self.name} ended by itself: {self.last_words()}")
            return ready()

        try:
            wait_until(settled, f"{self.name} ready", hang_s=hang_s)
        except Hung as late:
            raise Failed(f"{late}: {self.last_words()}") from None

    def kill(self) -> None:
        """Kill the program with SIGKILL, and wait for its end."""
        if self._process is None:
            return
        self.signal(signal.SIGKILL)
        self._process.wait(hang_s())

    def pause(self) -> None:
        """Stop the program with SIGSTOP, and wait until all its threads are stopped.

        Its connections stay open without answers.
        """
        if self.running:
            self.signal(signal.SIGSTOP)
            wait_until(lambda: all_stopped(self.pid), f"{self.name} stands still")

    def resume(self) -> None:
        """Resume the program with SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the program runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def said(self) -> str:
        """Return the end of the log since the last start."""
        with self.log_path.open("rb") as log:
            size = self.log_path.stat().st_size
            log.seek(max(self._log_start, size - _LAST_BYTES))
            return log.read().decode(errors="replace")

    def last_words(self) -> str:
        """Return the last log lines as one line."""
        return " | ".join(self.said().strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
