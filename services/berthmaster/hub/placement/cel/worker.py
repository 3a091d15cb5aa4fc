"""The process that answers questions, under limits of memory and CPU time.

Google's CEL bounds the loops and the depth of an expression, not the strings that it builds, and a
call into it cannot be stopped. This process can: whatever exceeds the limits ends it, and
``client`` starts another. It reads questions from stdin and writes to stdout, as frames of a length
in four bytes, a kind and a body of msgpack. End of stdin ends it.
"""

import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from berthmaster.hub.placement.cel.question import CelAnswer, Question, too_costly

MEMORY_BYTES: Final = 384 * 1024 * 1024  # address space; some 70 MiB of it are there from the start
LARGE_BYTES: Final = 192 * 1024 * 1024  # memory in use, after which it answers and ends
GRACE_S: Final = 2  # CPU time above a question's budget, after which the kernel ends the process
ANSWER: Final = b"a"
MARK: Final = b"m"  # the number of the expression that is looked at next
ASK: Final = b"q"
CAREFUL: Final = b"c"  # a question whose answer is preceded by marks
LENGTH: Final = 4
_MEMORY: Final = Path("/proc/self/statm")


def frame(kind: bytes, body: bytes) -> bytes:
    """One message between the two processes."""
    return len(body).to_bytes(LENGTH, "big") + kind + body


def _limit_cpu(budget_s: float) -> None:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    most_s = int(spent.ru_utime + spent.ru_stime + budget_s) + GRACE_S
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, resource.RLIM_INFINITY))


def _resident_bytes() -> int:
    # The peak that getrusage gives includes the service's own, from before this program was loaded.
    return int(_MEMORY.read_bytes().split()[1]) * resource.getpagesize()


def serve(language: Any, asked: BinaryIO, answers: BinaryIO) -> None:
    """CelAnswer questions until there are no more, or one took so much memory that a new process is
    better than this one."""
    decoder = msgspec.msgpack.Decoder(Question)
    last = 0

    def mark(number: int) -> None:
        nonlocal last
        last = number
        if careful:
            answers.write(frame(MARK, number.to_bytes(LENGTH, "big")))
            answers.flush()

    while _resident_bytes() < LARGE_BYTES and len(head := asked.read(LENGTH + 1)) == LENGTH + 1:
        careful = head[LENGTH:] == CAREFUL
        body = asked.read(int.from_bytes(head[:LENGTH], "big"))
        question = decoder.decode(body)
        _limit_cpu(question.budget_s)
        answer: CelAnswer
        try:
            answer = language.answer(question, mark)
        except MemoryError:
            answer = too_costly(last, question.budget_s)
        answers.write(frame(ANSWER, msgspec.msgpack.encode(answer)))
        answers.flush()


def main() -> None:
    """Serve on stdin and stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the service too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from berthmaster.hub.placement.cel.language import Language

    language = Language()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    serve(language, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
