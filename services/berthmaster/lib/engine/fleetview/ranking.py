"""The clusters that could take a request, best first.

What a score is made of is engine/scoring/parts', which parts count is weighting.py's; this puts
them together for one request, and works out the parts that depend on more of it than its kind.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleetview.gate import Gate
from berthmaster.lib.engine.fleetview.snapshot import ClusterSnapshot
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.engine.fleetview.weighting import Weighting, counted
from berthmaster.lib.engine.scoring.parts import headroom as headroom_part
from berthmaster.lib.engine.scoring.parts import locality as locality_part
from berthmaster.lib.engine.scoring.parts import price as price_part
from berthmaster.lib.engine.scoring.parts import tier as tier_part
from berthmaster.lib.engine.scoring.parts import wait as wait_part
from berthmaster.lib.engine.scoring.parts.values import UNKNOWN, Floats, told
from berthmaster.lib.engine.scoring.ranking import (
    NO_ROOM,
    Field,
    Ranked,
    SetFit,
    fit_of,
    in_order,
    ranked,
    shown,
    to_show,
    weighed,
)
from berthmaster.lib.engine.scoring.score_cache import Scorecard
from berthmaster.lib.messages.workload import JobRequest

NO_MILLI: Final = np.array(0, np.int64)


class Candidate(NamedTuple):
    """A cluster that could take the request."""

    score: float
    cluster: str
    number: int  # among the fleet's clusters
    slot: int  # the node for a single pod; -1 for a gang, and where the cluster chooses


class Candidates(Sequence[Candidate]):
    """The clusters that could take a request, best first, written out as far as they are asked for:
    of a hundred, a decision looks at a few."""

    def __init__(
        self,
        clusters: list[str],
        found: Ranked,
        slots: NDArray[np.int64] | None,
        weighting: Weighting,
        parts: tuple[str, ...],
        late: tuple[tuple[str, Floats], ...],
    ) -> None:
        self.clusters = clusters
        self.order = found.order  # numbers of clusters
        self.found = found
        self.weighting = weighting
        self._parts = parts  # that are beside the score
        self._late = late  # parts of [C]
        self._slots = slots

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> list[Candidate]: ...
    def __getitem__(self, at: int | slice) -> Candidate | list[Candidate]:
        if isinstance(at, slice):
            return [self._candidate(number) for number in self.order[at]]
        return self._candidate(self.order[at])

    def __iter__(self) -> Iterator[Candidate]:
        return map(self._candidate, self.order)

    def only(self, cluster: str) -> "Candidates":
        """This one, if it is among them."""
        order = [number for number in self.order if self.clusters[number] == cluster]
        found = self.found._replace(order=order)
        return Candidates(
            self.clusters, found, self._slots, self.weighting, self._parts, self._late
        )

    def clear(self) -> None:
        """None of them could, after all."""
        self.order.clear()

    def shown(self, numbers: list[int]) -> list[tuple[float, dict[str, float]]]:
        """Scores of some clusters, and what they are made of, as records have them."""
        found = shown(self.found.values, self._parts, self.weighting.fixed, numbers)
        for name, values in self._late:
            for number, (_, parts) in zip(numbers, found, strict=True):
                parts[name] = to_show(told(values.item(number)))
        return found

    def _candidate(self, number: int) -> Candidate:
        return Candidate(
            self.found.values.item(0, number),
            self.clusters[number],
            number,
            self._slots.item(number) if self._slots is not None else -1,
        )


class Asking(NamedTuple):
    """What the parts that depend on the request are worked out of."""

    view: FleetView
    snapshot: ClusterSnapshot
    request: JobRequest
    gate: Gate
    cards: list[Scorecard]


def rank(asking: Asking, weighting: Weighting, may: NDArray[np.bool_]) -> Candidates:
    """Clusters that could take the request, best first. Parts that do not count are not made.
    ``may``: those that can take it as far as is known without a card, or a gang's bound."""
    request, cards = asking.request, asking.cards
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    needs_node = single and not asking.gate.is_tiered  # where it would not have to wait
    fleet = asking.view.fleet
    free_milli = _of_all(asking, fleet.arrays.free_milli, NO_MILLI)
    all_milli = _of_all(asking, fleet.arrays.all_milli, NO_MILLI)
    field = Field(free_milli, all_milli, weighting.total, weighting.room, weighting.fit)
    sets = [SetFit(_of_all(asking, card.best, NO_ROOM), *card.costs) for card in cards]
    late: tuple[tuple[str, Floats], ...] = ()
    if not weighting.late:
        found = ranked(field, sets, may, single=needs_node)
    else:
        able = may & (sets[0].best > NO_ROOM) if needs_node else may
        late = tuple((name, _LATE[name](asking, able)) for name, _ in weighting.late)
        values = weighed(field, fit_of(sets) if weighting.fit else None)
        for (_, part), (_, factor) in zip(late, weighting.late, strict=True):
            values[0] += counted(part, factor)
        found = Ranked(values, able.tobytes(), in_order(values[0], able))
    slots = cards[0].best_slot if needs_node else None
    return Candidates(asking.snapshot.clusters, found, slots, weighting, field.parts, late)


