"""Owners of pods up to the top: known ones, and ones to read. Pure.

Owners of an object are immutable, so each is read once. At an unreadable or missing owner the chain
ends with the reference.
"""

from collections import OrderedDict
from typing import Final

from berthmaster.lib.kube.objects import OwnerReference
from berthmaster.worker.job_metrics.core.instructions import FindOwner
from berthmaster.worker.job_metrics.core.pods import Owner

MAX_KNOWN: Final = 50_000
MAX_DEPTH: Final = 10  # Pod, Job, JobSet, TrainJob, Workflow …: more is a circle


class Owners:
    """All requested owners."""

    def __init__(self) -> None:
        # uid -> its own owner; None = none, or unreadable
        self._above: OrderedDict[str, OwnerReference | None] = OrderedDict()
        self._asked: dict[str, None] = {}

    def chain(
        self, reference: OwnerReference | None
    ) -> tuple[tuple[Owner, ...], OwnerReference | None]:
        """Return the known owners, nearest first, and the one to read next."""
        found: list[Owner] = []
        while reference is not None and len(found) < MAX_DEPTH:
            found.append(Owner(reference.kind, reference.name, reference.uid))
            if reference.uid not in self._above:
                return tuple(found), reference
            self._above.move_to_end(reference.uid)
            reference = self._above[reference.uid]
        return tuple(found), None

    def ask(self, namespace: str, reference: OwnerReference) -> list[FindOwner]:
        """Return the read, unless already pending."""
        if reference.uid in self._asked:
            return []
        self._asked[reference.uid] = None
        return [FindOwner(namespace, reference)]

    def learn(self, uid: str, above: OwnerReference | None) -> None:
        """Store an answer of the API server."""
        self._asked.pop(uid, None)
        self._above[uid] = above
        if len(self._above) > MAX_KNOWN:
            self._above.popitem(last=False)

    def unanswered(self, uid: str) -> None:
        """Forget a failed read, to repeat it."""
        self._asked.pop(uid, None)
