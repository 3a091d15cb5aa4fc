"""When a job that does not fit now will, and on which nodes: what a reservation is made of.

What runs in a cluster is taken away in the order in which it ends, as far as that is known, then in
the order in which it began, until the job fits; then all is put back (fleet/overlay.py). Room is
kept node by node, as holdings that others find charged. A job may use it if it ends before it is
needed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from berthmaster.lib.engine.fleet.fleet import Fleet, Holding
from berthmaster.lib.engine.fleet.overlay import Overlay
from berthmaster.lib.engine.fleet.pieces import Pieces
from berthmaster.lib.lifecycle.run_times import ends_as_told_s, saved_s
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import HeldNode, HeldPieces, Reservation

MAX_HELD_NODES: Final = 3000  # of all reservations: they are told in one message

T = TypeVar("T")
MOST_ENDINGS: Final = 4096  # of a cluster, after which a job begins for which room is kept
UNKNOWN_S: Final = float("inf")


class Release(NamedTuple):
    """A live placement, and when its room is expected to be free. In order of expectation."""

    at_s: float  # UNKNOWN_S where nobody can say
    began_s: float
    key: Key
    gpu_milli: int
    holdings: tuple[Holding, ...]


def stated_end_s(workload: Workload, now_s: float) -> float | None:
    """When a placement ends as far as its job said, when it ran or when it was submitted; None if
    it did not, or should have by now."""
    return min((at_s for at_s in _stated_ends_s(workload, now_s) if at_s > now_s), default=None)


def first_stated_end_s(workload: Workload) -> float | None:
    """Return the first end that a live placement's job stated, also one that has passed; None if it
    stated none. As long as no event comes the result stays the same."""
    return min(_stated_ends_s(workload, -UNKNOWN_S), default=None)


def _stated_ends_s(workload: Workload, now_s: float) -> Iterator[float]:
    """By the job's own progress, as long as that end is to come; else by its duration. And by its
    deadline."""
    request = workload.request
    if request is None or not workload.live:
        return
    told_s = ends_as_told_s(workload)
    if told_s is not None and told_s > now_s:
        yield told_s
    elif request.expected_duration_s is not None:
        began_s = workload.running_at_s or workload.claimed_at_s or workload.placed_at_s
        yield began_s + request.expected_duration_s - saved_s(workload)
    if request.deadline_s is not None:
        yield (workload.claimed_at_s or workload.placed_at_s) + request.deadline_s


def least_releases(releases: Sequence[Release], lacking_milli: int) -> int | None:
    """A bound: at least so many must end for so many GPU milli to become free; None: all would not
    be enough."""
    for number, release in enumerate(releases):
        if lacking_milli <= 0:
            return number
        lacking_milli -= release.gpu_milli
    return len(releases) if lacking_milli <= 0 else None


def soonest(
    fleet: Fleet, releases: Sequence[Release], at_least: int, fits: Callable[[], T | None]
) -> tuple[T, float, int] | None:
    """With as few endings as do: the places, the time of the last of them, and how many they are;
    None if it does not fit after ``MOST_ENDINGS``. ``releases`` are sorted; the fleet is left as it
    was.

    The more has ended the better it fits, so the number is found by doubling what has ended, then
    by halving. Example: eight live placements end at 10, 20, … 80 s, and the job fits once the
    first five are gone. Tried are one, two, four (does not), eight (fits), six (fits) and five
    (fits): it is 50 s.
    """
    gone = 0

    def end_first(number: int) -> None:
        """As if so many had ended."""
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


def held_nodes(holdings: Sequence[Holding]) -> tuple[HeldNode, ...]:
    nodes: dict[tuple[str, int, int, str, str], list[Holding]] = {}
    for held in holdings:
        like = (held.node, held.gpu_milli, held.gpu_memory_mib, held.mig_profile, held.isolation)
        nodes.setdefault(like, []).append(held)
    out = []
    for _, group in sorted(nodes.items()):
        gpus = [gpu for held in group for gpu in held.gpus]
        if len(set(gpus)) < len(gpus):  # parts of the same GPU: each is kept by itself
            out += [_held_node([held]) for held in group]
        else:
            out.append(_held_node(group))
    return tuple(out)


def owed_room(
    tenant: str,
    workload_id: str,
    cluster: str,
    holdings: Sequence[Holding],
    *,
    moving: bool = False,
) -> Reservation:
    """Room that is kept for one workload alone, until it begins there. ``moving``: it is on its way
    there from another place."""
    return Reservation(
        tenant=tenant,
        id=workload_id,
        cluster=cluster,
        held=held_nodes(holdings),
        owed=True,
        moving=moving,
    )


def _held_node(group: list[Holding]) -> HeldNode:
    """Of holdings that differ in amounts of CPU and memory and in their GPUs at most."""
    return HeldNode(
        node=group[0].node,
        cpu_milli=sum(held.cpu_milli for held in group),
        memory_mib=sum(held.memory_mib for held in group),
        gpu_milli=group[0].gpu_milli,
        gpus=tuple(sorted(gpu for held in group for gpu in held.gpus)),
        gpu_memory_mib=group[0].gpu_memory_mib,
        mig_profile=group[0].mig_profile,
        pieces=_together(held.pieces for held in group),
        isolation=group[0].isolation,
    )


def _together(many: Iterable[Pieces]) -> tuple[HeldPieces, ...]:
    total: dict[str, int] = {}
    for pieces in many:
        for name, number in pieces:
            total[name] = total.get(name, 0) + number
    return tuple(HeldPieces(resource=name, number=n) for name, n in sorted(total.items()))


def holdings_of(reservation: Reservation) -> tuple[Holding, ...]:
    """A reservation's room, as the fleet is charged with it."""
    return tuple(
        Holding(
            reservation.cluster,
            held.node,
            held.cpu_milli,
            held.memory_mib,
            held.gpu_milli,
            held.gpus,
            held.gpu_memory_mib,
            held.mig_profile,
            tuple((one.resource, one.number) for one in held.pieces),
            held.isolation,
        )
        for held in reservation.held
    )


def ends_in_time(
    reservation: Reservation, now_s: float, lasts_s: float | None, share: float
) -> bool:
    """Whether a job that begins now leaves the room before it is needed, or such a share of its
    time is over by then."""
    at_s = reservation.expected_at_s
    return at_s is not None and lasts_s is not None and now_s + share * lasts_s <= at_s
