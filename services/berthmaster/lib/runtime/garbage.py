"""Keeps the collector of reference cycles out of the way of a service that remembers much.

What services keep (facts, workloads, decisions) has no cycles: it goes when nobody refers to it any
more. CPython's collector walks through all of it all the same, again and again while it grows: at
20,000 workloads 60 to 120 ms at a time, in the middle of a decision. Cycles are made by exceptions
and tasks, and die young; so the young are looked at often, and all of it seldom.
"""

import gc
from typing import Final

YOUNG: Final = 10_000  # objects made and not yet gone, after which the youngest are looked at
MIDDLE: Final = 20  # such looks, after which those that outlived one are looked at too
ALL: Final = 500  # such looks, after which all are: every hundred million objects


def rarely_look_at_all() -> None:
    """To be called once what was imported is there; that is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, ALL)
