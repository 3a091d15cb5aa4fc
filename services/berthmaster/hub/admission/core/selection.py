"""The clusters that a check's Placement selects, or why they are unknown. Pure.

The first row that holds gives the reason, in the terms of Open Cluster Management's own controller:

==========================================================  =====================  ============
the check's parameters are missing or name another kind     PlacementError         not known
Placements are not served, or the Placement is unreadable   PlacementError         not known
the namespace has no such Placement                         PlacementNotFound      not known
its scheduler reports a misconfiguration, and has stopped   PlacementError         not known
one of its PlacementDecisions is unreadable                 PlacementDecisionError not known
no PlacementDecision exists                                 PlacementDecisionError not known
its decisions are empty                                     NoClustersAvailable    none
else                                                        Active                 its clusters
==========================================================  =====================  ============

*Not known* differs from "none": members stay members, and no new Workload passes. A misconfigured
edit empties the decisions, and must not remove the clusters of running jobs. Berthmaster's own
evaluator does not stop then: the evaluator continues by the request before the edit, and so do the
readers of its decisions.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from berthmaster.hub.admission.core.objects import (
    GROUP_INDEX_LABEL,
    OCM_GROUP,
    PLACEMENT_LABEL,
    Placement,
    PlacementDecision,
)
from berthmaster.lib.kueue.multikueue import AdmissionCheck

KIND: Final = "Placement"
MAX_WORDS: Final = 500  # limit of another service's message
_NUMBER: Final = re.compile(r"-decision-(\d{1,9})\Z")


class Reason(StrEnum):
    """Open Cluster Management's reasons for an active or inactive check."""

    ACTIVE = "Active"
    PLACEMENT_NOT_FOUND = "PlacementNotFound"
    PLACEMENT_ERROR = "PlacementError"
    PLACEMENT_DECISION_ERROR = "PlacementDecisionError"
    CONFIG_ERROR = "MultiKueueConfigError"
    CONFIG_DELETE_ERROR = "MultiKueueConfigDeleteError"
    NO_CLUSTERS = "NoClustersAvailable"


class Selection(NamedTuple):
    """The selected clusters, in order; None = not known."""

    reason: Reason
    message: str
    clusters: tuple[str, ...] | None = None


class Ocm(NamedTuple):
    """The known Placements in the namespace of the setting."""

    namespace: str
    placements: Mapping[str, Placement]
    decisions: Mapping[str, Mapping[str, PlacementDecision]]  # by Placement, then by name
    unreadable_placements: Mapping[str, str]  # name -> reason
    unreadable_decisions: Mapping[str, str]
    absent: str = ""  # reason for missing Placements: the kind is not served


def named(check: AdmissionCheck) -> tuple[str, str]:
    """Return (the Placement of a check, the error in the check's parameters)."""
    parameters = check.spec.parameters
    right = f"{{apiGroup: {OCM_GROUP}, kind: {KIND}, name: …}}"
    if parameters is None or not parameters.name:
        return "", f"spec.parameters is missing, right is {right}"
    if parameters.kind != KIND or (parameters.api_group or "") != OCM_GROUP:
        given = f"{parameters.api_group or 'core'}/{parameters.kind}"
        return "", f"spec.parameters names a {given}, right is {right}"
    return parameters.name, ""


def select(check: AdmissionCheck, ocm: Ocm) -> Selection:
    name, wrong = named(check)
    if wrong:
        return Selection(Reason.PLACEMENT_ERROR, wrong)
    where = f"Placement {ocm.namespace}/{name}"
    if ocm.absent:
        return Selection(Reason.PLACEMENT_ERROR, f"{where}: {ocm.absent}")
    if name in ocm.unreadable_placements:
        why = ocm.unreadable_placements[name][:MAX_WORDS]
        return Selection(Reason.PLACEMENT_ERROR, f"{where} cannot be read: {why}")
    placement = ocm.placements.get(name)
    if placement is None:
        return Selection(
            Reason.PLACEMENT_NOT_FOUND,
            f"there is no {where}; Placements of checks are looked for in namespace "
            f"{ocm.namespace} only",
        )
    bad = placement.condition("PlacementMisconfigured")
    if bad is not None and bad.true:
        why = (bad.message or bad.reason)[:MAX_WORDS]
        if not any(page.decided_anyway for page in ocm.decisions.get(name, {}).values()):
            return Selection(Reason.PLACEMENT_ERROR, f"{where} is misconfigured: {why}")
        where = f"{where} (misconfigured: {why})"
    return _decided(name, where, placement, ocm)


def _decided(name: str, where: str, placement: Placement, ocm: Ocm) -> Selection:
    pages = ocm.decisions.get(name, {})
    spoilt = sorted(
        page for page in ocm.unreadable_decisions if page in pages or _page_of(page) == name
    )
    if spoilt:
        why = ocm.unreadable_decisions[spoilt[0]][:MAX_WORDS]
        return Selection(
            Reason.PLACEMENT_DECISION_ERROR,
            f"PlacementDecision {ocm.namespace}/{spoilt[0]} cannot be read: {why}",
        )
    if not pages:
        return Selection(
            Reason.PLACEMENT_DECISION_ERROR,
            f"{where} has no PlacementDecision: no controller has evaluated it yet",
        )
    clusters = tuple(dict.fromkeys(c for page in in_order(pages.values()) for c in page.clusters))
    if not clusters:
        told = placement.condition("PlacementSatisfied")
        why = f" ({told.reason}: {told.message})"[:MAX_WORDS] if told is not None else ""
        return Selection(Reason.NO_CLUSTERS, f"{where} selects no cluster{why}", ())
    return Selection(Reason.ACTIVE, where, clusters)


def half_written(check: AdmissionCheck, ocm: Ocm) -> bool:
    """Return whether the pages name fewer clusters than their Placement's status.

    The status is written last. Until then two causes are possible: the clusters were removed, or a
    misconfigured edit has emptied the pages.
    """
    name, _ = named(check)
    placement = ocm.placements.get(name)
    if placement is None or placement.status is None:
        return False
    told = sum(len(page.clusters) for page in ocm.decisions.get(name, {}).values())
    return told < (placement.status.number_of_selected_clusters or 0)


def placement_of(page: PlacementDecision) -> str:
    return page.metadata.labels.get(PLACEMENT_LABEL, "")


def in_order(pages: Iterable[PlacementDecision]) -> list[PlacementDecision]:
    """Return the pages as written: by group, then by number, so that 10 follows 9."""
    key: Callable[[PlacementDecision], tuple[int, int, str]] = _place
    return sorted(pages, key=key)


def _place(page: PlacementDecision) -> tuple[int, int, str]:
    name = page.metadata.name
    group = page.metadata.labels.get(GROUP_INDEX_LABEL, "")
    number = _NUMBER.search(name)
    index = int(group) if group.isascii() and group.isdecimal() and len(group) < 10 else 0
    return index, int(number[1]) if number else 0, name


def _page_of(page: str) -> str:
    """Return the Placement of a page with unreadable labels, from the page's name."""
    return _NUMBER.sub("", page) if _NUMBER.search(page) else ""
