"""An MPS control daemon for each GPU: start, status, restart.

A daemon is a child process and dies with this process, along with its clients' CUDA contexts. So a
daemon that answers before the start belongs to another party.
"""

import asyncio
import os
import random
import shutil
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Final

from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.periodic import stopped_within
from berthmaster.lib.runtime.process_setup import end_with_parent
from berthmaster.worker.shares.core.shares import MPS_LOGS, MPS_PIPES, Gpu

PROGRAM: Final = "nvidia-cuda-mps-control"
ANSWER_LIMIT_S: Final = 5.0
START_LIMIT_S: Final = 30.0  # the driver may have to wake the GPU
END_LIMIT_S: Final = 2.0
STARTING: Final = "its MPS daemon has not started yet"
_QUESTION: Final = "get_default_active_thread_percentage"
_BACKOFF: Final = Backoff(first_s=1.0, most_s=30.0)


class Daemon:
    """The daemon of one GPU."""

    def __init__(self, gpu: Gpu, folder: Path, log: Log, metrics: Metrics) -> None:
        self.why = STARTING  # why the GPU is unusable; "" = usable
        self._gpu = gpu
        self._pipes = folder / "mps" / gpu.uuid
        self._logs = folder / "log" / gpu.uuid
        self._log = log
        self._starts = metrics.counter("mps_starts", "Starts of MPS control daemons", ["gpu"])
        self._env = os.environ | {
            "CUDA_VISIBLE_DEVICES": gpu.uuid,
            MPS_PIPES: str(self._pipes),
            MPS_LOGS: str(self._logs),
        }

    async def prepare(self) -> None:
        """Create the daemon's folders. Raises CannotStart if another daemon uses them."""
        for place in (self._pipes, self._logs):
            place.mkdir(mode=0o755, parents=True, exist_ok=True)
        if await self._answers():
            raise CannotStart(
                f"another MPS daemon answers in {self._pipes}; end it first "
                f"(echo quit | {MPS_PIPES}={self._pipes} {PROGRAM})"
            )

    async def keep(
        self, every_s: float, stopping: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        """Keep a daemon running until the service stops; ``changed`` is called when ``why`` is."""
        failures = 0
        while not stopping.is_set():
            process = await self._start()
            try:
                if process is not None and await self._comes_up(process, stopping):
                    failures = 0
                    self._tell("", changed)
                    await self._watch(process, every_s, stopping)
            finally:
                if process is not None:
                    await self._end(process)
            if stopping.is_set():
                return
            failures += 1
            code = process.returncode if process is not None else None
            self._tell(f"its MPS daemon has ended (exit code {code})", changed)
            await stopped_within(_BACKOFF.delay_s(failures, random), stopping)

    def _tell(self, why: str, changed: Callable[[], None]) -> None:
        if why == self.why:
            return
        self.why = why
        if why:
            self._log.warning("mps daemon ended", gpu=self._gpu.uuid, why=why)
        else:
            self._log.info("mps daemon ready", gpu=self._gpu.uuid, pipes=str(self._pipes))
        changed()

    async def _start(self) -> Process | None:
        self._starts.labels(self._gpu.uuid).inc()
        try:
            for left in self._pipes.iterdir():  # left by a killed daemon
                left.unlink()
            return await asyncio.create_subprocess_exec(
                PROGRAM,
                "-f",
                env=self._env,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                preexec_fn=end_with_parent(),
            )
        except OSError as error:
            self._log.warning("mps daemon not started", gpu=self._gpu.uuid, why=str(error))
            return None

    async def _comes_up(self, process: Process, stopping: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(START_LIMIT_S):
                while process.returncode is None and not await self._answers():
                    if await stopped_within(0.2, stopping):
                        return False
        except TimeoutError:
            return False
        return process.returncode is None

    async def _watch(self, process: Process, every_s: float, stopping: asyncio.Event) -> None:
        """Return when the daemon has ended, no longer answers, or the service stops."""
        ended = asyncio.ensure_future(process.wait())
        asked = asyncio.ensure_future(stopping.wait())
        try:
            while not (ended.done() or asked.done()):
                await asyncio.wait(
                    {ended, asked}, timeout=every_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not (ended.done() or asked.done()) and not await self._answers():
                    self._log.warning("mps daemon silent", gpu=self._gpu.uuid)
                    return
        finally:
            ended.cancel()
            asked.cancel()

    async def _end(self, process: Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(END_LIMIT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _answers(self) -> bool:
        """Whether a daemon answers in our folder."""
        try:
            asking = await asyncio.create_subprocess_exec(
                PROGRAM, env=self._env, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
            )
        except OSError:
            return False
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                answer, _ = await asking.communicate(f"{_QUESTION}\n".encode())
        except TimeoutError:
            asking.kill()
            await asking.wait()
            return False
        return asking.returncode == 0 and bool(answer.strip())


def is_installed() -> bool:
    """Whether this machine has NVIDIA's control program."""
    return shutil.which(PROGRAM) is not None
