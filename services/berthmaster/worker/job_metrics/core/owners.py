"""Who stands above pods, up to the top: what is known of it, and what must be asked. Pure.

An object's owners do not change, so each is read once. Where the API server does not let us read
one, or lacks it, the chain ends there: the reference to it has said what it is.
"""

from collections import OrderedDict
from typing import Final

from berthmaster.lib.kube.objects import OwnerReference
from berthmaster.worker.job_metrics.core.instructions import FindOwner
from berthmaster.worker.job_metrics.core.pods import Owner

MAX_KNOWN: Final = 50_000
MAX_DEPTH: Final = 10  # Pod, Job, JobSet, TrainJob, Workflow …: more is a circle


class Owners:
    """All owners that were asked for."""

    def __init__(self) -> None:
        # uid -> its own owner; None = it has none, or nobody can say
        self._above: OrderedDict[str, OwnerReference | None] = OrderedDict()
        self._asked: dict[str, None] = {}

    def chain(
        self, reference: OwnerReference | None
    ) -> tuple[tuple[Owner, ...], OwnerReference | None]:
        """The owners as far as they are known, the nearest first, and which is to be asked for."""
        found: list[Owner] = []
        while reference is not None and len(found) < MAX_DEPTH:
            found.append(Owner(reference.kind, reference.name, reference.uid))
            if reference.uid not in self._above:
                return tuple(found), reference
            self._above.move_to_end(reference.uid)
            reference = self._above[reference.uid]
        return tuple(found), None

    def ask(self, namespace: str, reference: OwnerReference) -> list[FindOwner]:
        """Nothing if it was asked for and not answered yet."""
        if reference.uid in self._asked:
            return []
        self._asked[reference.uid] = None
        return [FindOwner(namespace, reference)]

    def learn(self, uid: str, above: OwnerReference | None) -> None:
        """What the API server said."""
        self._asked.pop(uid, None)
        self._above[uid] = above
        if len(self._above) > MAX_KNOWN:
            self._above.popitem(last=False)

    def unanswered(self, uid: str) -> None:
        """It did not say: it will be asked again."""
        self._asked.pop(uid, None)
