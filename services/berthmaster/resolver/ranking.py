"""The clusters that could take a request, best first.

What a score is made of is engine/parts', which parts count is moment.py's; this puts them together
for one request, and works out the parts that depend on more of it than its kind.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.scoring.parts import fit as fit_part
from berthmaster.engine.scoring.parts import locality as locality_part
from berthmaster.engine.scoring.parts import price as price_part
from berthmaster.engine.scoring.parts import wait as wait_part
from berthmaster.engine.scoring.parts.values import UNKNOWN, Floats, told
from berthmaster.engine.scoring.ranking import (
    NO_ROOM,
    Field,
    Ranked,
    in_order,
    ranked,
    shown,
    to_show,
    weighed,
)
from berthmaster.engine.scoring.score_cache import Scorecard
from berthmaster.messages.control import QueueSetting
from berthmaster.messages.placement import Target
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.moment import Lens, Moment, counted
from berthmaster.resolver.quota import in_line, target_in
from berthmaster.resolver.state import Knowledge


class Candidate(NamedTuple):
    """A cluster that could take the request."""

    score: float
    cluster: str
    number: int  # among the fleet's clusters
    slot: int  # the node for a single pod; -1 for a gang


class Candidates(Sequence[Candidate]):
    """The clusters that could take a request, best first, written out as far as they are asked for:
    of a hundred, a decision looks at a few."""

    def __init__(
        self,
        clusters: list[str],
        found: Ranked,
        slots: NDArray[np.int64] | None,
        lens: Lens,
        parts: tuple[str, ...],
        late: tuple[tuple[str, Floats], ...],
    ) -> None:
        self.clusters = clusters
        self.order = found.order  # numbers of clusters
        self.found = found
        self.lens = lens
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
        return Candidates(self.clusters, found, self._slots, self.lens, self._parts, self._late)

    def clear(self) -> None:
        """None of them could, after all."""
        self.order.clear()

    def shown(self, numbers: list[int]) -> list[tuple[float, dict[str, float]]]:
        """Scores of some clusters, and what they are made of, as records have them."""
        found = shown(self.found.values, self._parts, numbers)
        lens = self.lens
        for number, (_, parts) in zip(numbers, found, strict=True):
            parts.update(lens.shown.get(number) or lens.parts_of(number))
            for name, values in self._late:
                parts[name] = to_show(told(values.item(number)))
        return found

    def _candidate(self, number: int) -> Candidate:
        return Candidate(
            self.found.values.item(0, number),
            self.clusters[number],
            number,
            self._slots.item(number) if self._slots is not None else -1,
        )


def rank(
    know: Knowledge,
    moment: Moment,
    request: JobRequest,
    setting: QueueSetting | None,
    lens: Lens,
    cards: list[Scorecard],
    may: NDArray[np.bool_],
) -> Candidates:
    """Clusters that could take the request, best first. Parts that do not count are not made.
    ``may``: those that can take it as far as is known without a card, or a gang's bound."""
    pods, best = request.pod_sets[0], cards[0].best
    single = len(cards) == 1 and pods.count == 1
    fleet = know.fleet
    field = Field(fleet.free_milli, fleet.all_milli, lens.total, lens.room, lens.fit)
    late: tuple[tuple[str, Floats], ...] = ()
    if len(cards) == 1 and not lens.late:
        found = ranked(field, pods, moment.worth, best, may, single=single)
    else:
        able = may & (best > NO_ROOM) if single else may
        late = tuple(
            (name, _LATE[name](know, moment, request, setting, cards, able))
            for name, _ in lens.late
        )
        found = _ranked_late(field, request, moment, lens, cards, able, late)
    slots = cards[0].best_slot if single else None
    return Candidates(fleet.clusters, found, slots, lens, field.parts, late)


def _ranked_late(
    field: Field,
    request: JobRequest,
    moment: Moment,
    lens: Lens,
    cards: list[Scorecard],
    able: NDArray[np.bool_],
    late: tuple[tuple[str, Floats], ...],
) -> Ranked:
    """With parts that depend on more of the request than its kind, or for several pod sets."""
    fit: Floats | None = None
    if lens.fit:
        sets = zip(request.pod_sets, cards, strict=True)
        each = [fit_part.part(pods, card.best, moment.worth) for pods, card in sets]
        fit = np.minimum.reduce(each)
    values = weighed(field, fit)
    for (_, part), (_, factor) in zip(late, lens.late, strict=True):
        values[0] += counted(part, factor)
    return Ranked(values, able.tobytes(), in_order(values[0], able))


def _wait(
    know: Knowledge,
    moment: Moment,
    request: JobRequest,
    setting: QueueSetting | None,
    _cards: list[Scorecard],
    fits: NDArray[np.bool_],
) -> Floats:
    """Of those that could take it, by what their own queues report."""
    ahead, admitted, borrows = np.full((3, len(fits)), UNKNOWN)
    for number in np.flatnonzero(fits).tolist():
        name = moment.clusters[number]
        target, pending = target_in(setting, name), pending_in(know, moment, name)
        found = in_line(know.clusters.peek(name), target, request, pending)
        if found is not None:
            ahead[number], admitted[number], borrows[number] = found
    return wait_part.part(ahead, admitted, borrows)


def _price(
    know: Knowledge,
    moment: Moment,
    request: JobRequest,
    _setting: QueueSetting | None,
    cards: list[Scorecard],
    fits: NDArray[np.bool_],
) -> Floats:
    """By the model of the GPU that it would get of each."""
    fleet, roster = know.fleet, moment.roster
    known: dict[tuple[int, str], float] = roster.note("prices", dict)
    at = next((at for at, pods in enumerate(request.pod_sets) if pods.gpus), None)
    models = [""] * len(fits)
    if at is not None:
        kinds = [kind.gpus[0][0] if kind.gpus else "" for kind in fleet.kinds]
        models = [kinds[kind] for kind in fleet.kind[cards[at].best_slot].tolist()]
    price = np.full(len(fits), UNKNOWN)
    for number in np.flatnonzero(fits).tolist():
        key = (number, models[number])
        if key not in known:
            known[key] = price_part.price_of(roster.told[number], models[number])
        price[number] = known[key]
    return price_part.part(price, fits)


def _locality(
    _know: Knowledge,
    moment: Moment,
    request: JobRequest,
    _setting: QueueSetting | None,
    _cards: list[Scorecard],
    _fits: NDArray[np.bool_],
) -> Floats:
    """By what the clusters tell of themselves."""
    roster, data = moment.roster, request.data

    def matching() -> Floats:
        pairs = zip(roster.names, roster.told, strict=True)
        return np.array([locality_part.matches(data, *each) for each in pairs], np.float64)

    return locality_part.part(roster.note(("data", data), matching), len(data))


_Late = Callable[
    [Knowledge, Moment, JobRequest, QueueSetting | None, list[Scorecard], NDArray[np.bool_]], Floats
]
_LATE: Final[dict[str, _Late]] = {"wait": _wait, "price": _price, "locality": _locality}


def pending_in(know: Knowledge, moment: Moment, cluster: str) -> list[tuple[Target, JobRequest]]:
    """Placements of ours that its own queue has not let in, those of this draft too."""
    waiting = (know.open[key] for key in know.unadmitted.get(cluster, ()))
    pending = [(w.target, w.request) for w in waiting if w.request is not None]
    return [*pending, *moment.drafted.get(cluster, ())]
