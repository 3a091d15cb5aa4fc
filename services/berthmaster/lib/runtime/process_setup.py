"""Settings of kernel and interpreter for every process at its start.

- Children end with their parent. A supervisor killed with SIGKILL cannot stop children, but Linux
  signals a child when the starting thread ends. Start children from the main thread.
- The maximum number of open files. The soft limit is low on many machines (1,024), for programs
  that cannot handle more. A server without a descriptor can neither accept a connection nor write
  its data.
- Few full scans of the garbage collector. Facts, workloads and decisions have no cycles. A scan of
  20,000 workloads takes 60 to 120 ms, in the middle of a decision. Exceptions and tasks make cycles
  that die young, so young objects are scanned often and all objects seldom.
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
    """Return a `preexec_fn` for subprocess: the child gets SIGKILL when this process ends.

    Only Linux supports this. Elsewhere a killed supervisor leaves its children running.
    """
    parent = os.getpid()

    def between_fork_and_exec() -> None:
        if _LIBC is None:
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return between_fork_and_exec


def live_on_alone() -> None:
    """Undo `end_with_parent`: the process then outlives the parent."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


# A hard limit may be infinite, and closing all descriptors must end.
MAX_OPEN_FILES: Final = 1_048_576


def raise_open_files() -> int:
    """Raise the soft limit to the hard limit, for the process and the children. Return the
    limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return soft  # some systems permit less than their stated limit
    return most


YOUNG: Final = 10_000  # new objects that start a scan of the youngest generation
MIDDLE: Final = 20  # scans of the youngest generation per scan of the survivors
ALL: Final = 500  # scans of the survivors per full scan: every hundred million objects


def reduce_garbage_scans() -> None:
    """Make scans rare. Call after the imports: imported objects are never scanned again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, ALL)