def _of_all(asking: Asking, values: NDArray[Any], nothing: NDArray[Any]) -> NDArray[Any]:
    """Of all clusters of the snapshot: those without nodes stand behind the fleet's."""
    more = len(asking.snapshot.clusters) - len(values)
    return np.append(values, np.full(more, nothing)) if more else values


def _wait(asking: Asking, able: NDArray[np.bool_]) -> Floats:
    """Of those that could take it, by what their own queues report."""
    ahead, admitted, borrows = np.full((3, len(able)), UNKNOWN)
    for number in np.flatnonzero(able).tolist():
        found = asking.gate.in_line(asking.snapshot.clusters[number])
        if found is not None:
            ahead[number], admitted[number], borrows[number] = found
    return wait_part.part(ahead, admitted, borrows)


def _price(asking: Asking, able: NDArray[np.bool_]) -> Floats:
    """By the model of the GPU that it would get of each."""
    fleet, table = asking.view.fleet, asking.snapshot.table
    known: dict[tuple[int, str], float] = table.note("prices", dict)
    at = next((at for at, pods in enumerate(asking.request.pod_sets) if pods.gpus), None)
    models = [""] * len(able)
    if at is not None:
        kinds = [kind.gpus[0][0] if kind.gpus else "" for kind in fleet.kinds]
        best = fleet.arrays.kind[asking.cards[at].best_slot].tolist()
        models[: len(best)] = [kinds[kind] for kind in best]
    price = np.full(len(able), UNKNOWN)
    for number in np.flatnonzero(able).tolist():
        key = (number, models[number])
        if key not in known:
            known[key] = price_part.price_of(table.told[number], models[number])
        price[number] = known[key]
    if asking.gate.is_tiered:  # beside the cheapest of those where it could begin first
        tiers = _of_each(asking, able, asking.gate.tier)
        able = able & (tiers == np.min(tiers, initial=np.inf, where=able))
    return price_part.part(price, able)


def _locality(asking: Asking, _able: NDArray[np.bool_]) -> Floats:
    """By what the clusters tell of themselves."""
    table, data = asking.snapshot.table, asking.request.data

    def matching() -> Floats:
        pairs = zip(table.names, table.told, strict=True)
        return np.array([locality_part.matches(data, *each) for each in pairs], np.float64)

    return locality_part.part(table.note(("data", data), matching), len(data))


def _tier(asking: Asking, able: NDArray[np.bool_]) -> Floats:
    return tier_part.part(_of_each(asking, able, asking.gate.tier))


def _headroom(asking: Asking, able: NDArray[np.bool_]) -> Floats:
    return headroom_part.part(_of_each(asking, able, asking.gate.headroom), able)


def _of_each(asking: Asking, able: NDArray[np.bool_], of: Callable[[str], float]) -> Floats:
    values = np.full(len(able), UNKNOWN)
    for number in np.flatnonzero(able).tolist():
        values[number] = of(asking.snapshot.clusters[number])
    return values


_LATE: Final[dict[str, Callable[[Asking, NDArray[np.bool_]], Floats]]] = {
    "wait": _wait,
    "price": _price,
    "locality": _locality,
    "tier": _tier,
    "headroom": _headroom,
}
