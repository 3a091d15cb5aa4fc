"""Scorecards worked out in C where that was built (_cards.c), else by numpy: the same bits.

The numpy code in value.py and score_cache.py says what is worked out, and that in
scoring/ranking.py how clusters rank by it; it serves where there was no compiler, for kinds of pods
that are rare (pieces of GPUs, GPUs of one domain), and as the twin that tests compare with.
"""

from typing import TYPE_CHECKING, Final

from berthmaster.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.engine.fleet.needs import Suitable, wants_fraction
from berthmaster.engine.scoring.value import (
    LEFT_OVER_A_GPU,
    NEVER_SCARCE,
    Worth,
    own_gpus,
    together,
)
from berthmaster.messages.workload import PodSet

if TYPE_CHECKING:
    from berthmaster.engine.scoring import _cards as cards
else:
    try:
        from berthmaster.engine.scoring import _cards as cards
    except ImportError:
        cards = None

__all__ = ["COMPILED", "ask_of", "cards", "nodes_of"]

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


def ask_of(pods: PodSet, suitable: Suitable, worth: Worth) -> "cards.Ask | None":
    """What ``score_nodes`` works out once for all nodes; None if only numpy knows how to go on."""
    if suitable.offered is not None or suitable.domains is not None or suitable.pieces:
        return None
    fraction = wants_fraction(pods)
    takes = pods.gpu_milli * (1.0 / WHOLE) if fraction else float(pods.gpus)
    slope, offset = together(pods.gpus)
    scarce = worth.cpu_milli_a_gpu > NEVER_SCARCE
    a_cpu = 1.0 / worth.cpu_milli_a_gpu if scarce else 0.0
    whole = worth.dear.whole
    return cards.Ask(
        nodes=suitable.nodes,
        gpus=suitable.gpus,
        losses=worth.losses(pods.gpu_milli) if fraction else None,
        dear=worth.dear.factor,
        whole_gpus=whole.gpus if whole is not None else None,
        whole_cpu=whole.cpu if whole is not None else None,
        whole_price=whole.price if whole is not None else None,
        cpu_milli=pods.cpu_milli,
        memory_mib=pods.memory_mib,
        gpu_count=pods.gpus,
        gpu_milli=pods.gpu_milli,
        takes=takes,
        left_over=LEFT_OVER_A_GPU,
        slope=slope,
        offset=offset,
        a_cpu=a_cpu,
        short_of_cpu=pods.cpu_milli * a_cpu - takes,
        own=own_gpus(pods),
    )
