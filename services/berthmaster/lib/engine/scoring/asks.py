"""What one kind of pod asks for, as _cards.c wants it: worked out once for all nodes.

The numpy code in value.py says what it means; for kinds of pods that only numpy knows (GPUs of one
domain) there is none.
"""

from berthmaster.lib.engine.fleet.fleet import WHOLE
from berthmaster.lib.engine.fleet.needs import Suitable, wants_fraction
from berthmaster.lib.engine.scoring.compiled import cards
from berthmaster.lib.engine.scoring.value import (
    LEFT_OVER_A_GPU,
    NEVER_SCARCE,
    Worth,
    own_gpus,
    together,
)
from berthmaster.lib.messages.workload import PodSet


def ask_of(pods: PodSet, suitable: Suitable, worth: Worth) -> "cards.Ask | None":
    """What ``score_nodes`` works out once for all nodes; None if only numpy knows how to go on."""
    if suitable.offered is not None or suitable.domains is not None or suitable.pieces:
        return None
    fraction = wants_fraction(pods)
    takes = pods.gpu_milli * (1.0 / WHOLE) if fraction else float(pods.gpus)
    slope, offset = together(pods.gpus)
    scarce = worth.cpu_milli_a_gpu > NEVER_SCARCE
    a_cpu = 1.0 / worth.cpu_milli_a_gpu if scarce else 0.0
    return cards.Ask(
        nodes=suitable.nodes,
        gpus=suitable.gpus,
        losses=worth.losses(pods.gpu_milli) if fraction else None,
        dear=worth.dear.factor,
        breaks=worth.dear.breaks(pods.gpus) if pods.gpus else None,
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
