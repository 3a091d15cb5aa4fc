"""The mix of pods that arrives: what a fleet should keep its holes fit for.

Rules of this file:

- A mix is a fold of arrivals in their order, in whole numbers: whoever folds the same log, at any
  time and on any machine, has the same mix.
- Old arrivals fade: when the counts' sum reaches twice a memory's length, all are halved, and what
  is rounded to nothing is forgotten. So it is bounded too, whatever people ask for.
- What is made of the mix (prices) costs milliseconds, so it is made of a sample that is renewed at
  arrivals that depend on their number alone: often while little is known, seldom later.
"""

from typing import Final, NamedTuple

import msgspec

from berthmaster.messages.placement import LearnedMix, PodKind
from berthmaster.messages.workload import PodSet

COUNTS_OF_ONE: Final = 16  # so that a rare kind of pod outlives some halvings
MEMORY_PODS: Final = 16_384  # pods after which one counts half
MAX_TYPES: Final = 1024
FIRST_SAMPLE: Final = 32  # pods
GROWTH: Final = 2  # a sample is renewed when half as many more have arrived …
LONGEST_PODS: Final = 4096  # … or so many


class PodType(NamedTuple):
    """What of a pod decides which holes it can fill."""

    gpus: int
    gpu_milli: int
    cpu_milli: int


Sample = tuple[tuple[PodType, int], ...]  # counts, sorted by type


class Sampled(NamedTuple):
    """A sample, and how many pods had arrived when it was taken."""

    pods: int = 0  # 0 = none was taken yet
    sample: Sample = ()


class MixState(msgspec.Struct, frozen=True, kw_only=True):
    """All of a mix, for a snapshot."""

    pods: int = 0
    next_sample: int = FIRST_SAMPLE
    counts: tuple[tuple[PodType, int], ...] = ()
    newest: Sampled = Sampled()


class Mix:
    """Decayed counts of the pods that arrived, and the sample that prices are made of."""

    def __init__(self, state: MixState | None = None) -> None:
        state = state or MixState()
        self._counts: dict[PodType, int] = dict(state.counts)
        self._total = sum(self._counts.values())
        self._pods = state.pods
        self._next = state.next_sample
        self.newest = state.newest  # newest

    def state(self) -> MixState:
        """What a mix is made anew of."""
        return MixState(
            pods=self._pods,
            next_sample=self._next,
            counts=_sorted(self._counts),
            newest=self.newest,
        )

    def add(self, pods: PodSet) -> None:
        """So many pods of a kind arrived."""
        kind = PodType(pods.gpus, pods.gpu_milli if pods.gpus else 0, pods.cpu_milli)
        weight = COUNTS_OF_ONE * pods.count
        self._counts[kind] = self._counts.get(kind, 0) + weight
        self._total += weight
        self._pods += pods.count
        while self._total >= 2 * COUNTS_OF_ONE * MEMORY_PODS or len(self._counts) > MAX_TYPES:
            self._fade()
        if self._pods >= self._next:
            self._next = self._pods + max(1, min(self._pods // GROWTH, LONGEST_PODS))
            self.newest = Sampled(self._pods, _sorted(self._counts))

    def _fade(self) -> None:
        self._counts = {kind: n // 2 for kind, n in self._counts.items() if n >= 2}
        self._total = sum(self._counts.values())


def _sorted(counts: dict[PodType, int]) -> Sample:
    return tuple(sorted(counts.items()))


def sampled_from(mix: LearnedMix) -> Sampled:
    """A sample, as a decision tells it."""
    kinds = ((PodType(k.gpus, k.gpu_milli, k.cpu_milli), k.weight) for k in mix.kinds)
    return Sampled(mix.pods, tuple(kinds))


def told_as(sampled: Sampled) -> LearnedMix:
    """The same, to be told."""
    kinds = (
        PodKind(gpus=k.gpus, gpu_milli=k.gpu_milli, cpu_milli=k.cpu_milli, weight=weight)
        for k, weight in sampled.sample
    )
    return LearnedMix(pods=sampled.pods, kinds=tuple(kinds))
