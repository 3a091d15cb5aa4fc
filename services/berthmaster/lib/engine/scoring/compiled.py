"""Scorecards worked out in C where that was built (_cards.c), else by numpy: the same bits.

The numpy code in value.py and score_cache.py says what is worked out, and cluster_scores.py how
clusters rank by it. It serves where there was no compiler, for kinds of pods that are rare (units
of extended resources, GPUs of one domain), and as the twin that tests compare with.
"""

from typing import TYPE_CHECKING, Final

from berthmaster.lib.engine.fleet.fleet import Fleet

if TYPE_CHECKING:
    from berthmaster.lib.engine.scoring import _cards as cards
else:
    try:
        from berthmaster.lib.engine.scoring import _cards as cards
    except ImportError:
        cards = None

__all__ = ["COMPILED", "cards", "nodes_of"]

COMPILED: Final = cards is not None


def nodes_of(fleet: Fleet) -> "cards.Nodes":
    """The fleet's arrays, for as long as its layout lasts."""
    return cards.Nodes(
        cpu=fleet.arrays.cpu,
        memory=fleet.arrays.memory,
        gpu=fleet.arrays.gpu.T,
        whole=fleet.arrays.whole,
        milli=fleet.arrays.milli,
        a_gpu=fleet.arrays.a_gpu,
        open=fleet.arrays.open,
        cluster_of=fleet.arrays.cluster_of,
        starts=fleet.arrays.starts,
        log=fleet.touched.slots,
        newest=fleet.touched.newest,
    )
