"""What all requests of one decision have in common: the clusters as of one time, and how they rank.

Parts of the score that depend on no request are worked out once a moment, and only if somebody
counts them; which parts count, and how much, is a lens: one for each profile, set of weights and
kind of request that is met.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.scoring.cluster_table import ClusterTable
from berthmaster.engine.scoring.parts import fresh, idle, interference
from berthmaster.engine.scoring.parts.price import NAME as PRICE
from berthmaster.engine.scoring.parts.values import MOST, UNKNOWN, Floats, told
from berthmaster.engine.scoring.profiles import BALANCED, PARTS, PROFILES, Said, Weights, chosen
from berthmaster.engine.scoring.ranking import to_show
from berthmaster.engine.scoring.value import Worth
from berthmaster.messages.control import QueueSetting
from berthmaster.messages.placement import Target
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.settings import Policy

MOST_AGE_S: Final = 1e9  # that a record tells
LATE: Final = ("wait", "price", "locality")  # parts that depend on more of a request than its kind


class Lens(NamedTuple):
    """How the clusters rank for requests of one kind: fit x its factor, and so on, plus the sum."""

    profile: str  # as a record tells it: "" = the usual one
    weights: dict[str, float]  # as a record tells them: {} = the profile's own
    fit: float  # factor of the part; below 0: the less the better
    room: float
    late: tuple[tuple[str, float], ...]  # of the parts that depend on the request, their factors
    total: Floats  # [C], what the other parts come to
    standing: dict[str, Floats]  # those parts, [C] each
    shown: dict[int, dict[str, float]]  # cluster -> those parts as records have them

    @property
    def uses_steadiness(self) -> bool:
        """Whether the record must tell what of that was known."""
        return "steadiness" in self.standing

    def parts_of(self, number: int) -> dict[str, float]:
        """The parts that depend on the cluster alone, as records have them."""
        parts = self.shown.get(number)
        if parts is None:
            parts = {name: to_show(told(float(p[number]))) for name, p in self.standing.items()}
            self.shown[number] = parts
        return parts


class Shut(NamedTuple):
    """The clusters that are out for requests of one shape, whatever room they have."""

    why: dict[str, str]  # cluster -> why
    open: NDArray[np.bool_]  # [C], not among them
    busy: dict[bytes, dict[str, str]]  # which have room -> why all others are out
    shares: bool  # the shape asks for part of a GPU


class _Plan(NamedTuple):
    """What of a lens is the same at any time."""

    profile: str
    weights: dict[str, float]
    factors: dict[str, float]
    depends: bool  # on what is known of steadiness, so that it is made anew


class Kind(NamedTuple):
    """What of a request decides which parts can tell clusters from each other."""

    shares: bool  # it asks for part of a GPU
    governed: bool  # the clusters' own queues let it in
    has_data: bool  # it says where its data is


class Moment:
    """The clusters as of one time."""

    def __init__(
        self,
        policy: Policy,
        now_s: float,
        roster: ClusterTable,
        worth: Worth,
        steadiness: Callable[[], Mapping[str, float]],
    ) -> None:
        seen = roster.at(now_s, stale_after_s=policy.stale_after_s, avoid_s=policy.avoid_s)
        self.policy = policy
        self.roster = roster
        self.worth = worth  # of holes, by the mix seen so far
        self.clusters = roster.names  # in the order of the fleet's arrays
        self.age_s = _ages_to_show(seen.age_s)  # for records
        self.closed = seen.closed  # number -> why it takes no new placements
        self.open = roster.open  # names of those that do
        self.shut: dict[bytes, Shut] = {}  # by shape; b"" = that asks nothing of clusters
        self.drafted: dict[str, list[tuple[Target, JobRequest]]] = {}  # by this draft, by cluster
        self.tells_steadiness = False  # a record was made that counts it
        self._steadiness_now = steadiness
        self._steadiness_then: Mapping[str, float] | None = None
        self._seen = seen
        self._idle, self._calm = roster.idle, roster.calm
        self._usual: dict[bool, Lens] = {}
        self._lenses: dict[object, Lens] = {}

    @property
    def _steadiness(self) -> Mapping[str, float]:
        """Cluster -> 0..100, of those that are known."""
        if self._steadiness_then is None:
            self._steadiness_then = self._steadiness_now()
        return self._steadiness_then

    @property
    def steadiness(self) -> dict[str, float]:
        """What was known of it, if a record counts it."""
        return dict(self._steadiness) if self.tells_steadiness else {}

    def lens(self, request: JobRequest, setting: QueueSetting | None, shares: bool) -> Lens:
        """How clusters rank for a request of a queue. ``shares``: it asks for part of a GPU."""
        asks = request.profile or request.weights or request.data
        if not asks and (
            setting is None
            or (setting.via == "direct" and not setting.profile and not setting.weights)
        ):
            usual = self._usual.get(shares)
            if usual is None:
                kind = Kind(shares, False, False)
                usual = self._usual[shares] = self._made(Said(), Said(), kind)
            return usual
        theirs = Said() if setting is None else Said(setting.profile, setting.weights)
        kind = Kind(shares, setting is not None and setting.via != "direct", bool(request.data))
        key = (request.profile, *sorted(request.weights.items()), request.queue, kind)
        lens = self._lenses.get(key)
        if lens is None:
            own = Said(request.profile, request.weights)
            lens = self._lenses[key] = self._made(own, theirs, kind)
        return lens

    def _made(self, own: Said, theirs: Said, kind: Kind) -> Lens:
        plain = not (own.weights or theirs.weights)
        key = (own.profile, theirs.profile, kind, self._has_calm(kind), self.policy)
        if plain and (plan := self.roster.notes.get(key)) is not None and not plan.depends:
            name, shown, factors = plan.profile, plan.weights, plan.factors
        else:
            profiles = {**PROFILES, BALANCED: self.policy.weights}
            name, weights = chosen(own, theirs, self.policy.profile, profiles)
            counts = self._counting(weights, kind)
            total = sum(map(abs, counts.values()))
            scale = 1.0 / total if total > 0 else 0.0
            factors = {part: weight * scale for part, weight in counts.items()}
            shown = weights.as_record() if weights != profiles[name] else {}
            if plain:
                plan = _Plan(name, shown, factors, depends=bool(weights.steadiness))
                self.roster.note(key, lambda: plan)
        # What is turned round is 100 less the part: the 100 stands in the sum.
        turned = sum(-MOST * factors[each] for each in ("fit", "room") if factors[each] < 0)
        standing = {
            part: self._standing(part) for part in factors if part not in ("fit", "room", *LATE)
        }
        sum_ = np.zeros(len(self.clusters))
        for part, values in standing.items():
            sum_ = sum_ + counted(values, factors[part])
        return Lens(
            profile="" if name == BALANCED else name,
            weights=shown,
            fit=factors["fit"],
            room=factors["room"],
            late=tuple((part, factors[part]) for part in LATE if part in factors),
            total=sum_ + turned if turned else sum_,
            standing=standing,
            shown={},
        )

    def _has_calm(self, kind: Kind) -> bool:
        return kind.shares and not np.isnan(self._calm).all()

    def _counting(self, weights: Weights, kind: Kind) -> dict[str, float]:
        """Of the parts that can tell clusters from each other, those that count."""
        applies = {
            "interference": self._has_calm(kind),
            "steadiness": bool(weights.steadiness) and bool(self._steadiness),
            "wait": kind.governed,
            "price": self.roster.note(PRICE, self._is_priced),
            "locality": kind.has_data,
        }
        record = weights.as_record()
        always = {"fit": weights.fit, "room": weights.room}
        others = {part: record[part] for part in PARTS if part in record}
        return always | {part: w for part, w in others.items() if applies.get(part, True)}

    def _is_priced(self) -> bool:
        said = self.roster.told
        return any(name.startswith(PRICE) for cluster in said for name in cluster)

    def _standing(self, part: str) -> Floats:
        match part:
            case "idle":
                return idle.part(self._idle)
            case "fresh":
                return fresh.part(self._seen.age_s, self.policy.stale_after_s)
            case "interference":
                return interference.part(self._calm)
            case _:
                known = self._steadiness
                return np.array([known.get(name, UNKNOWN) for name in self.clusters])


def _ages_to_show(age_s: Floats) -> list[float]:
    """As records have them: in whole milliseconds."""
    ages: list[float] = (np.floor(np.minimum(age_s, MOST_AGE_S) * 1e3) / 1e3).tolist()
    return ages


def counted(part: Floats, factor: float) -> Floats:
    """What a part adds to the score: nothing where it is not known, whichever way it counts."""
    if factor < 0:
        part = part - MOST
    values = factor * part
    np.copyto(values, 0.0, where=np.isnan(values))
    return values
