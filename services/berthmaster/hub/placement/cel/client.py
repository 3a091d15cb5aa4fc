"""Sends questions to the process that evaluates expressions, and replaces a dead process.

The first question starts the process. The process answers one question at a time. If a question
kills the process or times out, the client repeats the question in a new process, which marks each
expression before evaluating. If the question kills that process too, the answer is that the marked
expression costs too much. The process does not outlive the service, even if the service is killed.
"""

import asyncio
import contextlib
import sys
from typing import Final

import msgspec

from berthmaster.hub.placement.cel.question import CelAnswer, Question, too_costly
from berthmaster.hub.placement.cel.worker import ANSWER, ASK, CAREFUL, LENGTH, frame
from berthmaster.lib.runtime.process_setup import end_with_parent

WAIT_S: Final = 20.0  # seconds to wait beyond the CPU budget, because a busy machine is slow
COMMAND: Final = (sys.executable, "-P", "-m", "berthmaster.hub.placement.cel.worker")


class Unanswered(Exception):
    """No answer now, for a reason other than the expressions."""


class _Ended(Exception):
    """The process ended, or was ended, before it answered."""

    def __init__(self, expression: int | None) -> None:
        super().__init__("the process that evaluates expressions ended")
        self.expression = expression  # number of the marked expression; None = no mark received


class CelWorker:
    """One process, and the questions queued for it."""

    def __init__(self, *, command: tuple[str, ...] = COMMAND, wait_s: float = WAIT_S) -> None:
        self.restarts = 0  # number of processes started after the first
        self._command = command
        self._wait_s = wait_s
        self._one_by_one = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._started = False
        self._decoder = msgspec.msgpack.Decoder(CelAnswer)

    @property
    def pid(self) -> int | None:
        """Return the id of the process; None while no process runs."""
        return self._process.pid if self._process is not None else None

    async def ask(self, question: Question) -> CelAnswer:
        """Return the answer. Raises Unanswered."""
        async with self._one_by_one:
            return await self._answer(question)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _answer(self, question: Question) -> CelAnswer:
        with contextlib.suppress(_Ended):
            return await self._once(question, ASK)
        try:
            return await self._once(question, CAREFUL)
        except _Ended as ended:
            if ended.expression is None:
                raise Unanswered(str(ended)) from None
            return too_costly(ended.expression, question.budget_s)

    async def _once(self, question: Question, kind: bytes) -> CelAnswer:
        marked: list[int] = []
        try:
            async with asyncio.timeout(self._wait_s + question.budget_s):
                return await self._exchange(question, kind, marked)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            await self.close()
            raise _Ended(marked[-1] if marked else None) from None
        except BaseException:
            await self.close()  # a late answer would be taken for the next question's
            raise

    async def _exchange(self, question: Question, kind: bytes, marked: list[int]) -> CelAnswer:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(frame(kind, msgspec.msgpack.encode(question)))
        await process.stdin.drain()
        while True:
            head = await process.stdout.readexactly(LENGTH + 1)
            body = await process.stdout.readexactly(int.from_bytes(head[:LENGTH], "big"))
            if head[LENGTH:] == ANSWER:
                return self._decoder.decode(body)
            marked[:] = [int.from_bytes(body, "big")]

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is not None:
            self._process = None  # the process died on its own
        if self._process is None:
            self.restarts += self._started
            self._started = True
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,  # RE2 writes each wrong pattern there
                    preexec_fn=end_with_parent(),
                )
            except OSError as error:
                raise Unanswered(f"expressions cannot be evaluated: {error}") from None
        return self._process
