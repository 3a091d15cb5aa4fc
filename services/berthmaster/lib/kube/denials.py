"""Whether a refused write concerns the object or the cluster, and how long to retry a 403. Pure.

An API server that has just started authorizes requests before its Roles and bindings are loaded.
Such a server denies allowed requests for a moment. Without retries, each restart would move jobs to
other clusters. With endless retries, a missing Role would never be reported.

Rules:

- Refusals of the same write in the same namespace form a series. A series begins with the first
  refusal after a success, and is forgotten ``FORGOTTEN_S`` after its last refusal.
- Within ``GRACE_S`` of the first refusal the caller retries, each time after twice the pause. Later
  a refusal is final until the same write succeeds once.
- Only refusals of the authorizer are retried. A quota or an admission webhook that answers 403 has
  checked the object, so the refusal is final at once.
- A refusal concerns the object if the API server or an admission policy found a fault in the
  object. No retry and no other cluster can help. Examples: 422 Invalid, or a 403 with ``admission
  webhook "x" denied the request: …``.
- Any other refusal concerns the cluster: quota, rights, a terminating namespace, a kind that is not
  served, a 400 of a proxy, or a webhook whose message names a queue or quota. Example: Volcano's
  webhook when the queue is closed.
"""

import re
from collections.abc import Hashable
from typing import Final

from berthmaster.lib.kube.errors import ApiError, Forbidden

GRACE_S: Final = 8.0  # test servers take up to 2 s, large ones longer; operators notice a minute
FIRST_PAUSE_S: Final = 0.25
FORGOTTEN_S: Final = 60.0  # longer than any pause between two tries of the same write
# ValidatingAdmissionPolicy's message: … with binding 'y' denied request: …
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
    """The open series of refusals."""

    def __init__(self) -> None:
        self._series: dict[Hashable, tuple[float, float]] = {}  # times of first and last refusal

    def allowed(self, what: Hashable) -> None:
        """End the series: the write succeeded, or was refused for another reason than rights."""
        self._series.pop(what, None)

    def pause_s(self, what: Hashable, error: Forbidden, now_s: float) -> float | None:
        """Record a refusal. Return the pause before a retry, or None if the refusal is final."""
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
    """Return whether the authorizer refused the request, not an object check."""
    return _AUTHORIZER in error.message and not is_about_object(error)


def is_about_object(error: ApiError) -> bool:
    """Return whether the API server or a policy refused the object for its own sake."""
    if _DENIED.search(error.message):
        return error.status in _BY_POLICIES and not _OF_CLUSTER.search(error.message)
    # Without a reason, the answer is a proxy's page, not a Status of an API server.
    return error.status in _FAULTS_OF_OBJECTS and bool(error.reason)
