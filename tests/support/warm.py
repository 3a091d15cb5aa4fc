"""Our own programs as processes that start at once: forked from one that has imported them all.

A Python that starts `berth serve` computes for a second or more before it does anything, and tests
start hundreds. So one process for each that runs tests has imported our programs already, and forks
itself for each start: a process of its own, with its own environment, files and memory, that can be
stopped and killed as any other. What is not the same as a start from nothing: its command line in
/proc, its parent, and modules that were imported before its environment was set. Tests of starting
itself (of images, of `berth up`, of what a command imports) start a Python of their own.

    with log.open("ab") as output:
        child = warm.berth("serve", "executor", …, env=env, output=output)
    child.terminate(); assert child.wait(15) == 0
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from berthmaster.lib.runtime.process_setup import end_with_parent
from tests.support.patience import PATIENT, hang_s

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SERVICES: Final = ROOT / "services"
BERTH: Final = "berthmaster.cli.main"
ANSWER_LIMIT_S: Final = 60.0
_MOST_BYTES: Final = 256 * 1024  # of one request: an environment and a command line


def _readable(file: int, limit_s: float) -> bool:
    """Return whether there is something to read, or no such file, within the limit."""
    poll = select.poll()  # select.select takes no number above 1,023
    poll.register(file, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))


class Child:
    """One that was started. Of subprocess.Popen what tests use; safe to use from any thread."""

    def __init__(self, parent: _Parent, pid: int) -> None:
        self._parent = parent
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._ended = os.pidfd_open(pid)  # nobody reaps it but us, so it is this very process
        self._close = weakref.finalize(self, os.close, self._ended)  # of a child nobody waits for

    def poll(self) -> int | None:
        """Its exit code, minus the signal's number if one ended it; None while it runs."""
        with self._lock:
            if self.returncode is None and _readable(self._ended, 0.0):
                self.returncode = int(self._parent.ask({"reap": self.pid})["code"])
                self._close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left_s = 1.0 if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            # Another thread may see the end first: its number is then closed, or another file's.
            _readable(self._ended, min(left_s, 1.0))
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Parent:
    """The process that forks, seen from the tests. It ends when this process does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(ANSWER_LIMIT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.warm", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": f"{SERVICES}:{ROOT}"},
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> dict[str, Any]:
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(request).encode()], files)
            answer: dict[str, Any] = json.loads(self._ours.recv(_MOST_BYTES))
            return answer

    def end(self) -> None:
        """It kills what still runs, and is gone."""
        self._ours.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(hang_s())
        self._process.kill()


class _Warm:
    """Makes the parent when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parent: _Parent | None = None

    def parent(self) -> _Parent:
        with self._lock:
            if self._parent is None:
                self._parent = _Parent()
                atexit.register(self._parent.end)
            return self._parent


_WARM: Final = _Warm()


def start(
    module: str,
    arguments: Sequence[str],
    *,
    output: IO[bytes],
    env: Mapping[str, str],
    cwd: Path = ROOT,
    errors: IO[bytes] | None = None,
    input: IO[bytes] | None = None,
    constants: Mapping[str, float] | None = None,
) -> Child:
    """`python -m MODULE ARGUMENT…`. Without a file of its own, what it says of errors goes to its
    output, and it has no input.

    ``constants`` are set in the process before it runs: ``{"package.module:NAME": 1.0}``."""
    parent = _WARM.parent()
    request: dict[str, Any] = {
        "module": module,
        "argv": list(arguments),
        "env": dict(env),
        "cwd": str(cwd),
    }
    request["constants"] = dict(constants or {})
    with Path(os.devnull).open("rb") as nothing:
        files = [(input or nothing).fileno(), output.fileno(), (errors or output).fileno()]
        return Child(parent, int(parent.ask(request, files)["pid"]))


def berth(
    *arguments: str,
    output: IO[bytes],
    env: Mapping[str, str],
    cwd: Path = ROOT,
    constants: Mapping[str, float] | None = None,
) -> Child:
    """The command `berth`, with limits for a slow machine where `env` sets none."""
    env = {**PATIENT, **env}
    return start(BERTH, arguments, output=output, env=env, cwd=cwd, constants=constants)


def run_berth(
    *arguments: str, env: Mapping[str, str], cwd: Path, limit_s: float, input: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A command to its end, as subprocess.run does. Raises subprocess.TimeoutExpired."""
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        given.write((input or "").encode())
        given.seek(0)
        child = start(
            BERTH,
            arguments,
            output=output,
            errors=errors,
            input=given,
            env={**PATIENT, **env},
            cwd=cwd,
        )
        try:
            code = child.wait(limit_s)
        finally:
            child.kill()
        for file in (output, errors):
            file.seek(0)
        said, failed = output.read().decode(), errors.read().decode()
        return subprocess.CompletedProcess(["berth", *arguments], code, said, failed)


# ---------------------------------------------------------------- the process that forks


def _import_all() -> None:
    """What the programs import when they have read their arguments."""
    paths = [*SERVICES.glob("berthmaster/*/service.py"), *SERVICES.glob("berthmaster/cli/*.py")]
    ours = [".".join(path.relative_to(SERVICES).with_suffix("").parts) for path in paths]
    for module in ours:
        with contextlib.suppress(Exception):  # whoever starts that one shall be told
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    """In the child: as if it had been started like this."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [request["module"], *request["argv"]]
    for place, value in request["constants"].items():
        module, _, name = place.partition(":")
        *owners, name = name.split(".")
        owner = importlib.import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, value)


def _serve(door: socket.socket) -> dict[str, Any] | None:
    """Until the tests are gone: None. In a child: what it shall be."""
    bind = end_with_parent()
    children: set[int] = set()
    while True:
        text, files, _, _ = socket.recv_fds(door, _MOST_BYTES, 3)
        if not text:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
            return None
        request: dict[str, Any] = json.loads(text)
        if "reap" in request:
            children.discard(request["reap"])
            _, status = os.waitpid(request["reap"], 0)
            door.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            bind()
            door.close()
            _become(request, files)
            return request
        for file in files:
            os.close(file)
        children.add(pid)
        door.send(json.dumps({"pid": pid}).encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_all()
    with socket.socket(fileno=int(sys.argv[1])) as door:
        request = _serve(door)
    if request is not None:
        _run(request["module"])


def _run(module: str) -> None:
    """The program, to its end as any other's, but for one thing: its objects, which are those of
    everything that was imported, are not taken apart. That alone is half a second of computing,
    since each page that it shares with the others is copied for it."""
    try:
        importlib.import_module(module).main()
        code: object = None
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code) if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
