"""The clusters that could take a request, best first, and how much each component counts.

The score of a cluster is a weighted mean: each component (0..100) times its factor. Factors are the
weights of the components that can tell clusters apart, scaled so that they sum to 1. For example
the profile "balanced" counts fit 4, room 0.5 and idle 0.5; a cluster with fit 50, room 20 and idle
80 has (4*50 + 0.5*20 + 0.5*80) / 5 = 50. components.py says what the components are.

There is one ``Weighting`` for each profile, set of weights and kind of request that is met. It
holds, summed up in ``total``, the components that depend on the cluster alone. Fit and room change
with every placement, and others depend on the request, so ``rank`` adds those for each request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleetview.components import ROWS, RankingInput, RequestKind
from berthmaster.lib.engine.scoring.cluster_scores import (
    MOST,
    NO_ROOM,
    Field,
    Fixed,
    Floats,
    Ranked,
    SetFit,
    all_recorded,
    fit_of,
    in_order,
    ranked,
    recorded,
    shown,
    to_show,
    weighed,
)
from berthmaster.lib.engine.scoring.cluster_table import ClusterTable
from berthmaster.lib.engine.scoring.profiles import BALANCED, Said, Weights, chosen
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import JobRequest

BY_NODES: Final = ("fit", "room")  # components of cluster_scores.py


class RankingPolicy(Protocol):
    """The part of a decider's settings that rankings follow from. Must be hashable."""

    @property
    def stale_after_s(self) -> float:
        """A cluster silent for so long gets no new placements."""

    @property
    def avoid_s(self) -> float:
        """A cluster that left a placement unclaimed is passed over for so long."""

    @property
    def ranking_limit(self) -> int:
        """Return the number of clusters in a record."""

    @property
    def profile(self) -> str:
        """Return the profile for requests without a profile of their own or of their queue."""

    @property
    def profiles(self) -> Mapping[str, Weights]: ...

    def __hash__(self) -> int: ...


class Weighting(NamedTuple):
    """The ranking of requests of one kind: fit x factor, room x factor, plus a sum."""

    profile: str  # as in records: "" = the default
    weights: dict[str, float]  # as in records: {} = the profile's own
    fit: float  # factor of the component; below 0: the less the better
    room: float
    late: tuple[tuple[str, float], ...]  # factors of components of the request
    total: Floats  # [C], sum of the other components
    fixed: Fixed  # those components, for records


class _Factors(NamedTuple):
    """The constant part of a weighting."""

    profile: str
    weights: dict[str, float]
    factors: dict[str, float]


class Weightings:
    def __init__(self, policy: RankingPolicy, table: ClusterTable) -> None:
        self._policy = policy
        self._table = table
        self._usual: dict[bool, Weighting] = {}
        self._made: dict[object, Weighting] = {}

    def of(
        self,
        request: JobRequest,
        setting: QueueSetting | None,
        *,
        shares: bool,
        governed: bool,
        tiered: bool,
    ) -> Weighting:
        """How clusters rank for a request of a queue; the rest as in ``RequestKind``."""
        asks = request.profile or request.weights or request.data or governed
        if not asks and (setting is None or not (setting.profile or setting.weights)):
            usual = self._usual.get(shares)
            if usual is None:
                kind = RequestKind(shares, governed=False, tiered=False, has_data=False)
                usual = self._usual[shares] = self._make(Said(), Said(), kind)
            return usual
        theirs = Said() if setting is None else Said(setting.profile, setting.weights)
        kind = RequestKind(shares, governed, tiered, bool(request.data))
        key = (request.profile, *sorted(request.weights.items()), request.queue, kind)
        made = self._made.get(key)
        if made is None:
            own = Said(request.profile, request.weights)
            made = self._made[key] = self._make(own, theirs, kind)
        return made

    def _make(self, own: Said, theirs: Said, kind: RequestKind) -> Weighting:
        factored = self._factors(own, theirs, kind)
        factors = factored.factors
        # With a factor below 0, 100 less the component counts: the 100 is part of the sum.
        turned = sum((-MOST * factors[each] for each in BY_NODES if factors[each] < 0), 0.0)
        fixed = {
            name: of_clusters(self._table)
            for name in factors
            if (of_clusters := ROWS[name].of_clusters) is not None
        }
        sum_ = np.zeros(len(self._table.names))
        for name, values in fixed.items():
            sum_ = sum_ + counted(values, factors[name])
        return Weighting(
            profile=factored.profile,
            weights=factored.weights,
            fit=factors["fit"],
            room=factors["room"],
            late=tuple((name, factors[name]) for name in factors if ROWS[name].of_request),
            total=sum_ + turned if turned else sum_,
            fixed=Fixed(tuple(fixed), all_recorded([*fixed.values()], len(sum_))),
        )

    def _factors(self, own: Said, theirs: Said, kind: RequestKind) -> _Factors:
        """Kept from snapshot to snapshot where neither request nor queue has weights."""
        table = self._table
        counting = tuple(name for name, row in ROWS.items() if row.counts(kind, table))
        plain = not (own.weights or theirs.weights)
        key = (own.profile, theirs.profile, counting, self._policy)
        kept: _Factors | None = table.notes.get(key) if plain else None
        if kept is not None:
            return kept
        profiles = self._policy.profiles
        name, weights = chosen(own, theirs, self._policy.profile, profiles)
        counts = {each: weights.get(each, 0.0) for each in BY_NODES} | {
            each: weights[each] for each in counting if each in weights
        }
        total = sum(map(abs, counts.values()), 0.0)
        scale = 1.0 / total if total > 0 else 0.0
        made = _Factors(
            "" if name == BALANCED else name,
            dict(weights) if weights != profiles[name] else {},
            {each: weight * scale for each, weight in counts.items()},
        )
        if plain:
            table.note(key, lambda: made)
        return made


def counted(component: Floats, factor: float) -> Floats:
    """Return the contribution of a component: 0 for unknown values of either sign."""
    if factor < 0:
        component = component - MOST
    values = factor * component
    np.copyto(values, 0.0, where=np.isnan(values))
    return values


NO_MILLI: Final = np.array(0, np.int64)


class Candidate(NamedTuple):
    """A cluster that fits the request."""

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
        """Return the candidates limited to this cluster."""
        order = [number for number in self.order if self.clusters[number] == cluster]
        found = self.found._replace(order=order)
        return Candidates(
            self.clusters, found, self._slots, self.weighting, self._parts, self._late
        )

    def clear(self) -> None:
        """Remove all candidates."""
        self.order.clear()

    def shown(self, numbers: list[int]) -> list[tuple[float, dict[str, float]]]:
        """Return scores and components of some clusters, as in records."""
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
    """Rank the clusters that fit. Components with weight 0 are not computed.

    ``may``: clusters that fit as far as known without a scorecard, or by a gang's bound.
    """
    request, cards = given.request, given.cards
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    needs_node = single and not given.gate.is_tiered  # for requests that start at once
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
