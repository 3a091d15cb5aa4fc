"""One request against the whole fleet: which clusters could take it, how good, why not the rest.

The same code answers for a decision, for "why not yet?" and for a dry run, so that an explanation
can never differ from what is done. How those that could take it rank is ranking.py's.
"""

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.fitting.fit import (
    Bound,
    Scratch,
    bind_gang,
    bind_one,
)
from berthmaster.engine.fleet.clusters import Cluster
from berthmaster.engine.fleet.needs import Suitable, prefers, wants_fraction
from berthmaster.engine.fleet.taints import tolerates
from berthmaster.engine.scoring.ranking import NOTHING
from berthmaster.engine.scoring.score_cache import Scorecard
from berthmaster.messages.control import QueueSetting
from berthmaster.messages.placement import RankedCluster
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.moment import Lens, Moment, Shut
from berthmaster.resolver.quota import target_in, why_not
from berthmaster.resolver.ranking import Candidate, Candidates, pending_in, rank
from berthmaster.resolver.settings import Policy
from berthmaster.resolver.state import Knowledge

BUSY: Final = "busy: no room now"
NOT_ASKED: Final = "not among the clusters asked for"
NO_LABELS: Final = "lacks the labels asked for"
TAINTED: Final = "is tainted"
NO_NODES: Final = "has no nodes"
LESS_LIKED: Final = "has room on GPU models only that it likes less"
NO_JOB_SETS: Final = "makes no JobSets, which several pod sets need"


class Considered(NamedTuple):
    """The fleet, seen with one request's eyes."""

    moment: Moment
    candidates: Candidates  # best first
    filtered: dict[str, str]  # cluster -> why it is out
    suitables: list[Suitable]  # one a pod set
    cards: list[Scorecard]  # one a pod set

    @property
    def lens(self) -> Lens:
        """How the clusters were ranked."""
        return self.candidates.lens

    def ranking(self, first: Candidate) -> tuple[RankedCluster, ...]:
        """The best clusters as a record shows them, the chosen one first, as many as it keeps."""
        if self.candidates.lens.uses_steadiness:
            self.moment.tells_steadiness = True
        candidates, age_s = self.candidates, self.moment.age_s
        clusters, kept = candidates.clusters, self._kept(first.number)
        return tuple(
            [
                RankedCluster(
                    cluster=clusters[number],
                    score=score,
                    parts=parts,
                    input_age_s=age_s[number],
                )
                for number, (score, parts) in zip(kept, candidates.shown(kept), strict=True)
            ]
        )

    def _kept(self, first: int) -> list[int]:
        """Numbers of the clusters that a record keeps."""
        limit, clusters = self.moment.policy.ranking_limit, self.candidates.clusters
        kept = [first]
        for number in self.candidates.order:
            if len(kept) >= limit:
                break
            if number != first and clusters[number] not in self.filtered:
                kept.append(number)
        return kept


def moment_at(know: Knowledge, policy: Policy, now_s: float) -> Moment:
    """All clusters as of now."""
    fleet = know.fleet
    fleet.arrange()
    know.roster.follow(know.clusters, fleet.clusters, fleet.layout)
    return Moment(
        policy,
        now_s,
        know.roster,
        know.appraiser.of(know.sampled(), know.ledger.cpu_a_gpu()),
        lambda: know.steadiness(now_s),
    )


