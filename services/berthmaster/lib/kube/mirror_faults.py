"""Why a mirror of a resource may be stale: failed lists and watches.

Example: the server answers 404 at 10 s and refuses connections from 20 s on. At 30 s ``reason``
names the refused connection, ``since_s`` is 10, and ``absent_for_s`` is 20, because an unreachable
server does not revoke its earlier answer.
"""

import asyncio

from berthmaster.lib.kube.errors import (
    NO_ANSWER,
    Forbidden,
    KubernetesError,
    NotFound,
    Unauthorized,
)
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.runtime.log import LogLike


class MirrorFaults:
    """The faults of one mirror since its last success. Times are those of the event loop."""

    def __init__(self, resource: Resource, log: LogLike) -> None:
        self.count = 0  # failures in a row
        self.reason = ""  # for operators; "" = no fault
        self.since_s = 0.0  # time of the first failure; 0 = no fault
        self.error: KubernetesError | None = None  # of the last failure
        self.is_unanswered = False  # the server is unreachable, broken, or no API server
        self._resource = resource
        self._log = log
        self._logged: set[type[KubernetesError]] = set()
        self._absent_since_s: float | None = None
        self._denied_since_s: float | None = None

    @property
    def is_absent(self) -> bool:
        """Return whether the server reports that the resource is not served."""
        return self._absent_since_s is not None

    def absent_for_s(self, now_s: float) -> float:
        """Return how long the server has reported the resource as not served, 0 if served.

        Rely on the answer after ``SURE_S``. A later failure to connect, or a denial, does not
        revoke the answer.
        """
        return now_s - self._absent_since_s if self._absent_since_s is not None else 0.0

    def denied_for_s(self, now_s: float) -> float:
        """Return how long the server has denied access; 0 while it answers anything else."""
        return now_s - self._denied_since_s if self._denied_since_s is not None else 0.0

    def add(self, error: KubernetesError) -> None:
        """Record a failed list or watch."""
        self.count += 1
        self.is_unanswered = isinstance(error, NO_ANSWER)
        now_s = asyncio.get_running_loop().time()
        if isinstance(error, NotFound) and self._absent_since_s is None:
            self._absent_since_s = now_s
        if not isinstance(error, Forbidden):
            self._denied_since_s = None
        elif self._denied_since_s is None:
            self._denied_since_s = now_s
        self.reason, self.error = self._reason(error), error
        self.since_s = self.since_s or now_s
        # Most first failures end before an operator could react. Each kind is logged once.
        if self.count > 1 and type(error) not in self._logged:
            self._logged.add(type(error))
            self._log.warning("mirroring failed", resource=self._resource.plural, why=self.reason)

    def clear(self) -> None:
        """Record a success. ``count`` stays, because only a lasting watch resets the count."""
        self.reason, self.error, self.since_s = "", None, 0.0
        self.is_unanswered = False
        self._absent_since_s = self._denied_since_s = None
        if self._logged:
            self._logged.clear()
            self._log.info("mirroring resumed", resource=self._resource.plural)

    def _reason(self, error: KubernetesError) -> str:
        resource = self._resource
        if isinstance(error, NotFound):
            return f"{resource.plural} of {resource.group_version} are not served here"
        if isinstance(error, Forbidden):
            return f"not allowed: {error.message or 'list and watch'} ({resource.plural})"
        if isinstance(error, Unauthorized):
            return f"the API server does not know these credentials ({resource.plural})"
        return str(error)
