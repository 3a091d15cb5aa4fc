"""Quantities of objects as whole numbers, and the requests of a pod. Pure.

Offers are rounded down, requests up. An impossible offer (negative, not a number, above any
machine) is an error that names the quantity. An impossible request is a problem that names it, and
counts as the maximum of any machine.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from berthmaster.lib.accelerators.table import HAMI_MEMORY, TPU, pieces_of_whole
from berthmaster.lib.kube.quantity import QuantityError, parse_quantity
from berthmaster.worker.inventory.core.objects import Container, PodSpec, Quantities

CPU: Final = "cpu"
MEMORY: Final = "memory"
MIB: Final = 2**20
# No machine has more. Beyond them a figure is a mistake, and arithmetic elsewhere could overflow.
MAX_CPU_MILLI: Final = 10_000_000
MAX_MEMORY_MIB: Final = 2**30
MAX_DEVICES: Final = 10_000  # of one resource of a node, replicas included
MAX_TPUS: Final = 1024  # TPUs of pods on one node
MAX_PIECES: Final = 1_000_000  # of an unknown resource on one node
MAX_COUNT: Final = 2**53  # larger numbers are inexact in other languages


# Charge of a request that cannot be read.
_MOST: Final = {
    CPU: MAX_CPU_MILLI,
    MEMORY: MAX_MEMORY_MIB * MIB,
    TPU: MAX_TPUS,
    HAMI_MEMORY: MAX_MEMORY_MIB,
}


class Nonsense(ValueError):
    """An impossible quantity, named in the text."""


def offered(quantities: Quantities, name: str) -> int:
    """How much of a resource is offered: CPU in milli, memory in MiB, all else in pieces; 0 where
    it is not named. Raises Nonsense."""
    text = quantities.get(name)
    if text is None:
        return 0
    try:
        value = _units(name, text, up=False)
    except QuantityError as error:
        raise Nonsense(f"{name}: {error}") from None
    most = {CPU: MAX_CPU_MILLI, MEMORY: MAX_MEMORY_MIB}.get(
        name, MAX_DEVICES * pieces_of_whole(name)
    )
    if value > most:
        raise Nonsense(f"{name}: {str(text)[:64]!r} is more than any node has ({most})")
    return value


def quota(name: str, text: str | int, *, up: bool = False) -> int:
    """A figure of a quota, in the units above. Raises Nonsense."""
    try:
        return min(_units(name, text, up=up), MAX_COUNT)
    except QuantityError as error:
        raise Nonsense(f"{name}: {error}") from None


@lru_cache(maxsize=4096)
def _units(name: str, text: str | int, *, up: bool) -> int:
    """In the units of facts."""
    value = parse_quantity(text)
    if name == CPU:
        value *= 1000
    elif name == MEMORY:
        value /= MIB
    return -(-value.numerator // value.denominator) if up else int(value)


@lru_cache(maxsize=4096)
def _asked(name: str, text: str | int) -> int:
    """Return the request of one container: CPU in milli, else whole units (memory in bytes).
    Unreadable text gives the maximum of any machine.
    """
    try:
        value = parse_quantity(text) * (1000 if name == CPU else 1)
    except QuantityError:
        return _MOST.get(name, MAX_PIECES)
    return min(-(-value.numerator // value.denominator), MAX_COUNT)


def nonsense_of(named: Iterable[Quantities]) -> tuple[str, ...]:
    """Return the unreadable quantities, described."""
    found: dict[str, None] = {}
    for quantities in named:
        for name, text in quantities.items():
            try:
                parse_quantity(text)
            except QuantityError as error:
                found[f"{name[:80]}: {error}"] = None
    return tuple(found)


def quantities_of(spec: PodSpec) -> Iterator[Quantities]:
    """Yield all requests of a pod, part by part."""
    for container in (*spec.containers, *spec.init_containers):
        yield container.resources.asked
    yield spec.resources.asked
    yield spec.overhead


def held(spec: PodSpec) -> dict[str, int]:
    """Return a pod's requests as the scheduler counts: CPU in milli, memory in bytes, else units.

    Containers and sidecars together, or the peak during initialization if larger. Requests of the
    whole pod replace these, and overhead is added. Unreadable requests count as the maximum of any
    machine, and ``nonsense_of`` names them.
    """
    total = _sum(container.resources.asked for container in spec.containers)
    if spec.init_containers:
        total = _with_starting(total, spec.init_containers)
    for name, text in spec.resources.asked.items():
        total[name] = _asked(name, text)
    for name, text in spec.overhead.items():
        total[name] = total.get(name, 0) + _asked(name, text)
    return total


def _sum(many: Iterable[Quantities]) -> dict[str, int]:
    total: dict[str, int] = {}
    for requests in many:
        for name, text in requests.items():
            total[name] = total.get(name, 0) + _asked(name, text)
    return total


def _with_starting(running: Mapping[str, int], starting: Iterable[Container]) -> dict[str, int]:
    """Return the peak: init containers run one after another, each beside the sidecars started
    before.
    """
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in starting:
        asked = {n: _asked(n, text) for n, text in container.resources.asked.items()}
        if container.restart_policy == "Always":
            for name, amount in asked.items():
                sidecars[name] = sidecars.get(name, 0) + amount
            asked = sidecars
        else:
            asked = {n: amount + sidecars.get(n, 0) for n, amount in asked.items()}
        for name, amount in asked.items():
            peak[name] = max(peak.get(name, 0), amount)
    names = {**running, **sidecars, **peak}
    return {
        name: max(running.get(name, 0) + sidecars.get(name, 0), peak.get(name, 0)) for name in names
    }
