"""Programs that run beside a test, and end with it whatever ends it.

The kernel kills a child when the *thread* that started it ends, so one thread starts them all and
lives as long as this process: a test may then start an API server from wherever it is, its event
loop's helper threads included. Nothing here is asked politely to stop: an API server that is
watched lingers for ten seconds, and a crash is what tests want anyway.
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

_LAST_LINES: Final = 6
_LAST_BYTES: Final = 32 * 1024

Answer = TypeVar("Answer")


class Failed(Exception):
    """A program could not be started, ended by itself, or was not ready in time; the text tells."""


def all_stopped(pid: int) -> bool:
    """Whether no thread of it runs any more. The signal is on its way when `kill` returns, and on
    a busy machine a thread that it has not reached yet answers one more request."""
    try:
        threads = [(each / "stat").read_text() for each in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False  # a thread ended while we looked
    return all(thread.rpartition(")")[2].split()[0] in "TZX" for thread in threads)


class _Call(Generic[Answer]):
    """Something that the starting thread shall do, and what came of it."""

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
    """The thread whose children they all are."""

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
    """One program with its log, started, killed and started again with the same arguments."""

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
        """Its process; 0 if it never ran."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start it, without waiting until it is of use. Raises Failed."""
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
        """Until `ready` says so. Raises Failed; what the program said last is in the text."""

        def settled() -> bool:
            if not self.running:
                raise Failed(f"{self.name} ended by itself: {self.last_words()}")
            return ready()

        try:
            wait_until(settled, f"{self.name} ready", hang_s=hang_s)
        except Hung as late:
            raise Failed(f"{late}: {self.last_words()}") from None

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is None:
            return
        self.signal(signal.SIGKILL)
        self._process.wait(hang_s())

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and it answers nothing, from when this returns on."""
        if self.running:
            self.signal(signal.SIGSTOP)
            wait_until(lambda: all_stopped(self.pid), f"{self.name} stands still")

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def said(self) -> str:
        """The end of its log since it was started last."""
        with self.log_path.open("rb") as log:
            size = self.log_path.stat().st_size
            log.seek(max(self._log_start, size - _LAST_BYTES))
            return log.read().decode(errors="replace")

    def last_words(self) -> str:
        """Its last lines, in one."""
        return " | ".join(self.said().strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
