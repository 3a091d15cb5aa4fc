"""The typical job mix: the pods of jobs' requests. Fragmentation is measured against the mix. Pure.

Pods of submitted workloads are counted by shape, with a half-life. The typical mix is the most
popular shapes up to 95 % of the pods, as FGD defines it. Pods without GPUs are left out, because
they say nothing about GPU use. A default mix is used until enough pods were seen.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

COVERAGE: Final = 0.95
MAX_TYPICAL: Final = 40  # a public trace of 8,152 pods needs 31 for 95 %
MAX_SHAPES: Final = 1024  # remembered in all. Beyond it the rarest half is dropped
_REBASE_HALF_LIVES: Final = 64.0  # before weights leave the range of floats


class PodSetLike(Protocol):
    """The fields of a pod set for the mix."""

    @property
    def count(self) -> int: ...
    @property
    def cpu_milli(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def gpus(self) -> int: ...
    @property
    def gpu_milli(self) -> int: ...
    @property
    def gpu_models(self) -> tuple[str, ...]: ...


class PodShape(msgspec.Struct, frozen=True, order=True):
    """Fields that make two pods alike."""

    cpu_milli: int
    gpus: int
    gpu_milli: int  # of each of its GPUs
    models: tuple[str, ...] = ()  # acceptable, sorted. Empty: any


class TypicalPod(msgspec.Struct, frozen=True):
    """One shape of the mix, its share, and the average memory request of such pods."""

    shape: PodShape
    share: float
    memory_mib: int


class Mix(msgspec.Struct, frozen=True):
    """The typical pods, and the CPU and memory beside each GPU for a gang of 1-GPU pods."""

    pods: tuple[TypicalPod, ...]
    gang_cpu_milli: int
    gang_memory_mib: int


def _pod(share: float, cpu_milli: int, gpus: int, gpu_milli: int, memory_mib: int) -> TypicalPod:
    return TypicalPod(PodShape(cpu_milli, gpus, gpu_milli), share, memory_mib)


# The shape of the public openb pod list: more than half request one whole GPU, nearly all others a
# GPU fraction. Here are a few more whole machines, as in training fleets.
_DEFAULT_PODS: Final = (
    _pod(0.52, 11_000, 1, 1000, 40_960),
    _pod(0.22, 8_000, 1, 500, 30_720),
    _pod(0.14, 3_000, 1, 800, 6_144),
    _pod(0.06, 4_000, 1, 300, 22_528),
    _pod(0.02, 24_000, 2, 1000, 98_304),
    _pod(0.02, 48_000, 4, 1000, 196_608),
    _pod(0.02, 90_000, 8, 1000, 393_216),
)


def mix_of(pods: Sequence[TypicalPod]) -> Mix:
    """Return a mix with these pods. The gang's pod is the average per GPU of pods with whole
    GPUs.
    """
    whole = [pod for pod in pods if pod.shape.gpu_milli == 1000] or list(pods)
    weight = sum(pod.share for pod in whole)
    if not weight:
        return Mix(tuple(pods), 0, 0)
    cpu = sum(pod.share * pod.shape.cpu_milli / pod.shape.gpus for pod in whole)
    memory = sum(pod.share * pod.memory_mib / pod.shape.gpus for pod in whole)
    return Mix(tuple(pods), round(cpu / weight), round(memory / weight))


DEFAULT_MIX: Final = mix_of(_DEFAULT_PODS)


class _Seen(msgspec.Struct):
    weight: float = 0.0
    memory: float = 0.0  # weight x MiB


class MixWatch:
    """Counts submitted pods by shape. Older pods count less."""

    def __init__(self, *, half_life_s: float, enough_pods: float) -> None:
        self._half_life_s = half_life_s
        self._enough_pods = enough_pods
        self._base_s: float | None = None  # the time at which one pod weighs 1
        self._seen: dict[PodShape, _Seen] = {}

    def add(self, pod_sets: Sequence[PodSetLike], at_s: float) -> None:
        """Count the pods of one workload, submitted at ``at_s``."""
        factor = self._factor(at_s)
        for pods in pod_sets:
            if pods.gpus <= 0 or pods.count <= 0:
                continue
            models = tuple(sorted(set(pods.gpu_models)))
            shape = PodShape(pods.cpu_milli, pods.gpus, pods.gpu_milli, models)
            seen = self._seen.setdefault(shape, _Seen())
            seen.weight += factor * pods.count
            seen.memory += factor * pods.count * pods.memory_mib
        if len(self._seen) > MAX_SHAPES:
            self._forget_rare()

    def typical(self, now_s: float) -> Mix:
        """Return the mix as of now."""
        factor = self._factor(now_s)  # first: it may scale all weights
        total = sum(seen.weight for seen in self._seen.values())
        if total <= 0 or total / factor < self._enough_pods:
            return DEFAULT_MIX
        popular = sorted(self._seen.items(), key=lambda item: (-item[1].weight, item[0]))
        chosen: list[tuple[PodShape, _Seen]] = []
        covered = 0.0
        for shape, seen in popular:
            chosen.append((shape, seen))
            covered += seen.weight
            if covered >= COVERAGE * total or len(chosen) == MAX_TYPICAL:
                break
        return mix_of(
            [
                TypicalPod(shape, seen.weight / covered, round(seen.memory / seen.weight))
                for shape, seen in chosen
            ]
        )

    def _factor(self, at_s: float) -> float:
        """Return the weight of a pod submitted at ``at_s``: later pods weigh more."""
        if self._base_s is None:
            self._base_s = at_s
        half_lives = (at_s - self._base_s) / self._half_life_s
        if half_lives > _REBASE_HALF_LIVES:
            shrink = 2.0**-half_lives if half_lives < 1000 else 0.0
            for seen in self._seen.values():
                seen.weight *= shrink
                seen.memory *= shrink
            self._seen = {shape: seen for shape, seen in self._seen.items() if seen.weight > 1e-12}
            self._base_s, half_lives = at_s, 0.0
        return float(2.0 ** max(half_lives, -1000.0))

    def _forget_rare(self) -> None:
        popular = sorted(self._seen.items(), key=lambda item: (-item[1].weight, item[0]))
        self._seen = dict(popular[: MAX_SHAPES // 2])


def distance(one: Mix, other: Mix) -> float:
    """Return the distance of two mixes: 0 = alike, 1 = nothing in common."""
    if one is other:
        return 0.0
    mine = {pod.shape: pod.share for pod in one.pods}
    theirs = {pod.shape: pod.share for pod in other.pods}
    shapes = mine.keys() | theirs.keys()
    apart = sum(abs(mine.get(shape, 0.0) - theirs.get(shape, 0.0)) for shape in shapes) / 2
    beside = max(
        _relative(one.gang_cpu_milli, other.gang_cpu_milli),
        _relative(one.gang_memory_mib, other.gang_memory_mib),
    )
    return max(apart, beside)


def _relative(one: int, other: int) -> float:
    return abs(one - other) / max(one, other, 1)
