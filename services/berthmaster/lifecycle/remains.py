"""What whoever follows the log remembers of lives whose beginning it has not any more.

Nothing of them is open; but by what is left of them an ending may have lost its race, and it may
say whose the last attempt is (``Rest``): by either a stranger's word of its end is void. Bounded:
few stories are being removed at any moment, and a damaged log has lost few beginnings.
"""

from collections import OrderedDict
from typing import Final

from berthmaster.lifecycle.workload import Key, Workload, key

MAX_REMAINS: Final = 10_000


class Remains:
    def __init__(self) -> None:
        self._known: OrderedDict[Key, Workload] = OrderedDict()

    def take(self, tenant: str, workload_id: str) -> Workload:
        """What is known of a workload that is not open: perhaps nothing."""
        known = self._known.pop(key(tenant, workload_id), None) if self._known else None
        return known or Workload(tenant=tenant, id=workload_id)

    def keep(self, workload: Workload) -> None:
        """An event of it was folded, and it is not open."""
        self._known[workload.key] = workload
        if len(self._known) > MAX_REMAINS:
            self._known.popitem(last=False)
