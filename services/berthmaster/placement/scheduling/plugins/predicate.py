"""Clusters that no predicate selects drop out. Pure.

Predicates are ORed; in one, labels AND claims AND all expressions must hold. An expression without
a value for some cluster (a key or a score that is not there) does not select that cluster. One that
treats values as what they are not for every cluster asked, or that costs too much, is wrong itself.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from berthmaster.placement.cel.errors import EvalError, TooCostly, WrongType
from berthmaster.placement.cel.program import Program
from berthmaster.placement.cel.values import Meter, Value, kind_of
from berthmaster.placement.names import Misconfigured
from berthmaster.placement.objects import AddOnPlacementScore, ManagedCluster
from berthmaster.placement.scheduling.plugin import Clusters, Filtered, Snapshot
from berthmaster.placement.scheduling.request import PREDICATE, Predicate, Request
from berthmaster.placement.scheduling.selectors import claims

NAME: Final = PREDICATE
DESCRIPTION: Final = "clusters remain that a predicate selects; all, if there are no predicates"
CALL_STEPS: Final = 1_000_000  # of one expression and cluster: OCM's limit
ALL_STEPS: Final = 500_000  # of all of them in one evaluation: about half a second


def keep(snapshot: Snapshot, request: Request, clusters: Clusters) -> Filtered:
    """Those that any predicate selects. Raises Misconfigured."""
    if not request.predicates:
        return Filtered(tuple(clusters))
    asking = _Asking(snapshot)
    passed = tuple(
        cluster
        for cluster in clusters
        if any(asking.selects(predicate, cluster) for predicate in request.predicates)
    )
    asking.judge()
    return Filtered(passed)


class _Asking:
    """Expressions over clusters, and how that went."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._left = ALL_STEPS
        self._asked: dict[str, int] = {}
        self._wrong: dict[str, tuple[int, str]] = {}  # how often, and why the first time
        self._host = {"scores": self._scores}
        self._document: tuple[str, dict[str, Any]] = ("", {})

    def selects(self, predicate: Predicate, cluster: ManagedCluster) -> bool:
        """Whether all parts of a predicate hold."""
        return (
            predicate.labels.matches(cluster.metadata.labels)
            and (not predicate.claims.requirements or predicate.claims.matches(claims(cluster)))
            and all(self._holds(program, cluster) for program in predicate.programs)
        )

    def _holds(self, program: Program, cluster: ManagedCluster) -> bool:
        meter = Meter(min(CALL_STEPS, self._left))
        began = meter.left
        self._asked[program.text] = self._asked.get(program.text, 0) + 1
        try:
            return program.holds({"managedCluster": self._named(cluster)}, meter, self._host)
        except TooCostly as error:
            raise Misconfigured(NAME, f"expression {program.text[:200]!r}: {error}") from None
        except WrongType as error:
            count, why = self._wrong.get(program.text, (0, str(error)))
            self._wrong[program.text] = count + 1, why
            return False
        except EvalError:
            return False
        finally:
            self._left -= began - max(meter.left, 0)

    def _named(self, cluster: ManagedCluster) -> dict[str, Any]:
        if self._document[0] != cluster.name:
            # Through JSON, as that gives lists where structs have tuples.
            self._document = cluster.name, msgspec.json.decode(msgspec.json.encode(cluster))
        return self._document[1]

    def judge(self) -> None:
        """Raises Misconfigured for an expression that means nothing for any cluster."""
        for text, (count, why) in self._wrong.items():
            if count == self._asked[text]:
                raise Misconfigured(NAME, f"expression {text[:200]!r}: {why}")

    def _scores(self, meter: Meter, cluster: Value, resource: Value) -> list[dict[str, Any]]:
        """``managedCluster.scores("name")``: whatever is written, expired or not, as with OCM."""
        metadata = cluster.get("metadata") if isinstance(cluster, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if not isinstance(name, str) or not isinstance(resource, str):
            raise WrongType(f"scores of a {kind_of(cluster)} by a {kind_of(resource)}")
        found: AddOnPlacementScore | None = self._snapshot.scores.get((name, resource))
        if found is None:
            raise EvalError(f"no AddOnPlacementScore {resource[:64]!r}")
        scores = found.status.scores or ()
        meter.charge(10 + 31 * len(scores))
        return [{"name": one.name, "value": one.value} for one in scores]
