"""The clusters that could take a request, best first.

What a score is made of is engine/parts', which parts count is moment.py's; this puts them together
for one request, and works out the parts that depend on more of it than its kind.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.board import Card
from berthmaster.engine.parts import fit as fit_part
from berthmaster.engine.parts import locality as locality_part
from berthmaster.engine.parts import price as price_part
from berthmaster.engine.parts import room as room_part
from berthmaster.engine.parts import wait as wait_part
from berthmaster.engine.parts.values import UNKNOWN, Floats
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
        order: list[int],
        score: Floats,
        slots: NDArray[np.int64] | None,
        lens: Lens,
        parts: "Parts",
    ) -> None:
        self.clusters = clusters
        self.order = order  # numbers of clusters
        self.score = score
        self.lens = lens
        self.parts = parts
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
        return Candidates(self.clusters, order, self.score, self._slots, self.lens, self.parts)

    def clear(self) -> None:
        """None of them could, after all."""
        self.order.clear()

    def _candidate(self, number: int) -> Candidate:
        return Candidate(
            self.score.item(number),
            self.clusters[number],
            number,
            self._slots.item(number) if self._slots is not None else -1,
        )


class Parts(NamedTuple):
    """Parts of the score that depend on the request, by name, [C] each."""

    early: tuple[tuple[str, Floats], ...]  # fit and room, always known
    late: tuple[tuple[str, Floats], ...]


NO_PARTS: Final = Parts((), ())


def rank(
    know: Knowledge,
    moment: Moment,
    request: JobRequest,
    setting: QueueSetting | None,
    lens: Lens,
    cards: list[Card],
    fits: NDArray[np.bool_],
) -> Candidates:
    """Clusters that could take the request, best first. Parts that do not count are not made."""
    score = lens.total
    early: tuple[tuple[str, Floats], ...] = ()
    if lens.room:
        room = room_part.part(know.fleet.free_milli, moment.room_percent)
        score = lens.room * room
        early = (("room", room),)
    if lens.fit:
        fit = fit_part.part(request.pod_sets[0], cards[0].best, moment.worth)
        for pods, card in zip(request.pod_sets[1:], cards[1:], strict=True):
            fit = np.minimum(fit, fit_part.part(pods, card.best, moment.worth))
        if early:
            score += lens.fit * fit
        else:
            score = lens.fit * fit
        early = (("fit", fit), *early)
    if early:
        score += lens.total
    late: list[tuple[str, Floats]] = []
    for name, factor in lens.late:
        values = _LATE[name](know, moment, request, setting, cards, fits)
        score = score + counted(values, factor)
        late.append((name, values))
    # Clusters are in the order of their names, which decides ties.
    last = -score
    able = fits.tobytes().count(1)
    if able < len(fits):
        np.copyto(last, np.inf, where=~fits)
    order = last.argsort(kind="stable").tolist()
    del order[able:]
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    slots = cards[0].best_slot if single else None
    parts = Parts(early, tuple(late))
    return Candidates(know.fleet.clusters, order, score, slots, lens, parts)


def _wait(
    know: Knowledge,
    moment: Moment,
    request: JobRequest,
    setting: QueueSetting | None,
    _cards: list[Card],
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
    cards: list[Card],
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
    _cards: list[Card],
    _fits: NDArray[np.bool_],
) -> Floats:
    """By what the clusters tell of themselves."""
    roster, data = moment.roster, request.data

    def matching() -> Floats:
        pairs = zip(roster.names, roster.told, strict=True)
        return np.array([locality_part.matches(data, *each) for each in pairs], np.float64)

    return locality_part.part(roster.note(("data", data), matching), len(data))


_Late = Callable[
    [Knowledge, Moment, JobRequest, QueueSetting | None, list[Card], NDArray[np.bool_]], Floats
]
_LATE: Final[dict[str, _Late]] = {"wait": _wait, "price": _price, "locality": _locality}


def pending_in(know: Knowledge, moment: Moment, cluster: str) -> list[tuple[Target, JobRequest]]:
    """Placements of ours that its own queue has not let in, those of this draft too."""
    waiting = (know.open[key] for key in know.unadmitted.get(cluster, ()))
    pending = [(w.target, w.request) for w in waiting if w.request is not None]
    return [*pending, *moment.drafted.get(cluster, ())]
