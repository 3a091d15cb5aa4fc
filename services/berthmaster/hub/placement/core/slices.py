"""Decisions as PlacementDecisions of sig-multicluster, beside those of OCM. Pure.

Example: page ``p-decision-1`` of the Placement ``p`` names the clusters east and west. Slice
``p-profiles-1`` (multicluster.x-k8s.io) then refers to the ClusterProfiles east and west.

Rules of this file:

- A slice follows its page, and is written after the page. So rate limits and wrong edits need no
  rules here.
- A decision refers to the ClusterProfile in the Placement's namespace, else to the first by
  namespace. A cluster without a profile is left out, because a reference must be valid.
- A slice without Berthmaster's label belongs to another scheduler.
"""

from collections.abc import Mapping
from typing import Any, Final

from berthmaster.hub.placement.core.instructions import DropSlice, PutSlice
from berthmaster.hub.placement.core.objects import (
    MANAGED_BY,
    OURS,
    Placement,
    PlacementDecision,
    owner_of,
)
from berthmaster.lib.kube.mirror import Key
from berthmaster.lib.kube.multicluster import (
    DECISION_INDEX,
    DECISION_KEY,
    ClusterProfile,
    DecisionSlice,
    ProfileDecision,
    ProfileReference,
)

SCHEDULER: Final = "berthmaster"
INFIX: Final = "-profiles-"  # between the Placement's name and the number of a slice, from 1


class Slices:
    """ClusterProfiles, and the slices as last observed or written."""

    def __init__(self) -> None:
        self.served = False  # the hub has the kind, and all slices are known
        self._homes: dict[str, set[str]] = {}  # name of a ClusterProfile -> namespaces
        self._slices: dict[Key, dict[str, DecisionSlice]] = {}  # by Placement, then by name

    def on_profile(self, profile: ClusterProfile, *, gone: bool) -> bool:
        """Apply a profile. Return whether a reference to this profile may change."""
        name, home = profile.metadata.name, profile.metadata.namespace
        homes = self._homes.setdefault(name, set())
        if (home in homes) is not gone:
            return False
        (homes.discard if gone else homes.add)(home)
        if not homes:
            del self._homes[name]
        return True

    def on_slice(self, found: DecisionSlice, *, gone: bool) -> tuple[Key, bool]:
        """Apply a slice. Return the Placement, and whether the slice is news."""
        meta = found.metadata
        key = (meta.namespace, meta.name.rpartition(INFIX)[0])
        known = self._slices.setdefault(key, {})
        before = known.get(meta.name)
        if gone:
            known.pop(meta.name, None)
        else:
            known[meta.name] = found
        if not known:
            del self._slices[key]
        same = before is not None and before.metadata.resource_version == meta.resource_version
        return key, before is not None if gone else not same

    def of(self, placement: Key) -> Mapping[str, DecisionSlice]:
        return self._slices.get(placement, {})

    def drops(self, placement: Key) -> tuple[DropSlice, ...]:
        """Return the deletion of all slices of a Placement."""
        found = sorted(self.of(placement).items())
        return tuple(DropSlice(name, one.metadata) for name, one in found)

    def writes(
        self, placement: Placement, pages: Mapping[str, PlacementDecision]
    ) -> tuple[PutSlice | DropSlice, ...]:
        """Return the writes that make the slices follow the pages."""
        if not self.served:
            return ()
        meta = placement.metadata
        present = self.of((meta.namespace, meta.name))
        puts: list[PutSlice] = []
        names: set[str] = set()
        for index, page in enumerate(sorted(pages, key=lambda name: (len(name), name))):
            name = f"{meta.name}{INFIX}{index + 1}"
            names.add(name)
            wanted = self._decisions(meta.namespace, pages[page])
            labels = {
                DECISION_KEY: meta.name,
                DECISION_INDEX: str(index),
                MANAGED_BY: OURS,
            }
            there = present.get(name)
            if there is None or not _is_right(there, wanted, labels, meta.uid):
                metadata = {"labels": labels, "ownerReferences": [owner_of(placement)]}
                body = {
                    "metadata": metadata,
                    "decisions": [_plain(one) for one in wanted],
                    "schedulerName": SCHEDULER,
                }
                puts.append(PutSlice(name, there.metadata if there is not None else None, body))
        surplus = sorted(present.keys() - names)
        return *puts, *(DropSlice(name, present[name].metadata) for name in surplus)

    def _decisions(self, namespace: str, page: PlacementDecision) -> tuple[ProfileDecision, ...]:
        listed = page.status.decisions if page.status is not None else None
        found: list[ProfileDecision] = []
        for one in listed or ():
            homes = self._homes.get(one.cluster_name)
            if homes:
                home = namespace if namespace in homes else min(homes)
                reference = ProfileReference(name=one.cluster_name, namespace=home)
                found.append(ProfileDecision(cluster_profile_ref=reference, reason=one.reason))
        return tuple(found)


def _is_right(
    there: DecisionSlice,
    wanted: tuple[ProfileDecision, ...],
    labels: Mapping[str, str],
    uid: str,
) -> bool:
    return (
        (there.decisions or ()) == wanted
        and there.scheduler_name == SCHEDULER
        and labels.items() <= there.metadata.labels.items()
        and any(one.uid == uid for one in there.metadata.owner_references)
    )


def _plain(one: ProfileDecision) -> dict[str, Any]:
    reference = one.cluster_profile_ref
    return {
        "clusterProfileRef": {"name": reference.name, "namespace": reference.namespace},
        **({"reason": one.reason} if one.reason else {}),
    }
