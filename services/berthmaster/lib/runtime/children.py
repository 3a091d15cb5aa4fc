"""Children that do not outlive their parent, whatever ends it.

A supervisor that is killed with SIGKILL can tell nobody. Linux can: it sends a child the signal
that it asked for when the thread that started it is gone. Start children from the main thread.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
# Loaded here, since between fork and exec nothing may be imported or locked.
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def dying_with_this_process() -> Callable[[], None]:
    """What to give to subprocess as `preexec_fn`: the child gets SIGKILL when this process is gone.

    Elsewhere than on Linux it does nothing, and a killed supervisor leaves its children behind.
    """
    parent = os.getpid()

    def between_fork_and_exec() -> None:
        if _LIBC is None:
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was gone before we could ask
            os.kill(os.getpid(), signal.SIGKILL)

    return between_fork_and_exec
