"""The times at which running attempts release nodes, and the use of reserved nodes until then.

``soonest`` removes live placements in order of their ends, as far as known, then by start, until a
job fits. ``returned_to`` returns the capacity of reserved nodes that other jobs may use beside
present attempts.

Example: an attempt has 0.6 of a GPU, and a pending job has a reservation of 0.6 of the same GPU. A
third job may have 0.4: see lib/engine/queueing/returns.py.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.engine.fleet.fleet import Fleet, Holding, Overlay
from berthmaster.lib.engine.queueing.returns import Holder, Reserved, next_end_s, reseated, returned
from berthmaster.lib.lifecycle.workload import Key, first_stated_end_s
from berthmaster.lib.messages.placement import Reservation

MOST_ENDINGS: Final = 4096  # ends in a cluster before a job with a reservation starts
UNKNOWN_S: Final = float("inf")
# For all reservations of a draft: each node takes tens of microseconds. On further nodes, others
# leave alone the sum of present and future usage.
MOST_NODES: Final = 256

T = TypeVar("T")
_Node = tuple[str, str]  # cluster, node


class Release(NamedTuple):
    """A live placement, and when its capacity is expected to be free. The smallest goes first."""

    at_s: float  # UNKNOWN_S without a known end
    began_s: float
    key: Key
    gpu_milli: int
    holdings: tuple[Holding, ...]


def least_releases(releases: Sequence[Release], lacking_milli: int) -> int | None:
    """Return a lower bound of the number of ends that free this many GPU milli; None if all are too
    few.
    """
    for number, release in enumerate(releases):
        if lacking_milli <= 0:
            return number
        lacking_milli -= release.gpu_milli
    return len(releases) if lacking_milli <= 0 else None


def soonest(
    fleet: Fleet, releases: Sequence[Release], at_least: int, fits: Callable[[], T | None]
) -> tuple[T, float, int] | None:
    """Return where a job fits after as few endings as possible, the time of the last of them and
    their number; None if it does not fit after ``MOST_ENDINGS``. ``releases`` are sorted. The fleet
    is left as it was.

    Each ending only helps, so the number is found by doubling, then by halving. Example: eight live
    placements end at 10, 20, … 80 s, and the job fits once the first five are gone. Tried are one,
    two, four (does not fit), eight (fits), six (fits) and five (fits): the time is 50 s.
    """
    gone = 0

    def end_first(number: int) -> None:
        """Make the fleet look as if so many had ended."""
        nonlocal gone
        for at in range(gone, number):
            overlay.free(at, releases[at].holdings)
        for at in range(number, gone):
            overlay.give_back(at)
        gone = number

    most = min(len(releases), max(at_least, MOST_ENDINGS))
    with Overlay(fleet) as overlay:
        low, high = at_least - 1, at_least
        end_first(high)
        found = fits()
        while found is None:
            if high >= most:
                return None
            low, high = high, min(most, max(1, 2 * high))
            end_first(high)
            found = fits()
        while high - low > 1:
            middle = (low + high) // 2
            end_first(middle)
            bound = fits()
            if bound is None:
                low = middle
            else:
                found, high = bound, middle
    return found, releases[high - 1].at_s if high else UNKNOWN_S, high


class Awaiting(NamedTuple):
    """A charged reservation, and its holdings."""

    key: Key
    reservation: Reservation
    holdings: tuple[Holding, ...]


def returned_to(know: Knowledge, kept: Sequence[Awaiting], now_s: float) -> list[Holding]:
    """Return the part of the reservations' charges that others may use beside present attempts."""
    nodes: dict[_Node, list[tuple[Awaiting, list[Holding]]]] = {}
    for each in sorted(kept, key=_begins):
        for place, held in _by_node(each.holdings).items():
            if place in nodes or len(nodes) < MOST_NODES:
                nodes.setdefault(place, []).append((each, held))
    found: list[Holding] = []
    for (cluster, node), here in nodes.items():
        report = know.fleet.node(cluster, node)
        if report is None:
            continue
        holders = _holders(know, cluster, node)
        reserved = [
            Reserved(each.reservation.expected_at_s, each.reservation.owed, tuple(holdings))
            for each, holdings in here
        ]
        found += returned(report, reserved, holders, now_s)
        know.derived.ends_until_s = min(know.derived.ends_until_s, next_end_s(holders, now_s))
    return found


def ends_version(know: Knowledge, reservation: Reservation) -> int:
    """Return a number that is another whenever others may have more room beside a reservation than
    before, unless ``derived.growth`` is another, too."""
    changes = (know.fleet.changes_of(reservation.cluster, held.node) for held in reservation.held)
    return know.derived.ends_told + sum(changes)


def reseat(fleet: Fleet, holdings: Sequence[Holding], gone: Sequence[Release]) -> list[Holding]:
    """Return a reservation's holdings moved from free GPUs to GPUs that earlier
    attempts will free.
    """
    freed: dict[_Node, list[Holding]] = {}
    for release in gone:
        for node, held in _by_node(release.holdings).items():
            freed.setdefault(node, []).extend(held)
    found: list[Holding] = []
    for node, held in _by_node(holdings).items():
        report, slot = fleet.node(*node), fleet.slot(*node)
        if report is None or slot is None:
            found += held
            continue
        row = fleet.arrays.gpu[slot].tolist()
        free_milli = {gpu.index: row[position] for position, gpu in enumerate(report.gpus)}
        found += reseated(report, held, free_milli, freed.get(node, ()))
    return found


def _begins(each: Awaiting) -> tuple[bool, float, Key]:
    at_s = each.reservation.expected_at_s
    return not each.reservation.owed, UNKNOWN_S if at_s is None else at_s, each.key


def _holders(know: Knowledge, cluster: str, node: str) -> list[Holder]:
    found = []
    for key in know.fleet.holders(cluster, node):
        workload = know.open.get(key)
        if workload is None or key in know.frozen:
            end_s, began_s, leaving = UNKNOWN_S, UNKNOWN_S, False
        else:
            stated_s = first_stated_end_s(workload)
            end_s = UNKNOWN_S if stated_s is None else stated_s
            began_s, leaving = workload.placed_at_s, bool(workload.leaving)
        here = tuple(h for h in know.fleet.holdings(key) if h[:2] == (cluster, node))
        found.append(Holder(key, end_s, began_s, leaving, here))
    return found


def _by_node(holdings: Iterable[Holding]) -> dict[_Node, list[Holding]]:
    nodes: dict[_Node, list[Holding]] = {}
    for held in holdings:
        nodes.setdefault(held[:2], []).append(held)
    return nodes