def consider(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> Considered:
    """Filter and rank all clusters for a request: by the GPU models that it prefers, if any of them
    has room for all of it, else by all that it takes."""
    considered = _as_asked(know, moment, request, shape)
    sets = request.pod_sets
    if (sets[0].prefer_gpu_models or len(sets) > 1) and prefers(request):
        return _by_preference(know, moment, request, shape, considered)
    return considered


def _by_preference(
    know: Knowledge, moment: Moment, request: JobRequest, shape: bytes, any_model: Considered
) -> Considered:
    """Only what could take it with any model can take it with those that it prefers."""
    if not any_model.candidates:
        return any_model
    for tried in know.suitables.narrowed(know.fleet, shape, request):
        asked = msgspec.structs.replace(request, pod_sets=tried.pod_sets)
        found = _as_asked(know, moment, asked, tried.shape)
        gang = len(asked.pod_sets) > 1 or asked.pod_sets[0].count > 1
        if not found.candidates or (gang and seat(know, asked, found) is None):
            continue
        filtered = dict(any_model.filtered)
        clusters, able = found.candidates.clusters, set(found.candidates.order)
        for number in any_model.candidates.order:
            name = clusters[number]
            if number not in able:
                filtered[name] = LESS_LIKED
            elif name in found.filtered:
                filtered[name] = found.filtered[name]
        return found._replace(filtered=filtered)
    return any_model


def _as_asked(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> Considered:
    shut = _shut(know, moment, request, shape)
    setting = know.queues.get(request.queue)
    lens = moment.lens(request, setting, shut.shares)
    suitables: list[Suitable] = []
    cards: list[Scorecard] = []
    for index, pods in enumerate(request.pod_sets):
        suitable, card = know.card(shape, index, pods, moment.worth)
        suitables.append(suitable)
        cards.append(card)
    if not moment.clusters:
        nothing = Candidates([], NOTHING, None, lens, (), ())
        return Considered(moment, nothing, dict(shut.why), suitables, cards)
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    if setting is not None and setting.via != "direct":
        shut = _refused(know, moment, request, setting, shut)
    may = shut.open
    if not single:
        may = may & _clusters_with_room(know, request, cards, suitables)
    candidates = rank(know, moment, request, setting, lens, cards, may)
    filtered = _out(know, shut, candidates.found.able, suitables)
    if not single:
        filtered = dict(filtered)  # whoever seats it may find out more
    return Considered(moment, candidates, filtered, suitables, cards)


def _out(know: Knowledge, shut: Shut, able: bytes, suitables: list[Suitable]) -> dict[str, str]:
    """Why clusters are out: closed, or without a node that suits and has room."""
    known = shut.busy.get(able)
    if known is None:
        known = dict(shut.why)
        for number in np.flatnonzero(shut.open & ~np.frombuffer(able, np.bool_)).tolist():
            cluster = know.fleet.clusters[number]
            whys = (s.why_not.get(cluster) for s in suitables)
            known[cluster] = next((why for why in whys if why), BUSY)
        shut.busy[able] = known
    return known


# Filtering


def _shut(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> Shut:
    """Why clusters are out whatever their room: the same for all requests of a shape."""
    known = moment.shut.get(shape)
    if known is not None:
        return known
    shares = any(wants_fraction(pods) for pods in request.pod_sets)
    if not moment.roster.tainted and _asks_nothing(request):
        usual = moment.shut.get(b"")
        if usual is None:  # the same for all such shapes
            usual = moment.shut[b""] = _shut_by(moment, {}, False)
        known = Shut(usual.why, usual.open, {}, shares)
    else:
        asked = moment.roster.note(("asks", shape), lambda: _unasked(know, moment, request))
        known = _shut_by(moment, asked, shares)
    moment.shut[shape] = known
    return known


def _shut_by(moment: Moment, asked: dict[int, str], shares: bool) -> Shut:
    """``asked``: numbers of clusters that the request itself rules out, and why."""
    why = dict.fromkeys(moment.roster.without_nodes, NO_NODES)
    out = moment.closed | asked if asked else moment.closed
    for number in sorted(out):
        why[moment.clusters[number]] = out[number]
    is_open = np.ones(len(moment.clusters), np.bool_)
    is_open[list(out)] = False
    return Shut(why, is_open, {}, shares)


def _asks_nothing(request: JobRequest) -> bool:
    """Of clusters."""
    return not request.clusters and not request.cluster_labels and len(request.pod_sets) == 1


def _unasked(know: Knowledge, moment: Moment, request: JobRequest) -> dict[int, str]:
    """Numbers of the clusters that will not do for what the request says, and why."""
    found = {}
    for number, name in enumerate(moment.clusters):
        if why := _why_unasked(know.clusters.peek(name), request):
            found[number] = why
    return found


def _why_unasked(cluster: Cluster, request: JobRequest) -> str:
    if request.clusters and cluster.name not in request.clusters:
        return NOT_ASKED
    if request.cluster_labels and not request.cluster_labels.items() <= cluster.labels.items():
        return NO_LABELS
    kinds = cluster.profile.job_kinds if cluster.profile is not None else None
    if kinds is not None and len(request.pod_sets) > 1 and "JobSet" not in kinds:
        return NO_JOB_SETS
    for taint in cluster.taints:
        if not all(tolerates(p.tolerations, taint) for p in request.pod_sets):
            return f"{TAINTED} ({taint.key})"
    return ""


def _refused(
    know: Knowledge, moment: Moment, request: JobRequest, setting: QueueSetting, shut: Shut
) -> Shut:
    """Pass over clusters whose own queueing would not let the request in."""
    why, is_open = dict(shut.why), shut.open.copy()
    for number in np.flatnonzero(is_open).tolist():
        name = moment.clusters[number]
        target, pending = target_in(setting, name), pending_in(know, moment, name)
        said = why_not(know.clusters.peek(name), target, request, pending)
        if said:
            why[name] = said
            is_open[number] = False
    return Shut(why, is_open, {}, shut.shares)


# Bound


def seat(
    know: Knowledge, request: JobRequest, considered: Considered
) -> tuple[Candidate, Bound] | None:
    """Places for all pods, in the best cluster that has them. A gang's bound may have been too
    hopeful: then the next cluster is tried, and the first is noted as busy."""
    worth = considered.moment.worth
    for candidate in considered.candidates:
        if candidate.slot >= 0:
            binding, held = bind_one(
                know.fleet, candidate.slot, request.pod_sets[0], considered.suitables[0], worth
            )
            return candidate, Bound((binding,), (held,))
        seating = bind_gang(
            know.fleet,
            candidate.number,
            request.pod_sets,
            considered.suitables,
            Scratch(know.fleet),
            worth,
            considered.cards,
        )
        if seating is not None:
            return candidate, seating
        considered.filtered[candidate.cluster] = BUSY
    return None


def _clusters_with_room(
    know: Knowledge, request: JobRequest, cards: list[Scorecard], suitables: list[Suitable]
) -> NDArray[np.bool_]:
    """Which clusters could hold each pod set by itself: a bound, not a promise."""
    fleet = know.fleet
    fits = np.ones(len(fleet.clusters), np.bool_)
    for pods, suitable, card in zip(request.pod_sets, suitables, cards, strict=True):
        fits &= card.room_for(fleet, pods, suitable).clusters >= pods.count
    return fits
