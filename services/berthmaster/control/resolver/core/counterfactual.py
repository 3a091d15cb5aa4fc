"""Compare past decisions with decisions by other settings or code.

Each decision is repeated on the real history before it. A job that would go elsewhere, or start
sooner, is counted once, at the first decision that differs. Consequences of the difference need a
simulation and are not computed.
"""

from collections import Counter

import msgspec

from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.placement import Choice, Decision


class Would(msgspec.Struct, frozen=True, kw_only=True):
    """One job with another placement."""

    decision: int
    tenant: str
    id: str
    was: str  # cluster; "" = not placed by this decision
    would: str
    how: str  # "elsewhere", "other nodes", "sooner", or "not then"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Placements of one kind, in sum."""

    placements: int = 0
    clusters: dict[str, int] = {}
    mean_wait_s: float = 0.0  # from submission to first observed placement
    longest_wait_s: float = 0.0


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions for which a different outcome is no error."""

    decisions: int
    same: int  # would place the same pods on the same nodes
    would_differ: int


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """All decisions under other settings."""

    compared: Compared
    kinds: dict[str, int]  # how -> jobs
    first: tuple[Would, ...]  # the first differences, up to the requested number
    was: Figures
    would: Figures


class _Tally:
    """Placements, each job counted once."""

    def __init__(self) -> None:
        self._waits_s: dict[Key, float] = {}
        self._clusters: Counter[str] = Counter()

    def take(self, name: Key, cluster: str, wait_s: float) -> None:
        if name not in self._waits_s:
            self._waits_s[name] = wait_s
            self._clusters[cluster] += 1

    def figures(self) -> Figures:
        waits_s = self._waits_s.values()
        if not waits_s:
            return Figures()
        return Figures(
            placements=len(waits_s),
            clusters=dict(sorted(self._clusters.items())),
            mean_wait_s=round(sum(waits_s) / len(waits_s), 3),
            longest_wait_s=round(max(waits_s), 3),
        )


class Comparing:
    """Collects decisions and their alternatives."""

    def __init__(self, first: int) -> None:
        self._limit = first
        self._first: list[Would] = []
        self._kinds: Counter[str] = Counter()
        self._decisions = self._same = 0
        self._was = _Tally()
        self._would = _Tally()
        self._sooner: set[Key] = set()  # jobs placed earlier in the alternative

    def take(self, was: Decision, now: Decision | None, know: Knowledge) -> None:
        """Add one decision. ``know``: the knowledge that the decision was made on."""
        self._decisions += 1
        if same_places(was, now):
            self._same += 1
        before = {key(c.tenant, c.id): c for c in was.placements}
        after = {key(c.tenant, c.id): c for c in (now.placements if now is not None else ())}
        for choices, counts in ((before, self._was), (after, self._would)):
            for name, choice in choices.items():
                workload = know.open.get(name)
                since_s = workload.submitted_at_s if workload is not None else was.now_s
                counts.take(name, choice.cluster, max(0.0, was.now_s - since_s))
        for name in [*before, *(name for name in after if name not in before)]:
            how = self._how(name, before.get(name), after.get(name))
            if how:
                self._note(was.number, before.get(name), after.get(name), how)

    def _how(self, name: Key, was: Choice | None, would: Choice | None) -> str:
        if name in self._sooner:
            return ""
        if was is None:
            self._sooner.add(name)
            return "sooner"
        if would is None:
            return "not then"
        if was.cluster != would.cluster:
            return "elsewhere"
        return "" if was.pods == would.pods else "other nodes"

    def _note(self, number: int, was: Choice | None, would: Choice | None, how: str) -> None:
        self._kinds[how] += 1
        either = was or would
        if either is None or len(self._first) >= self._limit:
            return
        self._first.append(
            Would(
                decision=number,
                tenant=either.tenant,
                id=either.id,
                was=was.cluster if was is not None else "",
                would=would.cluster if would is not None else "",
                how=how,
            )
        )

    def compared(self) -> Compared:
        """How many would differ."""
        differ = self._decisions - self._same
        return Compared(decisions=self._decisions, same=self._same, would_differ=differ)

    def alternative(self) -> Alternative:
        return Alternative(
            compared=self.compared(),
            kinds=dict(self._kinds.most_common()),
            first=tuple(self._first),
            was=self._was.figures(),
            would=self._would.figures(),
        )


def same_places(was: Decision, now: Decision | None) -> bool:
    """Whether both place the same pods on the same nodes and withdraw the same attempts."""
    if now is None:
        return not was.placements and not was.withdrawals
    return _places(was) == _places(now) and was.withdrawals == now.withdrawals


def _places(decision: Decision) -> list[tuple[str, str, str, object]]:
    return sorted((c.tenant, c.id, c.cluster, c.pods) for c in decision.placements)
