"""How many files and connections a process may have open: as many as the system lets it.

The soft limit is low on many machines (1,024) for programs that cannot count further; ours can. A
server that has no descriptor left can neither take a connection nor write its data.
"""

import resource
from typing import Final

MOST: Final = 1_048_576  # a "hard limit" may be none at all; what walks through all ends some time


def raise_open_files() -> int:
    """Raise the soft limit to the hard one, for this process and those that it starts; what it is
    then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return soft  # some systems allow less than the limit that they tell
    return most
