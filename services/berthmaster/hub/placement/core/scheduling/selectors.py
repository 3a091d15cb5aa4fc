"""Selectors of OCM's objects as ours, or Misconfigured with the place that is wrong. Pure."""

from collections.abc import Mapping

from berthmaster.hub.placement.core.names import Misconfigured
from berthmaster.hub.placement.core.objects import (
    ClaimSelector,
    Expression,
    LabelSelector,
    ManagedCluster,
)
from berthmaster.lib.kube.selector import EVERYTHING, Selector, SelectorError, selector_of


def labels_of(selector: LabelSelector | None, plugin: str, where: str) -> Selector:
    """A selector of labels; none is everything."""
    if selector is None:
        return EVERYTHING
    return _made(selector.match_labels or {}, selector.match_expressions or (), plugin, where)


def claims_of(selector: ClaimSelector | None, plugin: str, where: str) -> Selector:
    """A selector of claims; none is everything."""
    if selector is None:
        return EVERYTHING
    return _made({}, selector.match_expressions or (), plugin, where)


def claims(cluster: ManagedCluster) -> dict[str, str]:
    """What a cluster says of itself."""
    return {claim.name: claim.value for claim in cluster.status.cluster_claims}


def _made(
    labels: Mapping[str, str], expressions: tuple[Expression, ...], plugin: str, where: str
) -> Selector:
    requirements = [(one.key, one.operator, one.values or ()) for one in expressions]
    try:
        return selector_of(labels, requirements)
    except SelectorError as error:
        raise Misconfigured(plugin, f"{where}: {error}") from None
