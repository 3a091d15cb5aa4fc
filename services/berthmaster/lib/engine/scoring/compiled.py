"""Scorecards in C if compiled (_cards.c), else in numpy, with equal bits.

The numpy code in value.py and score_cache.py defines the results, and cluster_scores.py the
ranking. numpy also serves rare kinds of pods (extended resources, GPUs of one domain) and as the
twin in tests.
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
    """Return the fleet's arrays for C, valid for one layout."""
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
