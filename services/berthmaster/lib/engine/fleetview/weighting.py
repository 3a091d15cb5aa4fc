"""How much each part of a cluster's score counts: one weighting for each profile, set of weights
and kind of request that is met.

The score of a cluster is a weighted mean: each part (0..100) times its factor, where factors are
the weights of the parts that can tell clusters from each other, scaled so that they sum to 1. For
example the profile "balanced" counts fit 4, room 0.5 and idle 0.5; a cluster with fit 50, room 20
and idle 80 has (4*50 + 0.5*20 + 0.5*80) / 5 = 50.

Parts that depend on the cluster alone are worked out once a snapshot and summed up in ``total``;
fit and room change with every placement, and the parts named in LATE depend on the request, so
ranking.py adds those for each request.
"""

from typing import Final, NamedTuple

import numpy as np

from berthmaster.lib.engine.fleetview.policy import RankingPolicy
from berthmaster.lib.engine.scoring.cluster_table import ClusterTable
from berthmaster.lib.engine.scoring.parts import idle, interference
from berthmaster.lib.engine.scoring.parts.price import NAME as PRICE
from berthmaster.lib.engine.scoring.parts.values import MOST, Floats, all_told
from berthmaster.lib.engine.scoring.profiles import BALANCED, PARTS, Said, Weights, chosen
from berthmaster.lib.engine.scoring.ranking import Fixed
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import JobRequest

# Parts that depend on more of a request than its kind.
LATE: Final = ("wait", "price", "locality", "tier", "headroom")


class Weighting(NamedTuple):
    """How the clusters rank for requests of one kind: fit x its factor, and so on, plus the sum."""

    profile: str  # as a record tells it: "" = the usual one
    weights: dict[str, float]  # as a record tells them: {} = the profile's own
    fit: float  # factor of the part; below 0: the less the better
    room: float
    late: tuple[tuple[str, float], ...]  # of the parts that depend on the request, their factors
    total: Floats  # [C], what the other parts come to
    fixed: Fixed  # those parts, for records


class _Factors(NamedTuple):
    """What of a weighting is the same at any time."""

    profile: str
    weights: dict[str, float]
    factors: dict[str, float]


class RequestShape(NamedTuple):
    """What of a request decides which parts can tell clusters from each other."""

    shares: bool  # it asks for part of a GPU
    governed: bool  # the clusters' own queues let it in
    tiered: bool  # and it may be sent where it has to wait
    has_data: bool  # it says where its data is


class Weightings:
    def __init__(self, policy: RankingPolicy, table: ClusterTable) -> None:
        self._policy = policy
        self._table = table
        self._idle, self._calm = table.idle, table.calm
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
        """How clusters rank for a request of a queue; the rest as in ``RequestShape``."""
        asks = request.profile or request.weights or request.data or governed
        if not asks and (setting is None or not (setting.profile or setting.weights)):
            usual = self._usual.get(shares)
            if usual is None:
                kind = RequestShape(shares, governed=False, tiered=False, has_data=False)
                usual = self._usual[shares] = self._make(Said(), Said(), kind)
            return usual
        theirs = Said() if setting is None else Said(setting.profile, setting.weights)
        kind = RequestShape(shares, governed, tiered, bool(request.data))
        key = (request.profile, *sorted(request.weights.items()), request.queue, kind)
        made = self._made.get(key)
        if made is None:
            own = Said(request.profile, request.weights)
            made = self._made[key] = self._make(own, theirs, kind)
        return made

    def _make(self, own: Said, theirs: Said, kind: RequestShape) -> Weighting:
        factored = self._factors(own, theirs, kind)
        factors = factored.factors
        # What is turned round is 100 less the part: the 100 stands in the sum.
        turned = sum((-MOST * factors[each] for each in ("fit", "room") if factors[each] < 0), 0.0)
        fixed = {
            part: self._fixed(part)
            for part in factors
            if part not in ("fit", "room") and part not in LATE
        }
        sum_ = np.zeros(len(self._table.names))
        for part, values in fixed.items():
            sum_ = sum_ + counted(values, factors[part])
        return Weighting(
            profile=factored.profile,
            weights=factored.weights,
            fit=factors["fit"],
            room=factors["room"],
            late=tuple((part, factors[part]) for part in LATE if part in factors),
            total=sum_ + turned if turned else sum_,
            fixed=Fixed(tuple(fixed), all_told([*fixed.values()], len(sum_))),
        )

    def _factors(self, own: Said, theirs: Said, kind: RequestShape) -> _Factors:
        """Kept from snapshot to snapshot where nobody gave weights of his own."""
        plain = not (own.weights or theirs.weights)
        key = (own.profile, theirs.profile, kind, self._has_calm(kind), self._policy)
        kept: _Factors | None = self._table.notes.get(key) if plain else None
        if kept is not None:
            return kept
        profiles = self._policy.profiles
        name, weights = chosen(own, theirs, self._policy.profile, profiles)
        counts = self._counting(weights, kind)
        total = sum(map(abs, counts.values()), 0.0)
        scale = 1.0 / total if total > 0 else 0.0
        made = _Factors(
            "" if name == BALANCED else name,
            weights.as_record() if weights != profiles[name] else {},
            {part: weight * scale for part, weight in counts.items()},
        )
        if plain:
            self._table.note(key, lambda: made)
        return made

    def _has_calm(self, kind: RequestShape) -> bool:
        return kind.shares and not np.isnan(self._calm).all()

    def _counting(self, weights: Weights, kind: RequestShape) -> dict[str, float]:
        """Of the parts that can tell clusters from each other, those that count."""
        applies = {
            "interference": self._has_calm(kind),
            "wait": kind.governed,
            "price": self._table.note(PRICE, self._is_priced),
            "locality": kind.has_data,
            "tier": kind.tiered,
            "headroom": kind.tiered,
        }
        record = weights.as_record()
        always = {"fit": weights.fit, "room": weights.room}
        others = {part: record[part] for part in PARTS if part in record}
        return always | {part: w for part, w in others.items() if applies.get(part, True)}

    def _is_priced(self) -> bool:
        said = self._table.told
        return any(name.startswith(PRICE) for cluster in said for name in cluster)

    def _fixed(self, part: str) -> Floats:
        return idle.part(self._idle) if part == "idle" else interference.part(self._calm)


def counted(part: Floats, factor: float) -> Floats:
    """What a part adds to the score: nothing where it is not known, whichever way it counts."""
    if factor < 0:
        part = part - MOST
    values = factor * part
    np.copyto(values, 0.0, where=np.isnan(values))
    return values
