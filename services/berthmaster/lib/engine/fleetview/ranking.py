"""The clusters that could take a request, best first.

components.py says what a score is made of, and weighting.py what counts how much. This module puts
them together for one request.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleetview.components import ROWS, RankingInput
from berthmaster.lib.engine.fleetview.weighting import Weighting, counted
from berthmaster.lib.engine.scoring.cluster_scores import (
    NO_ROOM,
    Field,
    Floats,
    Ranked,
    SetFit,
    fit_of,
    in_order,
    ranked,
    recorded,
    shown,
    to_show,
    weighed,
)

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
        self._parts = parts  # components beside the score
        self._late = late  # components, each [C]
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
                parts[name] = to_show(recorded(values.item(number)))
        return found

    def _candidate(self, number: int) -> Candidate:
        return Candidate(
            self.found.values.item(0, number),
            self.clusters[number],
            number,
            self._slots.item(number) if self._slots is not None else -1,
        )


def rank(given: RankingInput, weighting: Weighting, may: NDArray[np.bool_]) -> Candidates:
    """Rank the clusters that could take the request. Components that do not count are not made.
    ``may``: those that can take it as far as is known without a card, or a gang's bound."""
    request, cards = given.request, given.cards
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    needs_node = single and not given.gate.is_tiered  # where it would not have to wait
    fleet = given.fleet
    free_milli = _of_all(given, fleet.arrays.free_milli, NO_MILLI)
    all_milli = _of_all(given, fleet.arrays.all_milli, NO_MILLI)
    field = Field(free_milli, all_milli, weighting.total, weighting.room, weighting.fit)
    sets = [SetFit(_of_all(given, card.best, NO_ROOM), *card.costs) for card in cards]
    late: tuple[tuple[str, Floats], ...] = ()
    if not weighting.late:
        found = ranked(field, sets, may, single=needs_node)
    else:
        able = may & (sets[0].best > NO_ROOM) if needs_node else may
        late = tuple(
            (name, of_request(given, able))
            for name, _ in weighting.late
            if (of_request := ROWS[name].of_request) is not None
        )
        values = weighed(field, fit_of(sets) if weighting.fit else None)
        for (_, component), (_, factor) in zip(late, weighting.late, strict=True):
            values[0] += counted(component, factor)
        found = Ranked(values, able.tobytes(), in_order(values[0], able))
    slots = cards[0].best_slot if needs_node else None
    return Candidates(given.clusters, found, slots, weighting, field.parts, late)


def _of_all(given: RankingInput, values: NDArray[Any], nothing: NDArray[Any]) -> NDArray[Any]:
    """Of all clusters of the snapshot: those without nodes stand behind the fleet's."""
    more = len(given.clusters) - len(values)
    return np.append(values, np.full(more, nothing)) if more else values
