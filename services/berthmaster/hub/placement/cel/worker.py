"""The process that evaluates questions, under limits of memory and CPU time.

Google's CEL bounds the loops and the depth of an expression, but not the strings that an expression
builds. A call into CEL cannot be stopped. This process can: a question above the limits ends the
process, and ``client`` starts another. The process reads questions from stdin and writes to stdout.
A frame is a length in four bytes, a kind and a msgpack body. The process ends at the end of stdin.
"""

import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from berthmaster.hub.placement.cel.question import CelAnswer, Question, too_costly

# limit of address space; the process starts with about 70 MiB
MEMORY_BYTES: Final = 384 * 1024 * 1024
LARGE_BYTES: Final = 192 * 1024 * 1024  # memory in use above which the process answers and exits
GRACE_S: Final = 2  # CPU seconds above a question's budget before the kernel kills the process
ANSWER: Final = b"a"
MARK: Final = b"m"  # the number of the next expression
ASK: Final = b"q"
CAREFUL: Final = b"c"  # a question whose answer is preceded by marks
LENGTH: Final = 4
_MEMORY: Final = Path("/proc/self/statm")


def frame(kind: bytes, body: bytes) -> bytes:
    """Return a message between the two processes."""
    return len(body).to_bytes(LENGTH, "big") + kind + body


def _limit_cpu(budget_s: float) -> None:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    most_s = int(spent.ru_utime + spent.ru_stime + budget_s) + GRACE_S
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, resource.RLIM_INFINITY))


def _resident_bytes() -> int:
    # The peak from getrusage includes the service's own memory, from before exec.
    return int(_MEMORY.read_bytes().split()[1]) * resource.getpagesize()


def serve(language: Any, asked: BinaryIO, answers: BinaryIO) -> None:
    """Answer questions until stdin ends.

    Return early after a question that used so much memory that a new process is better.
    """
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal also sends SIGINT to the service
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from berthmaster.hub.placement.cel.language import Language

    language = Language()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    serve(language, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
