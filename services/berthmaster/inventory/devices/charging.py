"""Which GPUs of a node its pods hold. Pure.

Where it is known it is taken as it is: by a claim, by HAMi's annotation, by ours. Where only the
number is known, pods of ours are taken to have the first GPUs that are free, and all others the
last: so the two meet as late as they can, and a GPU stays charged to whom it was charged. Whoever
is of one of KAI's groups has the GPU of the group, which is nobody's but the group's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from berthmaster.accelerators.table import (
    HAMI_CORES,
    HAMI_MEMORY,
    HAMI_MEMORY_PERCENT,
    TPU,
    How,
    how_of,
)
from berthmaster.engine.fleet.shares import piece_milli
from berthmaster.inventory.devices.holds import Hold
from berthmaster.inventory.devices.layout import (
    WHOLE,
    Gpu,
    Way,
    indices_of,
)
from berthmaster.kubernetes.labels import Identity
from berthmaster.messages.fleet import PodUse

MIB_BYTES = 2**20
Part = tuple[int, int]  # position of a GPU, milli of it


class Charged(NamedTuple):
    """Who holds what."""

    foreign_milli: tuple[int, ...]  # of each GPU
    foreign_cpu_milli: int
    foreign_memory_mib: int
    foreign_tpus: int
    foreign_pieces: Mapping[str, int]  # of what is no GPU and no TPU
    pods: tuple[PodUse, ...]


def charge(
    gpus: Sequence[Gpu],
    ways: Sequence[Way],
    holds: Sequence[Hold],
    *,
    claimed: dict[str, list[Part]],
    orphaned: Iterable[Part],
    claimed_tpus: int,
) -> Charged:
    """``claimed``: by uid of a pod, what its claims got; ``orphaned``: what no pod of this node
    accounts for; ``claimed_tpus``: of pods that are not ours."""
    charges = _Charges(gpus, ways, claimed)
    for position, milli in orphaned:
        charges.foreign[position] += milli
    others = [hold for hold in holds if hold.ours is None]
    sharers = {group for hold in holds if hold.is_part for group in hold.groups}
    others = [
        # What its sharers take of the GPU counts, its CPU and memory are its own.
        hold._replace(pieces=()) if hold.keeper and sharers.intersection(hold.groups) else hold
        for hold in others
    ]
    for hold in holds:  # the known places first, so that the rest is guessed around them
        charges.settle(hold)
    pods = tuple(charges.use(hold.ours, hold) for hold in holds if hold.ours is not None)
    for hold in others:
        charges.guess(hold)
    tpus = sum(n for hold in others for name, n in hold.pieces if name == TPU)
    return Charged(
        tuple(charges.foreign),
        sum(hold.cpu_milli for hold in others),
        sum(-(-hold.memory_bytes // MIB_BYTES) for hold in others),
        tpus + claimed_tpus,
        charges.others(others),
        pods,
    )


class _Charges:
    """What is left of each GPU while pods are charged to them."""

    def __init__(
        self, gpus: Sequence[Gpu], ways: Sequence[Way], claimed: dict[str, list[Part]]
    ) -> None:
        self._gpus = gpus
        self._ways = {way.resource: way for way in ways}
        self._claimed = claimed
        self._least = {at: way.least_milli for way in ways for at in way.positions}
        self._uuids = {gpu.uuid: position for position, gpu in enumerate(gpus) if gpu.uuid}
        self._indices = indices_of(gpus)
        self._at = {index: position for position, index in enumerate(self._indices)}
        self.foreign = [0] * len(gpus)
        self._ours = [0] * len(gpus)
        self._settled: dict[str, list[Part]] = {}  # by uid: what is known without guessing
        self._guessed: set[str] = set()  # uids of which nothing is left to guess
        self._of_group: dict[str, int] = {}  # KAI's groups: the GPU of each

    def _free(self, position: int) -> int:
        reserved = self._gpus[position].reserved_milli
        return WHOLE - reserved - self.foreign[position] - self._ours[position]

    def settle(self, hold: Hold) -> None:
        """Charge what is known."""
        parts = list(self._claimed.get(hold.uid, ()))
        if known := self._known(hold):
            self._guessed.add(hold.uid)
            parts += known
        self._settled[hold.uid] = parts
        held = self._ours if hold.ours is not None else self.foreign
        for position, milli in parts:
            held[position] += milli

    def _known(self, hold: Hold) -> list[Part]:
        if hold.hami:
            return [
                (at, self._hami_milli(use.cores_percent, use.memory_mib, at))
                for use in hold.hami
                if (at := self._uuids.get(use.uuid)) is not None
            ]
        wanted = self._wanted(hold)
        places = [self._at.get(index, -1) for index in hold.gpus]
        if len(places) != len(wanted) or any(
            at not in way.positions for at, (way, _) in zip(places, wanted, strict=True)
        ):
            return []
        return [(at, milli) for at, (_, milli) in zip(places, wanted, strict=True)]

    def _hami_milli(self, cores_percent: int, memory_mib: int, position: int) -> int:
        """What of a GPU is gone for others: the larger part of its compute and its memory, and no
        less than one of the pods takes away that may have it at once."""
        total_mib = self._gpus[position].memory_mib
        by_memory = -(-memory_mib * WHOLE // total_mib) if total_mib else 0
        milli = min(WHOLE, max(cores_percent * 10, by_memory)) or WHOLE
        return max(milli, self._least.get(position, 0))

    def use(self, who: Identity, hold: Hold) -> PodUse:
        """One of ours, as the node sees it."""
        parts = self._settled[hold.uid]
        if hold.uid not in self._guessed:
            parts = parts + self._place(hold, self._ours, first=True)
        return PodUse(
            tenant=who.tenant,
            workload=who.workload,
            attempt=who.attempt,
            pod=who.pod,
            cpu_milli=hold.cpu_milli,
            memory_mib=-(-hold.memory_bytes // MIB_BYTES),
            gpu_milli=max((milli for _, milli in parts), default=0),
            gpus=tuple(sorted({self._indices[position] for position, _ in parts})),
            tpus=dict(hold.pieces).get(TPU, 0),
            pieces=self.others((hold,)),
        )

    def others(self, holds: Iterable[Hold]) -> dict[str, int]:
        """What pods hold of resources that are no GPUs here and that the table does not know."""
        total: dict[str, int] = {}
        for hold in holds:
            for name, count in hold.pieces:
                if how_of(name) is How.OTHER and name not in self._ways:
                    total[name] = total.get(name, 0) + count
        return total

    def guess(self, hold: Hold) -> None:
        """Charge one that is not ours to the last GPUs, unless that is known."""
        if hold.uid not in self._guessed:
            self._place(hold, self.foreign, first=False)

    def _place(self, hold: Hold, held: list[int], *, first: bool) -> list[Part]:
        wanted = self._wanted(hold)
        if hold.is_part and len(hold.groups) == len(wanted):
            return self._share(hold.groups, wanted, held, first=first)
        parts: list[Part] = []
        taken: set[int] = set()
        for way, milli in wanted:
            position = self._choose(way, milli, taken, first=first)
            if position is None:
                continue
            if way.kind != "shared" and way.kind != "mig":
                taken.add(position)  # two whole GPUs are two
            held[position] += milli
            parts.append((position, milli))
        return parts

    def _share(
        self,
        groups: Sequence[str],
        wanted: Sequence[tuple[Way, int]],
        held: list[int],
        *,
        first: bool,
    ) -> list[Part]:
        """Of KAI's groups: each of them has a GPU of its own."""
        parts: list[Part] = []
        for group, (way, milli) in zip(groups, wanted, strict=True):
            position = self._of_group.get(group)
            if position is None:
                position = self._choose(way, WHOLE, set(self._of_group.values()), first=first)
                if position is None:
                    continue
                self._of_group[group] = position
            held[position] += milli
            parts.append((position, milli))
        return parts

    def _choose(self, way: Way, milli: int, taken: set[int], *, first: bool) -> int | None:
        order = [at for at in way.positions if at not in taken]
        if not first:
            order.reverse()
        if not order:
            return None
        roomy = [at for at in order if self._free(at) >= milli]
        # A device that is not healthy may still be held, but is not the likeliest.
        healthy = [at for at in roomy if self._gpus[at].healthy]
        return (healthy or roomy or order)[0]

    def _wanted(self, hold: Hold) -> list[tuple[Way, int]]:
        """One entry for each GPU, or part of one, that the pod asks for."""
        asked = dict(hold.pieces)
        wanted: list[tuple[Way, int]] = []
        for name, count in hold.pieces:
            way = self._ways.get(name)
            if way is None:
                continue
            milli = piece_milli(way.milli) if way.kind in ("shared", "mig") else way.milli
            if way.kind == "hami":
                milli = self._hami_share(asked, way)
            # No pod can be bound for more than there is; what says so is not believed.
            most = len(way.positions) * (WHOLE // milli if milli else 1)
            wanted += [(way, milli)] * min(count, most)
        if hold.is_part:
            whole = next((way for way in self._ways.values() if way.kind == "whole"), None)
            if whole is not None:
                milli = hold.fraction_milli
                if not milli:  # all of it, where KAI is not told what it has
                    total_mib = whole.kai_mib
                    share = -(-hold.fraction_mib * WHOLE // total_mib) if total_mib else WHOLE
                    milli = min(WHOLE, share)
                wanted += [(whole, milli)] * min(hold.fraction_devices, len(whole.positions))
        return wanted

    def _hami_share(self, asked: dict[str, int], way: Way) -> int:
        """As HAMi counts: MiB first, then a percentage; without either all memory is gone."""
        total_mib = self._gpus[way.positions[0]].memory_mib
        percent = min(asked.get(HAMI_MEMORY_PERCENT, 0), 100)
        mib = asked.get(HAMI_MEMORY, 0) or total_mib * percent // 100
        if not mib and not (percent and not total_mib):
            return WHOLE
        milli = self._hami_milli(asked.get(HAMI_CORES, 0), mib, way.positions[0])
        return milli if total_mib else max(milli, percent * 10)
