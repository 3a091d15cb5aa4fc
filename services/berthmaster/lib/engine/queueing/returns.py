"""Capacity that attempts return to a node before a reservation begins.

A reservation and the attempts before it never use a node at the same time. A job beside both gets
the capacity left at the time of the highest usage, not the rest of the sum.

Example: 0.6 of a GPU is used until 10:00, when a reservation of 0.6 begins. The attempt returns
0.6, so the reservation adds nothing to present usage, and another job may have 0.4.

Rules of this file:

- Two reservations never count on the same returned capacity.
- A reservation with a time counts on ends stated before. If these are too few, or without a time,
  it counts on as few further attempts as necessary, by stated end, then by age. A preemptor's
  reservation counts on the victims.
- A MIG slice or a replica is one unit of its extended resource. A reservation holds that unit and
  no GPU, because slices of other profiles remain for others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.engine.fleet.fleet import WHOLE, Holding
from berthmaster.lib.engine.fleet.pieces import foreign_pieces, pieces_on
from berthmaster.lib.engine.fleet.shares import Part, counted, enough, sized_milli, takes_milli
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.fleet import GpuDevice, NodeReport

# A resource and, of GPUs, the index: so much of it in milli, MiB or pieces.
Amounts = dict[tuple[str, int], int]

_CPU: Final = ("cpu", -1)
_MEMORY: Final = ("memory", -1)
_GPU: Final = "gpu"
_NO_INDEX: Final = -1


class Holder(NamedTuple):
    """An attempt on a node."""

    key: Key
    end_s: float  # stated end, past ends included; infinity = not stated
    began_s: float
    leaving: bool  # told to make room
    holdings: tuple[Holding, ...]  # on this node


class Reserved(NamedTuple):
    """Capacity of a reservation on a node."""

    begins_s: float | None  # None = unknown
    owed: bool
    holdings: tuple[Holding, ...]  # on this node


class _Need(NamedTuple):
    amounts: Amounts
    slices: Amounts  # of GPUs, charged for slices and replicas: see the rules above


def returned(
    report: NodeReport, reserved: Sequence[Reserved], holders: Iterable[Holder], now_s: float
) -> list[Holding]:
    """Return the part of the reservations' charges on a node that need not be free now.

    ``reserved``: charged reservations in order of their begin.
    """
    ordered = sorted(holders, key=lambda each: (each.end_s, each.began_s, each.key))
    has = {each.key: _need(report, each.holdings).amounts for each in ordered}
    free = _capacity(report)
    for amounts in has.values():
        _add(free, amounts, -1)
    credited: Amounts = {}
    total: Amounts = {}
    for each in reserved:
        need = _need(report, each.holdings)
        gone = _gone(each, need.amounts, free, ordered, has, now_s)
        freed: Amounts = {}
        for key in gone:
            _add(freed, has[key], +1)
        back = {
            name: min(amount, freed.get(name, 0) - credited.get(name, 0))
            for name, amount in need.amounts.items()
        }
        back = {name: amount for name, amount in back.items() if amount > 0}
        _add(credited, back, +1)
        _add(total, back, +1)
        _add(total, need.slices, +1)
        _add(free, need.amounts, -1)  # for later reservations
    return _as_holdings(report, total)


def next_end_s(holders: Iterable[Holder], now_s: float) -> float:
    """Return the next stated end; infinity without one."""
    return min((each.end_s for each in holders if each.end_s > now_s), default=float("inf"))


def _gone(
    reserved: Reserved,
    need: Amounts,
    free: Amounts,
    ordered: Sequence[Holder],
    has: dict[Key, Amounts],
    now_s: float,
) -> list[Key]:
    """Return the attempts that the reservation counts on."""
    if reserved.owed:
        return [each.key for each in ordered if each.leaving]
    until_s = reserved.begins_s
    gone = [each.key for each in ordered if until_s is not None and now_s < each.end_s <= until_s]
    free = dict(free)
    for key in gone:
        _add(free, has[key], +1)
    more = []
    for each in ordered:
        if _fits(need, free):
            break
        if each.key not in gone:
            more.append(each.key)
            _add(free, has[each.key], +1)
    for key in list(more):
        _add(free, has[key], -1)
        if _fits(need, free):
            more.remove(key)
        else:
            _add(free, has[key], +1)
    return gone + more


def _fits(need: Amounts, free: Amounts) -> bool:
    return all(free.get(name, 0) >= amount for name, amount in need.items())


def _add(total: Amounts, amounts: Amounts, sign: int) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + sign * amount


def _capacity(report: NodeReport) -> Amounts:
    allocatable, foreign = report.allocatable, report.foreign
    found = {
        _CPU: allocatable.cpu_milli - foreign.cpu_milli,
        _MEMORY: allocatable.memory_mib - foreign.memory_mib,
    }
    for gpu in report.gpus:
        found[_GPU, gpu.index] = WHOLE - gpu.foreign_milli if gpu.healthy else 0
    for name, number in pieces_on(report):
        found[name, _NO_INDEX] = number - foreign_pieces(report, name)
    for share in report.shares:
        if counted(share):
            found[share.resource, _NO_INDEX] = share.count
    return found


def _need(report: NodeReport, holdings: Iterable[Holding]) -> _Need:
    """Return the charge of holdings on a node, as ``Fleet`` computes."""
    memories = {gpu.index: gpu.memory_mib for gpu in report.gpus}
    amounts: Amounts = {}
    slices: Amounts = {}
    for held in holdings:
        _add(amounts, {_CPU: held.cpu_milli, _MEMORY: held.memory_mib}, +1)
        _add(amounts, {(name, _NO_INDEX): number for name, number in held.pieces}, +1)
        for gpu in held.gpus:
            _charge(report, held, gpu, memories.get(gpu, 0), amounts, slices)
    return _Need({name: amount for name, amount in amounts.items() if amount}, slices)


def _charge(
    report: NodeReport,
    held: Holding,
    gpu: int,
    memory_mib: int,
    amounts: Amounts,
    slices: Amounts,
) -> None:
    on_gpu = _GPU, gpu
    if held.gpu_milli >= WHOLE:
        _add(amounts, {on_gpu: held.gpu_milli}, +1)
        return
    part = Part(held.gpu_milli, held.gpu_memory_mib, held.mig_profile, held.isolation)
    if not report.shares:
        _add(amounts, {on_gpu: sized_milli(part, memory_mib)}, +1)
        return
    share = enough(report.shares, part)
    if share is None:
        _add(amounts, {on_gpu: part.milli}, +1)
        return
    milli = takes_milli(share, part, memory_mib)
    if counted(share):
        _add(amounts, {(share.resource, _NO_INDEX): 1}, +1)
    # Devices named by a claim may overlap on a GPU, so they need its capacity too.
    is_piece = counted(share) and share.claim is None
    _add(slices if is_piece else amounts, {on_gpu: milli}, +1)


def _as_holdings(report: NodeReport, amounts: Amounts) -> list[Holding]:
    """Return quantities as holdings to charge on the fleet."""
    place = report.cluster, report.node
    amounts = {name: amount for name, amount in amounts.items() if amount}
    by_milli: dict[int, list[int]] = {}
    for (name, index), amount in sorted(amounts.items()):
        if name == _GPU and index != _NO_INDEX:
            by_milli.setdefault(amount, []).append(index)
    pieces = tuple(
        (name, amount)
        for (name, index), amount in sorted(amounts.items())
        if index == _NO_INDEX and (name, index) not in (_CPU, _MEMORY)
    )
    cpu_milli, memory_mib = amounts.get(_CPU, 0), amounts.get(_MEMORY, 0)
    found = []
    if cpu_milli or memory_mib or pieces:
        found.append(Holding(*place, cpu_milli, memory_mib, WHOLE, (), pieces=pieces))
    for milli, gpus in sorted(by_milli.items()):
        found.append(Holding(*place, 0, 0, milli, tuple(gpus), as_charged=True))
    return found


def reseated(
    report: NodeReport,
    holdings: Sequence[Holding],
    free_milli: Mapping[int, int],
    gone: Iterable[Holding],
) -> list[Holding]:
    """Return a reservation's holdings on one node, moved from free GPUs to GPUs that attempts will
    free, so that others can use the free GPUs now.

    Only whole GPUs move, and only between equal GPUs. ``free_milli``: free milli by GPU index.
    ``gone``: holdings of the attempts before the reservation.
    """
    freed = _need(report, gone).amounts
    kinds = {gpu.index: _kind(gpu) for gpu in report.gpus}
    used = {gpu for held in holdings for gpu in held.gpus}
    found = []
    for held in holdings:
        gpus = list(held.gpus)
        for number, gpu in enumerate(gpus if held.gpu_milli == WHOLE else ()):
            if free_milli.get(gpu, 0) < WHOLE:
                continue
            for other, kind in kinds.items():
                now = free_milli.get(other, 0)
                later = now + freed.get((_GPU, other), 0)
                if kind == kinds[gpu] and other not in used and now < WHOLE <= later:
                    used.remove(gpu)
                    used.add(other)
                    gpus[number] = other
                    break
        found.append(held._replace(gpus=tuple(sorted(gpus))))
    return found


def _kind(gpu: GpuDevice) -> tuple[str, int, str, int | None, int | None]:
    """Return a key, equal for GPUs that are interchangeable as whole GPUs."""
    return gpu.model, gpu.memory_mib, gpu.resource, gpu.nvlink_domain, gpu.numa_node
