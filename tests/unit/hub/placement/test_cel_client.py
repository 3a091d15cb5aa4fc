"""The process that evaluates expressions: its limits, its ends, and what they cost others."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from berthmaster.hub.placement.cel.client import COMMAND, CelWorker, Unanswered
from berthmaster.hub.placement.cel.question import TOO_COSTLY, CelAnswer, ClusterInput, Question

CLUSTER = ClusterInput({"metadata": {"name": "c1", "labels": {"a": "b"}}}, {}, [0])
GOOD = "managedCluster.metadata.labels.a == 'b'"
GROWS = "[managedCluster.metadata.name]" + ".map(x, x+x+x+x+x+x+x+x+x+x)" * 9 + ".exists(s, true)"
GROWS_IN_PYTHON = "[managedCluster.metadata.name]" + ".map(x, strings.quote(x+x+x))" * 16 + " != []"
# It answers the first question of its life by an end, and each second one as the real process does.
DIES = """
import os, sys
from berthmaster.hub.placement.cel import worker
head = sys.stdin.buffer.read(worker.LENGTH + 1)
if head[worker.LENGTH:] == worker.CAREFUL:
    sys.stdout.buffer.write(worker.frame(worker.MARK, (1).to_bytes(worker.LENGTH, "big")))
    sys.stdout.buffer.flush()
os.kill(os.getpid(), signal) if (signal := int(sys.argv[1])) else sys.exit(0)
"""


def question(*texts: str) -> Question:
    return Question(texts, (tuple(range(len(texts))),), [CLUSTER])


@asynccontextmanager
async def working(**options: Any) -> AsyncIterator[CelWorker]:
    worker = CelWorker(**options)
    try:
        yield worker
    finally:
        await worker.close()


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 300))


def selected(answer: CelAnswer) -> bool:
    return answer.clusters[0].selected


def ends(pid: int, within_s: float = 20.0) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_ask_is_answered_in_a_service_that_uses_much_memory() -> None:
    async def story() -> None:
        much = bytearray(300 * 1024 * 1024)
        much[:: resource.getpagesize()] = b"x" * len(much[:: resource.getpagesize()])
        async with working() as worker:
            assert selected(await worker.ask(question(GOOD)))
            assert worker.restarts == 0

    run(story)


def test_ask_starts_one_process_for_many_questions_at_once() -> None:
    async def story() -> None:
        async with working() as worker:
            assert worker.pid is None
            answers = await asyncio.gather(*(worker.ask(question(GOOD)) for _ in range(50)))
            assert all(map(selected, answers))
            assert (worker.pid is not None, worker.restarts) == (True, 0)

    run(story)


@pytest.mark.parametrize("text", [GROWS, GROWS_IN_PYTHON], ids=["in C++", "in Python"])
def test_ask_refuses_what_takes_too_much_memory_and_goes_on(text: str) -> None:
    async def story() -> None:
        async with working() as worker:
            bad, good = await asyncio.gather(
                worker.ask(question("true", text)), worker.ask(question(GOOD))
            )
            assert bad.refused == {1: TOO_COSTLY}
            assert selected(good)

    run(story)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGXCPU, 0])
def test_ask_blames_the_expression_that_ends_the_process_twice(number: int) -> None:
    async def story() -> None:
        async with working(command=(sys.executable, "-c", DIES, str(int(number)))) as worker:
            answer = await worker.ask(question("true", GOOD))
            assert answer.refused == {1: TOO_COSTLY}
            assert worker.restarts == 1

    run(story)


def test_ask_blames_nothing_where_the_process_ends_before_it_looks() -> None:
    async def story() -> None:
        async with working(command=(sys.executable, "-c", "")) as worker:
            with pytest.raises(Unanswered):
                await worker.ask(question(GOOD))
        async with working(command=("/no/such/program",)) as worker:
            with pytest.raises(Unanswered, match="cannot be evaluated"):
                await worker.ask(question(GOOD))

    run(story)


def test_ask_survives_a_process_killed_from_outside() -> None:
    async def story() -> None:
        async with working() as worker:
            await worker.ask(question(GOOD))
            for _ in range(3):
                assert worker.pid is not None
                os.kill(worker.pid, signal.SIGKILL)
                assert selected(await worker.ask(question(GOOD)))
            assert worker.restarts == 3

    run(story)


def test_ask_replaces_a_process_that_hangs() -> None:
    async def story() -> None:
        async with working(wait_s=10.0) as worker:
            await worker.ask(question(GOOD))
            hung = worker.pid
            assert hung is not None
            os.kill(hung, signal.SIGSTOP)
            assert selected(await worker.ask(question(GOOD)))
            assert worker.pid != hung
            assert ends(hung)

    run(story)


def test_ask_cancelled_ends_the_process_and_mixes_no_answers() -> None:
    async def story() -> None:
        async with working() as worker:
            await worker.ask(question(GOOD))
            first = worker.pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            asking = asyncio.ensure_future(worker.ask(question("false")))
            await asyncio.sleep(0.1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert ends(first)
            assert selected(await worker.ask(question(GOOD)))

    run(story)


def test_the_process_ends_with_the_service_that_is_killed() -> None:
    script = """
import asyncio
from berthmaster.hub.placement.cel.client import CelWorker
from berthmaster.hub.placement.cel.question import Question
async def main():
    worker = CelWorker()
    await worker.ask(Question(("true",), ((0,),)))
    print(worker.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        pid = int(service.stdout.readline())
        service.kill()
    assert ends(pid)


def test_the_process_ends_with_its_input_and_not_by_an_interrupt() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        process.stdin.close()
        assert process.wait(30) == 0
