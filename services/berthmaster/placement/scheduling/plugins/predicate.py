"""Clusters that no predicate selects drop out. Pure.

Predicates are ORed; in one, labels AND claims AND all expressions must hold. An expression without
a value for some cluster (a key or a score that is not there) does not select that cluster. One that
treats values as what they are not for every cluster asked, or that costs too much, is wrong itself.

What was found of a cluster is kept (verdicts.py) until the cluster, or a score that was looked at,
is another. What all of them may cost grows with their number. One look evaluates a slice of it and
says that it is unfinished; the next goes on from there, so that thousands of clusters keep nobody
waiting.
"""

from collections.abc import Mapping
from typing import Any, Final

from berthmaster.kubernetes.mirror import Key
from berthmaster.placement.cel.errors import EvalError, TooCostly, WrongType
from berthmaster.placement.cel.program import Program
from berthmaster.placement.cel.values import Meter, Value, kind_of
from berthmaster.placement.names import Misconfigured
from berthmaster.placement.objects import AddOnPlacementScore, ManagedCluster
from berthmaster.placement.scheduling.plugin import Clusters, Filtered, Snapshot, Unfinished
from berthmaster.placement.scheduling.request import PREDICATE, Predicate, Request
from berthmaster.placement.scheduling.selectors import claims
from berthmaster.placement.scheduling.verdicts import Verdict, Verdicts

NAME: Final = PREDICATE
DESCRIPTION: Final = "clusters remain that a predicate selects; all, if there are no predicates"
FREE_STEPS: Final = 500_000  # of a Placement's expressions: about half a second …
CLUSTER_STEPS: Final = 1_000  # … and for each cluster so many more; a usual one takes 20 to 300
CALL_STEPS: Final = 500_000  # of one expression and cluster; OCM's limit is 1,000,000 of its own
SLICE_STEPS: Final = 250_000  # of one look


def keep(snapshot: Snapshot, request: Request, clusters: Clusters) -> Filtered:
    """Those that any predicate selects. Raises Misconfigured, Unfinished."""
    if not request.predicates:
        return Filtered(tuple(clusters))
    known = snapshot.verdicts or Verdicts()
    known.about(request.predicates)
    asking = _Asking(snapshot, known, len(clusters))
    found: dict[str, Verdict] = {}
    for cluster in clusters:
        found[cluster.name] = asking.verdict(cluster)
    known.by_cluster = found
    _judge(known)
    return Filtered(tuple(one for one in clusters if found[one.name].selected))


def _judge(known: Verdicts) -> None:
    """Raises Misconfigured for an expression that means nothing for any cluster."""
    meant = wrong = 0
    for one in known.by_cluster.values():
        meant |= one.meant
        wrong |= one.wrong
    for text, number in known.numbers.items():
        if (wrong & ~meant) >> number & 1:
            raise Misconfigured(NAME, f"expression {text[:200]!r}: {known.why[number]}")


class _Asking:
    """One look at all clusters."""

    def __init__(self, snapshot: Snapshot, known: Verdicts, clusters: int) -> None:
        self._snapshot = snapshot
        self._known = known
        self._left = FREE_STEPS + CLUSTER_STEPS * clusters
        self._slice = SLICE_STEPS
        self._host = {"scores": self._scores}
        self._meant = self._wrong = 0
        self._looked: dict[Key, AddOnPlacementScore | None] = {}

    def verdict(self, cluster: ManagedCluster) -> Verdict:
        """Of one cluster, kept or new."""
        known = self._known.by_cluster.get(cluster.name)
        if known is None or known.cluster is not cluster or not self._same(known):
            if self._slice <= 0 and self._snapshot.verdicts is not None:
                raise Unfinished
            known = self._found(cluster)
            self._known.by_cluster[cluster.name] = known
            self._slice -= known.spent
        else:
            self._left -= known.spent
        return known

    def _same(self, known: Verdict) -> bool:
        return all(self._snapshot.scores.get(key) is found for key, found in known.scores)

    def _found(self, cluster: ManagedCluster) -> Verdict:
        self._meant = self._wrong = 0
        self._looked = {}
        before = self._left
        predicates = self._known.predicates or ()
        selected = any(self._selects(predicate, cluster) for predicate in predicates)
        scores = tuple(self._looked.items())
        spent = before - self._left
        return Verdict(cluster, selected, spent, self._meant, self._wrong, scores)

    def _selects(self, predicate: Predicate, cluster: ManagedCluster) -> bool:
        return (
            predicate.labels.matches(cluster.metadata.labels)
            and (not predicate.claims.requirements or predicate.claims.matches(claims(cluster)))
            and all(self._holds(program, cluster) for program in predicate.programs)
        )

    def _holds(self, program: Program, cluster: ManagedCluster) -> bool:
        meter = Meter(min(CALL_STEPS, max(self._left, 0)))
        began = meter.left
        number = self._known.numbers[program.text]
        try:
            value = program.holds({"managedCluster": cluster.document}, meter, self._host)
        except TooCostly as error:
            raise Misconfigured(NAME, f"expression {program.text[:200]!r}: {error}") from None
        except WrongType as error:
            self._known.why.setdefault(number, str(error))
            self._wrong |= 1 << number
            return False
        except EvalError:
            value = False
        finally:
            self._left -= began - max(meter.left, 0)
        self._meant |= 1 << number
        return value

    def _scores(self, meter: Meter, cluster: Value, resource: Value) -> list[dict[str, Any]]:
        """``managedCluster.scores("name")``: whatever is written, expired or not, as with OCM."""
        metadata = cluster.get("metadata") if isinstance(cluster, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if not isinstance(name, str) or not isinstance(resource, str):
            raise WrongType(f"scores of a {kind_of(cluster)} by a {kind_of(resource)}")
        found: AddOnPlacementScore | None = self._snapshot.scores.get((name, resource))
        self._looked[name, resource] = found
        if found is None:
            raise EvalError(f"no AddOnPlacementScore {resource[:64]!r}")
        scores = found.status.scores or ()
        meter.charge(10 + 31 * len(scores))
        return [{"name": one.name, "value": one.value} for one in scores]
