"""Kueue's cohorts: the ancestors of a queue, and the quota of each beside its queues'. Pure.

A queue report includes its cohorts. A cohort without a queue below appears in no report, so its
lending to the parent counts as the parent's own quota. That is equivalent, since no queue uses it
below. Example: cohort ``spare`` without queues lends 8 GPUs to ``org``, so ``org`` is reported with
8 GPUs more.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from berthmaster.lib.kueue.queues import Cohort
from berthmaster.lib.messages.fleet import CohortQuota, FlavorQuota, QuotaAmount
from berthmaster.worker.inventory.core.queues import Flavor, granted_by

MAX_DEPTH: Final = 32  # of a tree; beyond it a report would not fit into a message
CIRCLE: Final = "its cohort is part of a circle: Kueue lets nothing in"


class Cohorts:
    def __init__(self) -> None:
        self._found: dict[str, CohortQuota] = {}
        self._children: dict[str, list[str]] = {}
        self._with_queues: set[str] = set()

    def arrange(
        self, found: Iterable[Cohort], queues_in: Iterable[str]
    ) -> dict[str, tuple[str, ...]]:
        """Replace all cohorts; return the problems of each. ``queues_in``: cohorts
        named by queues.
        """
        self._found, self._children, self._with_queues = {}, {}, set()
        wrong: dict[str, tuple[str, ...]] = {}
        for cohort in found:
            name, parent = cohort.metadata.name, cohort.spec.parent_name or ""
            problems: list[str] = []
            flavors = granted_by(cohort.groups, _NO_FLAVORS, {}, problems)
            wrong[name] = tuple(problems)
            self._found[name] = CohortQuota(cohort=name, parent=parent, flavors=flavors)
            if parent:
                self._children.setdefault(parent, []).append(name)
        for name in queues_in:
            at = name
            while at and at not in self._with_queues:
                self._with_queues.add(at)
                at = self._found[at].parent if at in self._found else ""
        return wrong

    def path(self, name: str) -> tuple[CohortQuota, ...]:
        """Return a cohort and its ancestors, as far as they are objects or have quota."""
        path: list[CohortQuota] = []
        seen: set[str] = set()
        while name and name not in seen and len(path) < MAX_DEPTH:
            seen.add(name)
            own = self._found.get(name)
            lent = self._lent_to(name, seen)
            if own is None and not lent:
                break  # only named
            own = own or CohortQuota(cohort=name)
            path.append(CohortQuota(cohort=name, parent=own.parent, flavors=_sum(own, lent)))
            name = own.parent
        return tuple(path)

    def circular(self, name: str) -> bool:
        """Return whether the parents of a cohort form a cycle."""
        seen: set[str] = set()
        while name in self._found:
            if name in seen:
                return True
            seen.add(name)
            name = self._found[name].parent
        return False

    def _lent_to(self, name: str, seen: set[str]) -> dict[tuple[str, str], int]:
        """Return the quota lent by child cohorts without queues."""
        lent: dict[tuple[str, str], int] = {}
        for child in self._children.get(name, ()):
            if child in self._with_queues or child in seen:
                continue
            own = self._found[child]
            has = {
                (flavor.flavor, resource): one
                for flavor in _sum(own, self._lent_to(child, seen | {child}))
                for resource, one in flavor.resources.items()
            }
            for place, one in has.items():
                most = one.nominal if one.lending_limit is None else one.lending_limit
                lent[place] = lent.get(place, 0) + min(one.nominal, most)
        return lent


_NO_FLAVORS: Final[Mapping[str, Flavor]] = {}  # queues describe the nodes of flavors


def _sum(own: CohortQuota, lent: Mapping[tuple[str, str], int]) -> tuple[FlavorQuota, ...]:
    """Return a cohort's own quota plus lent quota."""
    if not lent:
        return own.flavors
    amounts: dict[str, dict[str, QuotaAmount]] = {
        flavor.flavor: dict(flavor.resources) for flavor in own.flavors
    }
    for (flavor, resource), more in lent.items():
        there = amounts.setdefault(flavor, {})
        before = there.get(resource, QuotaAmount(nominal=0))
        there[resource] = QuotaAmount(
            nominal=before.nominal + more,
            borrowing_limit=before.borrowing_limit,
            lending_limit=before.lending_limit,
        )
    return tuple(FlavorQuota(flavor=name, resources=there) for name, there in amounts.items())
