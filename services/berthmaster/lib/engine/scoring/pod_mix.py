"""The mix of arriving pods, for which a fleet keeps its free capacity useful.

Rules of this file:

- The mix is a fold of arrivals in whole numbers: readers of the same log have the same mix.
- Old arrivals fade: at twice the length of the memory all counts are halved and zeros are dropped.
  The mix is therefore bounded.
- Prices take milliseconds, so they use a sample, renewed at arrivals by number: often at first,
  seldom later.
- The mix also counts requested GPU milli by node requirements (model, MIG profile, labels), for
  pods that accept the same nodes.
"""

from typing import Final, NamedTuple, TypeVar

import msgspec

from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.messages.placement import LearnedMix, PodKind, Wanted
from berthmaster.lib.messages.workload import PodSet

FIRST_SAMPLE: Final = 32  # pods


class PodType(NamedTuple):
    """Shape of a pod that decides which holes it fills."""

    gpus: int
    gpu_milli: int
    cpu_milli: int


Sample = tuple[tuple[PodType, int], ...]  # counts, sorted by type
Wants = tuple[tuple[str, int], ...]  # requirements (``accepted``), GPU milli; sorted


class Sampled(NamedTuple):
    """A sample, and how many pods had arrived when it was taken."""

    pods: int = 0  # 0 = none was taken yet
    sample: Sample = ()
    wants: Wants = ()


class MixState(msgspec.Struct, frozen=True, kw_only=True):
    """All of a mix, for a snapshot."""

    pods: int = 0
    next_sample: int = FIRST_SAMPLE
    counts: tuple[tuple[PodType, int], ...] = ()
    wants: Wants = ()
    newest: Sampled = Sampled()


COUNTS_OF_ONE: Final = 16  # lets a rare kind of pod survive some halvings
MEMORY_PODS: Final = 16_384  # pods after which a count is halved
MAX_TYPES: Final = 1024
MAX_WANTS: Final = 256  # a sample keeps the most requested
SAMPLED_WANTS: Final = 48
GROWTH: Final = 2  # a sample is renewed when half as many more have arrived …
LONGEST_PODS: Final = 4096  # … or so many


class Mix:
    """Decayed counts of arrived pods, and the sample for prices."""

    def __init__(self, state: MixState | None = None) -> None:
        state = state or MixState()
        self._counts: dict[PodType, int] = dict(state.counts)
        self._total = sum(self._counts.values())
        self._wants: dict[str, int] = dict(state.wants)
        self._pods = state.pods
        self._next = state.next_sample
        self.newest = state.newest  # newest

    def state(self) -> MixState:
        return MixState(
            pods=self._pods,
            next_sample=self._next,
            counts=_sorted(self._counts),
            wants=tuple(sorted(self._wants.items())),
            newest=self.newest,
        )

    def add(self, pods: PodSet) -> None:
        """So many pods of a kind arrived."""
        kind = PodType(pods.gpus, pods.gpu_milli if pods.gpus else 0, pods.cpu_milli)
        weight = COUNTS_OF_ONE * pods.count
        self._counts[kind] = self._counts.get(kind, 0) + weight
        self._total += weight
        self._pods += pods.count
        if pods.gpus:
            accepts = accepted(pods)
            milli = pods.count * pods.gpus * pods.gpu_milli
            self._wants[accepts] = self._wants.get(accepts, 0) + milli
        while len(self._wants) > MAX_WANTS:
            self._wants = _halved(self._wants)
        while self._total >= 2 * COUNTS_OF_ONE * MEMORY_PODS or len(self._counts) > MAX_TYPES:
            self._fade()
        if self._pods >= self._next:
            self._next = self._pods + max(1, min(self._pods // GROWTH, LONGEST_PODS))
            self.newest = Sampled(self._pods, _sorted(self._counts), _most(self._wants))

    def _fade(self) -> None:
        self._counts = _halved(self._counts)
        self._wants = _halved(self._wants)
        self._total = sum(self._counts.values())


def accepted(pods: PodSet) -> str:
    """Return a key, equal for pods with GPUs that accept the same nodes."""
    plain = msgspec.structs.replace(
        pods,
        name="main",
        count=1,
        cpu_milli=0,
        memory_mib=0,
        gpus=1,
        gpu_milli=1 if wants_fraction(pods) else 1000,
        gpu_models=tuple(sorted(pods.gpu_models)),
        prefer_gpu_models=(),
        topology=None,
        choose=None,
        resources=dict.fromkeys(pods.resources, 1),
    )
    return _ENCODER.encode(plain).decode()


def accepting(accepts: str) -> PodSet:
    """Return a pod with these node requirements."""
    return _POD_SETS.decode(accepts)


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_POD_SETS: Final = msgspec.json.Decoder(PodSet)
_T = TypeVar("_T")


def _halved(counts: dict[_T, int]) -> dict[_T, int]:
    return {kind: n // 2 for kind, n in counts.items() if n >= 2}


def _most(wants: dict[str, int]) -> Wants:
    most = sorted(wants.items(), key=lambda want: (-want[1], want[0]))[:SAMPLED_WANTS]
    return tuple(sorted(most))


def _sorted(counts: dict[PodType, int]) -> Sample:
    return tuple(sorted(counts.items()))


def sampled_from(mix: LearnedMix) -> Sampled:
    kinds = ((PodType(k.gpus, k.gpu_milli, k.cpu_milli), k.weight) for k in mix.kinds)
    wants = ((want.accepts, want.gpu_milli) for want in mix.wants)
    return Sampled(mix.pods, tuple(kinds), tuple(wants))


def told_as(sampled: Sampled) -> LearnedMix:
    kinds = (
        PodKind(gpus=k.gpus, gpu_milli=k.gpu_milli, cpu_milli=k.cpu_milli, weight=weight)
        for k, weight in sampled.sample
    )
    wants = (Wanted(accepts=each, gpu_milli=milli) for each, milli in sampled.wants)
    return LearnedMix(pods=sampled.pods, kinds=tuple(kinds), wants=tuple(wants))
