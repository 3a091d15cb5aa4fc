"""The GPUs of a node that its pods hold. Pure.

Known GPUs are charged as known: from a claim, HAMi's annotation or Berthmaster's own. If only a
number is known, managed pods get the first free GPUs and unmanaged pods the last, so that both meet
as late as possible and charges stay stable. Pods of a KAI group share the group's GPU. Example: on
8 free GPUs a managed pod with 2 GPUs is charged 0 and 1, and an unmanaged pod with 1 GPU is charged
7.

An unknown device, such as a UUID in no list, counts as a whole GPU, the maximum, and is reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from berthmaster.lib.accelerators.table import (
    HAMI_CORES,
    HAMI_MEMORY,
    HAMI_MEMORY_PERCENT,
    TPU,
    How,
    how_of,
)
from berthmaster.lib.accelerators.written import ALLOCATED
from berthmaster.lib.engine.fleet.shares import piece_milli
from berthmaster.lib.kube.labels import Identity
from berthmaster.lib.messages.fleet import PodUse
from berthmaster.worker.inventory.core.devices.holds import Hold
from berthmaster.worker.inventory.core.devices.layout import WHOLE, Gpu, Way, indices_of

MIB_BYTES = 2**20
Part = tuple[int, int]  # position of a GPU, milli


class Want(NamedTuple):
    """One GPU or fraction whose position must be guessed."""

    way: Way
    milli: int
    group: str = ""  # KAI group, if any


class Claimed(NamedTuple):
    parts: Mapping[str, list[Part]] = {}  # by uid of a pod
    orphaned: tuple[Part, ...] = ()  # charges without a pod of this node
    unknown: Mapping[
        str, int
    ] = {}  # by uid of a pod: GPUs that the node does not list; "" = none's
    foreign_tpus: int = 0  # of unmanaged pods
    problems: tuple[str, ...] = ()


class Charged(NamedTuple):
    """Charges by holder."""

    foreign_milli: tuple[int, ...]  # of each GPU
    foreign_cpu_milli: int
    foreign_memory_mib: int
    foreign_tpus: int
    foreign_pieces: Mapping[str, int]  # of other resources than GPUs and TPUs
    pods: tuple[PodUse, ...]
    problems: tuple[str, ...] = ()  # quantities counted as their maximum


def charge(
    gpus: Sequence[Gpu], ways: Sequence[Way], holds: Sequence[Hold], claimed: Claimed
) -> Charged:
    """Return the GPUs of a node held by pods and claims."""
    charges = _Charges(gpus, ways, claimed)
    for position, milli in claimed.orphaned:
        charges.foreign[position] += milli
    # Only if members can be charged; otherwise they hold their keeper's request.
    sharers = {
        group for hold in holds if hold.is_part and charges.shared_by_kai for group in hold.groups
    }
    holds = [
        # Members are charged for the GPU, the keeper only for its CPU and memory.
        hold._replace(pieces=()) if hold.keeper and sharers.intersection(hold.groups) else hold
        for hold in holds
    ]
    others = [hold for hold in holds if hold.ours is None]
    for hold in holds:  # known positions first, then guesses around them
        charges.settle(hold)
    pods = tuple(charges.use(hold.ours, hold) for hold in holds if hold.ours is not None)
    for hold in others:
        charges.guess(hold)
    charges.guess_orphans(claimed.unknown.get("", 0))
    tpus = sum(n for hold in others for name, n in hold.pieces if name == TPU)
    return Charged(
        tuple(charges.foreign),
        sum(hold.cpu_milli for hold in others),
        sum(-(-hold.memory_bytes // MIB_BYTES) for hold in others),
        tpus + claimed.foreign_tpus,
        charges.others(others),
        pods,
        (*claimed.problems, *charges.problems),
    )


class _Charges:
    """Free capacity of each GPU while pods are charged."""

    def __init__(self, gpus: Sequence[Gpu], ways: Sequence[Way], claimed: Claimed) -> None:
        self._gpus = gpus
        self._ways = {way.resource: way for way in ways}
        self._any = Way("", tuple(range(len(gpus))), WHOLE)
        self._by_hami = next((way for way in ways if way.kind == "hami"), None)
        self.shared_by_kai = next((way for way in ways if way.kind == "whole"), None)
        self._claimed = claimed
        self._least = {at: way.least_milli for way in ways for at in way.positions}
        self._uuids = {gpu.uuid: position for position, gpu in enumerate(gpus) if gpu.uuid}
        self._indices = indices_of(gpus)
        self._at = {index: position for position, index in enumerate(self._indices)}
        self.foreign = [0] * len(gpus)
        self._ours = [0] * len(gpus)
        self._settled: dict[str, list[Part]] = {}  # by uid: known positions
        self._left: dict[str, list[Want]] = {}  # by uid: positions to guess
        self._of_group: dict[str, int] = {}  # KAI's groups: the GPU of each
        self.problems: list[str] = []

    def _free(self, position: int) -> int:
        reserved = self._gpus[position].reserved_milli
        return WHOLE - reserved - self.foreign[position] - self._ours[position]

    def settle(self, hold: Hold) -> None:
        known, left = self._known(hold)
        left += [Want(self._any, WHOLE)] * self._claimed.unknown.get(hold.uid, 0)
        parts = [*self._claimed.parts.get(hold.uid, ()), *known]
        self._settled[hold.uid], self._left[hold.uid] = parts, left
        held = self._ours if hold.ours is not None else self.foreign
        for position, milli in parts:
            held[position] += milli

    def _known(self, hold: Hold) -> tuple[list[Part], list[Want]]:
        """Return known parts of a pod, and parts to guess."""
        if hold.hami and self._by_hami is not None:
            return self._listed_by_hami(hold, self._by_hami)
        wanted = self._wanted(hold)
        places = [self._at.get(index, -1) for index in hold.gpus]
        if len(places) != len(wanted) or any(
            at not in want.way.positions for at, want in zip(places, wanted, strict=True)
        ):
            return [], wanted
        known = list(zip(places, wanted, strict=True))
        self._of_group |= {want.group: at for at, want in known if want.group}
        return [(at, want.milli) for at, want in known], []

    def _listed_by_hami(self, hold: Hold, way: Way) -> tuple[list[Part], list[Want]]:
        known: list[Part] = []
        left: list[Want] = []
        for use in hold.hami:
            at = self._uuids.get(use.uuid)
            if at is not None:
                known.append((at, self._hami_milli(use.cores_percent, use.memory_mib, at)))
                continue
            left.append(Want(way, WHOLE))
            if use.uuid:
                self.problems.append(
                    f"annotation {ALLOCATED}: {use.uuid[:64]!r} is no GPU of this node and counts "
                    "as a whole one"
                )
        return known, left[: len(way.positions)]

    def _hami_milli(self, cores_percent: int, memory_mib: int, position: int) -> int:
        """Return the milli lost for others: the larger of compute and memory, and at least the
        minimum of a limited number of pods. The whole GPU if its memory is unknown.
        """
        total_mib = self._gpus[position].memory_mib
        if memory_mib and not total_mib:
            return WHOLE
        by_memory = -(-memory_mib * WHOLE // total_mib) if total_mib else 0
        milli = min(WHOLE, max(cores_percent * 10, by_memory)) or WHOLE
        return max(milli, self._least.get(position, 0))

    def use(self, who: Identity, hold: Hold) -> PodUse:
        """Return a managed pod as reported."""
        parts = self._settled[hold.uid]
        parts = parts + self._place(self._left[hold.uid], parts, self._ours, first=True)
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
        """Return the units of unknown resources held by pods."""
        total: dict[str, int] = {}
        for hold in holds:
            for name, count in hold.pieces:
                if how_of(name) is How.OTHER and name not in self._ways:
                    total[name] = total.get(name, 0) + count
        return total

    def guess(self, hold: Hold) -> None:
        """Charge the unknown positions of an unmanaged pod to the last GPUs."""
        self._place(self._left[hold.uid], self._settled[hold.uid], self.foreign, first=False)

    def guess_orphans(self, count: int) -> None:
        """Charge GPUs of claims without a local pod, whose devices the node does not list."""
        wanted = [Want(self._any, WHOLE)] * min(count, len(self._gpus))
        self._place(wanted, (), self.foreign, first=False)

    def _place(
        self, wanted: Sequence[Want], known: Iterable[Part], held: list[int], *, first: bool
    ) -> list[Part]:
        parts: list[Part] = []
        taken = {position for position, _ in known} if wanted else set()
        for want in wanted:
            position = self._of_group.get(want.group)
            if position is None:
                # Each group has a GPU of its own, and two whole GPUs are two, as far as there are
                # so many.
                others = set(self._of_group.values()) if want.group else taken
                milli = WHOLE if want.group else want.milli
                position = self._choose(want.way, milli, others, first=first)
            if position is None:
                position = self._choose(want.way, want.milli, set(), first=first)
            if position is None:
                continue
            if want.group:
                self._of_group[want.group] = position
            if want.way.kind != "shared" and want.way.kind != "mig":
                taken.add(position)
            held[position] += want.milli
            parts.append((position, want.milli))
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
        if roomy:
            return (healthy or roomy)[0]
        return max(order, key=self._free)  # the likeliest of the too small ones

    def _wanted(self, hold: Hold) -> list[Want]:
        """Return an entry for each requested GPU or fraction."""
        asked = dict(hold.pieces)
        wanted: list[Want] = []
        for name, count in hold.pieces:
            way = self._ways.get(name)
            if way is None:
                continue
            milli = piece_milli(way.milli) if way.kind in ("shared", "mig") else way.milli
            if way.kind == "hami":
                milli = self._hami_share(asked, way)
            # No pod can be bound for more than there is; what says so is not believed.
            most = len(way.positions) * (WHOLE // milli if milli else 1)
            count = min(count, most)
            if way.kind == "milli":  # a fraction of one GPU, or several whole GPUs
                gpus, milli = divmod(count, WHOLE)
                wanted += [Want(way, WHOLE)] * gpus + ([Want(way, milli)] if milli else [])
                continue
            wanted += [Want(way, milli)] * count
        if hold.is_part and (whole := self.shared_by_kai) is not None:
            milli = hold.fraction_milli
            if hold.fraction_mib:  # the whole GPU, if KAI does not know its memory
                total_mib = whole.kai_mib
                share = -(-hold.fraction_mib * WHOLE // total_mib) if total_mib else WHOLE
                milli = max(milli, min(WHOLE, share))
            count = min(hold.fraction_devices, len(whole.positions))
            groups = (*hold.groups, *[""] * count)[:count]
            wanted += [Want(whole, milli, group) for group in groups]
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
