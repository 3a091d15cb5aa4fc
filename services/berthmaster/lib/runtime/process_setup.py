"""What a process of ours asks of its kernel and interpreter when it starts.

- Children end with their parent. A supervisor that is killed with SIGKILL can tell none of them,
  but Linux signals a child when the thread that started it is gone. Start children from the main
  thread.
- As many open files as the system permits. The soft limit is low on many machines (1,024), for
  programs that cannot count further. A server without a descriptor can neither take a connection
  nor write its data.
- Few full scans of the garbage collector. Facts, workloads and decisions have no cycles. A scan of
  20,000 workloads takes 60 to 120 ms, in the middle of a decision. Exceptions and tasks make cycles
  that die young, so young objects are scanned often and all of them seldom.
"""

import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
# Loaded here, since between fork and exec nothing may be imported or locked.
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> Callable[[], None]:
    """Return a `preexec_fn` for subprocess: the child gets SIGKILL when this process is gone.

    Only Linux supports that. Elsewhere a killed supervisor leaves its children behind.
    """
    parent = os.getpid()

    def between_fork_and_exec() -> None:
        if _LIBC is None:
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was gone before we could ask
            os.kill(os.getpid(), signal.SIGKILL)

    return between_fork_and_exec


def live_on_alone() -> None:
    """Undo `end_with_parent` for this process: it goes on when its parent ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


MAX_OPEN_FILES: Final = (
    1_048_576  # a hard limit may be infinite; a walk through all descriptors must end
)


def raise_open_files() -> int:
    """Raise the soft limit to the hard one, for this process and its children. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return soft  # some systems permit less than their stated limit
    return most


YOUNG: Final = 10_000  # live objects made since the last scan of the youngest, which start one
MIDDLE: Final = 20  # scans of the youngest for one scan of those that survived
ALL: Final = 500  # scans of the survivors for one scan of all: every hundred million objects


def reduce_garbage_scans() -> None:
    """Make scans rare. Call this after the imports: their objects are never scanned again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, ALL)
