"""A real PostgreSQL for a test, from Debian's package or wherever PATH has one."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.patience import hang_s

START_LIMIT_S = 30.0


class PostgresServer:
    """One server in a folder of its own, on loopback, whose data outlives its processes."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs = programs
        self._folder = folder
        self._user = user  # postgres refuses to run as root
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://berth@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        self._run("initdb", "-D", self._data, "-U", "berth", "-A", "trust", "--no-sync")

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _run(self, program: str, *args: str) -> None:
        subprocess.run(
            [str(self._programs / program), *args],
            user=self._user,
            check=True,
            capture_output=True,
            timeout=hang_s(),
            cwd=self._folder,
        )

    def start(self) -> None:
        options = f"-p {self.port} -k {self._folder} -h 127.0.0.1".split()
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", self._data, *options, "-c", "fsync=off"],
            user=self._user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )
        end_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end_s:
            done = subprocess.run(
                [str(self._programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)],
                capture_output=True,
                check=False,
                timeout=hang_s(),
            )
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise TimeoutError("PostgreSQL did not start")

    def kill(self) -> None:
        """As a machine that stops: no goodbye, and its children go with it."""
        if self._process is None:
            return
        stop = [str(self._programs / "pg_ctl"), "stop", "-D", self._data, "-m", "immediate"]
        subprocess.run(stop, user=self._user, check=False, capture_output=True, timeout=hang_s())
        self._process.wait(timeout=hang_s())
        self._process = None


def _programs() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return kept[-1].parent if kept else None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """One that runs; skipped where there is none."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL (Debian: apt install postgresql)")
    user = None
    if os.geteuid() == 0:
        user = "postgres" if _is_user("postgres") else "nobody"
    with tempfile.TemporaryDirectory(prefix="berth-pg-") as folder:
        if user is not None:
            shutil.chown(folder, user)
        server = PostgresServer(programs, Path(folder), user)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _is_user(name: str) -> bool:
    import pwd

    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
