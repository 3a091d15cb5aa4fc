"""What is kept of the mix of pods that arrives: a sample that prices are made of, and all of it."""

from typing import Final, NamedTuple

import msgspec

FIRST_SAMPLE: Final = 32  # pods


class PodType(NamedTuple):
    """What of a pod decides which holes it can fill."""

    gpus: int
    gpu_milli: int
    cpu_milli: int


Sample = tuple[tuple[PodType, int], ...]  # counts, sorted by type
Wants = tuple[tuple[str, int], ...]  # what pods accept (``accepted``), GPU milli; sorted


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
