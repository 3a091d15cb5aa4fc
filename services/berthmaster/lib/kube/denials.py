"""Whose a refusal is, and how long a 403 is worth another try. Pure: time is passed in.

An API server that has just started authorizes before it has read every Role and binding, and so
refuses for a moment what it will allow. Taken at its word, each restart would give jobs away and
leave others waiting; believed never, a missing Role would be asked about for ever.

Rules of this file:

- A series of refusals belongs to what was asked for (a write and its namespace), begins with the
  first refusal after a success and is forgotten when nothing was refused for a while.
- Within ``GRACE_S`` of its beginning a refusal is to be tried again, each time after twice as long;
  after that it is the last word, until the same is allowed once.
- Only what the authorizer refuses is doubtful. A quota or an admission webhook that says 403 has
  looked at the object: that is final at once.
- A refusal is about the object if the API server or an admission policy found a fault in the object
  itself: then no other try, and no other cluster, is asked. Examples: 422 Invalid, a 403 with
  ``admission webhook "x" denied the request: …``. A refusal is about the cluster in all other
  cases: quota, rights, a namespace that terminates, a kind that is not served, a 400 of a proxy, a
  webhook that speaks of a queue or quota (Volcano's does where its queue is closed).
"""

import re
from collections.abc import Hashable
from typing import Final

from berthmaster.lib.kube.errors import ApiError, Forbidden

GRACE_S: Final = 8.0  # servers of tests take up to 2 s, large ones longer; people notice a minute
FIRST_PAUSE_S: Final = 0.25
FORGOTTEN_S: Final = 60.0  # longer than anybody pauses between two tries of the same
# Beside a webhook, ValidatingAdmissionPolicy says: … with binding 'y' denied request: …
_DENIED: Final = re.compile(
    r'admission webhook ".*?" denied the request'
    r"|ValidatingAdmissionPolicy '.*?' .*?denied request",
    re.DOTALL,
)
_OF_CLUSTER: Final = re.compile(r"(?i)queue|quota")
_FAULTS_OF_OBJECTS: Final = (400, 413, 422)
_BY_POLICIES: Final = (400, 401, 403, 413, 422)  # statuses that a policy may choose
_AUTHORIZER: Final = 'User "'  # `jobs.batch is forbidden: User "x" cannot create resource …`


class Denials:
    """What is refused now, and since when."""

    def __init__(self) -> None:
        self._series: dict[Hashable, tuple[float, float]] = {}  # first and last refusal

    def allowed(self, what: Hashable) -> None:
        """It was done, or refused for another reason than rights."""
        self._series.pop(what, None)

    def pause_s(self, what: Hashable, error: Forbidden, now_s: float) -> float | None:
        """Refused: after how long to try again, or None if that is the last word."""
        if not by_authorizer(error):
            self.allowed(what)
            return None
        since_s, last_s = self._series.get(what, (now_s, now_s))
        if now_s - last_s > FORGOTTEN_S:
            since_s = now_s
        self._series[what] = (since_s, now_s)
        gone_s = now_s - since_s
        return max(FIRST_PAUSE_S, gone_s) if gone_s < GRACE_S else None


def by_authorizer(error: Forbidden) -> bool:
    """Whether rights were missing, rather than that the object itself was refused."""
    return _AUTHORIZER in error.message and not is_about_object(error)


def is_about_object(error: ApiError) -> bool:
    """Return whether the API server or a policy refused the object for its own sake."""
    if _DENIED.search(error.message):
        return error.status in _BY_POLICIES and not _OF_CLUSTER.search(error.message)
    # Without a reason, the answer is no Status of an API server but a proxy's page.
    return error.status in _FAULTS_OF_OBJECTS and bool(error.reason)
