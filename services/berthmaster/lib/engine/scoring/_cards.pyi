"""What _cards.c offers; compiled.py says how it is used."""

import numpy as np
from numpy.typing import NDArray

class Nodes:
    """The fleet's arrays, for as long as its layout lasts."""

    @property
    def cpu(self) -> NDArray[np.int64]:
        """The array itself: whether these are the arrays of a fleet."""

    def __init__(
        self,
        *,
        cpu: NDArray[np.int64],
        memory: NDArray[np.int64],
        gpu: NDArray[np.int64],  # [G, N]
        whole: NDArray[np.int64],
        milli: NDArray[np.int64],
        a_gpu: NDArray[np.float64],
        open: NDArray[np.bool_],
        cluster_of: NDArray[np.int64],
        starts: NDArray[np.int64],
        log: NDArray[np.int64],
        newest: NDArray[np.int64],
    ) -> None: ...

class Ask:
    """What one pod asks for, and what that is worth by what was learned."""

    def __init__(
        self,
        *,
        nodes: NDArray[np.bool_],
        gpus: NDArray[np.bool_] | None,  # [N, G]
        losses: NDArray[np.float64] | None,
        dear: NDArray[np.float64] | None,  # [N]
        breaks: NDArray[np.float64] | None,  # [65]
        cpu_milli: int,
        memory_mib: int,
        gpu_count: int,
        gpu_milli: int,
        takes: float,
        left_over: float,
        slope: float,
        offset: float,
        a_cpu: float,
        short_of_cpu: float,
        own: float,
    ) -> None: ...

_Scores = NDArray[np.float32]

def make(
    nodes: Nodes, ask: Ask, scores: _Scores, best: _Scores, best_slot: NDArray[np.int64], /
) -> None:
    """Score all nodes; the best of each cluster."""

def update(
    nodes: Nodes,
    ask: Ask,
    scores: _Scores,
    best: _Scores,
    best_slot: NDArray[np.int64],
    first: int,
    last: int,
    forgotten: int,
    /,
) -> None:
    """Score the nodes that entries of the log of touched slots name, from first to before last."""

def room(
    nodes: Nodes,
    ask: Ask,
    rooms: NDArray[np.int16],
    sums: NDArray[np.int64],
    most: int,
    first: int,
    last: int,
    forgotten: int,
    /,
) -> None:
    """How many pods fit, at most ``most``, on the nodes that entries of the log of touched slots
    name, and by cluster; first below 0: on all nodes."""

def seat(
    nodes: Nodes, sets: tuple[tuple[Ask, int, int], ...], first: int, last: int, /
) -> list[list[tuple[int, tuple[int, ...]]]] | None:
    """Slot and GPUs for each pod of sets (what one asks for, how many, most on one node), one after
    the other on the nodes from first to before last; None if there is no room for all."""

_Doubles = NDArray[np.float64]

def useful(
    nodes: Nodes,
    hole: _Doubles,
    capacity_milli: NDArray[np.int64],
    room: _Doubles,
    a_cpu: float,
    wasted: float,
    /,
) -> None:
    """What the free GPUs of each node are worth to the pods that come, written to ``room``."""

def rank(
    values: _Doubles,
    free_milli: NDArray[np.int64],
    all_milli: NDArray[np.int64],
    total: _Doubles,
    room: float,
    fit: float,
    sets: tuple[tuple[_Scores, float, float], ...],
    may: NDArray[np.bool_],
    single: bool,
    /,
) -> tuple[bytes, list[int]]:
    """The clusters by score; scores and what they are made of are written to ``values``."""

def shown(
    values: _Doubles,
    parts: tuple[str, ...],
    fixed: _Doubles,
    fixed_parts: tuple[str, ...],
    numbers: list[int],
    /,
) -> list[tuple[float, dict[str, float]]]:
    """Scores and parts of some clusters as records have them."""
