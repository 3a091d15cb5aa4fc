"""What a check's Placement selects, or why that is not known. Pure.

Rules of this file, in the order in which they are asked; the first that holds gives the reason, in
the words that Open Cluster Management's own controller uses:

==========================================================  =====================  ============
the check's parameters are missing or name another kind     PlacementError         not known
Placements are not served, or it cannot be read             PlacementError         not known
there is no such Placement in the namespace                 PlacementNotFound      not known
its scheduler calls it misconfigured, and has stopped       PlacementError         not known
a PlacementDecision of it cannot be read                    PlacementDecisionError not known
it has no PlacementDecision                                 PlacementDecisionError not known
its decisions name nobody                                   NoClustersAvailable    nobody
else                                                        Active                 its clusters
==========================================================  =====================  ============

*Not known* is not "nobody": whoever is a member stays one, and nothing new is let through. A
misconfigured edit empties the decisions; that must not take the clusters from what runs. Our own
evaluator does not stop then: it goes on by the request before the edit, and so do its readers.
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
MAX_WORDS: Final = 500  # of somebody else, in a message of ours
_NUMBER: Final = re.compile(r"-decision-(\d{1,9})\Z")


class Reason(StrEnum):
    """Why a check is active or not: Open Cluster Management's reasons."""

    ACTIVE = "Active"
    PLACEMENT_NOT_FOUND = "PlacementNotFound"
    PLACEMENT_ERROR = "PlacementError"
    PLACEMENT_DECISION_ERROR = "PlacementDecisionError"
    CONFIG_ERROR = "MultiKueueConfigError"
    CONFIG_DELETE_ERROR = "MultiKueueConfigDeleteError"
    NO_CLUSTERS = "NoClustersAvailable"


class Selection(NamedTuple):
    """The clusters that are wanted, in order; None = not known."""

    reason: Reason
    message: str
    clusters: tuple[str, ...] | None = None


class Ocm(NamedTuple):
    """What is known of Placements in the namespace where they are looked for."""

    namespace: str
    placements: Mapping[str, Placement]
    decisions: Mapping[str, Mapping[str, PlacementDecision]]  # by Placement, then by name
    unreadable_placements: Mapping[str, str]  # name -> why
    unreadable_decisions: Mapping[str, str]
    absent: str = ""  # why there can be none: the kind is not served


def named(check: AdmissionCheck) -> tuple[str, str]:
    """(the Placement that a check names, what is wrong with its parameters)."""
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
    """Whether the pages name fewer clusters than their Placement's status. The status is written
    last: until then nobody can say whether the others were taken out, or a misconfigured edit has
    emptied the pages."""
    name, _ = named(check)
    placement = ocm.placements.get(name)
    if placement is None or placement.status is None:
        return False
    told = sum(len(page.clusters) for page in ocm.decisions.get(name, {}).values())
    return told < (placement.status.number_of_selected_clusters or 0)


def placement_of(page: PlacementDecision) -> str:
    return page.metadata.labels.get(PLACEMENT_LABEL, "")


def in_order(pages: Iterable[PlacementDecision]) -> list[PlacementDecision]:
    """As they were written: by group, then by number, of which the tenth comes after the second."""
    key: Callable[[PlacementDecision], tuple[int, int, str]] = _place
    return sorted(pages, key=key)


def _place(page: PlacementDecision) -> tuple[int, int, str]:
    name = page.metadata.name
    group = page.metadata.labels.get(GROUP_INDEX_LABEL, "")
    number = _NUMBER.search(name)
    index = int(group) if group.isascii() and group.isdecimal() and len(group) < 10 else 0
    return index, int(number[1]) if number else 0, name


def _page_of(page: str) -> str:
    """Of a page whose labels cannot be read, its name says whose it is."""
    return _NUMBER.sub("", page) if _NUMBER.search(page) else ""
