"""Why a mirror of a resource may be old: the faults of its lists and watches.

Example: the server answers 404 at 10 s and refuses connections from 20 s on. At 30 s ``reason``
names the refused connection, ``since_s`` is 10, and ``absent_for_s`` is 20, since a server that
cannot be reached takes nothing back.
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
        self.since_s = 0.0  # the first failure; 0 = no fault
        self.error: KubernetesError | None = None  # the last one
        self.is_unanswered = False  # the server is away, broken, or no API server
        self._resource = resource
        self._log = log
        self._logged: set[type[KubernetesError]] = set()
        self._absent_since_s: float | None = None
        self._denied_since_s: float | None = None

    @property
    def is_absent(self) -> bool:
        """Whether the server says that it does not serve the resource."""
        return self._absent_since_s is not None

    def absent_for_s(self, now_s: float) -> float:
        """Return how long the server has said so; 0 while it does not. Believe it after ``SURE_S``.

        A later server that cannot be reached, or refuses us, takes nothing back.
        """
        return now_s - self._absent_since_s if self._absent_since_s is not None else 0.0

    def denied_for_s(self, now_s: float) -> float:
        """Return how long the server has denied access; 0 while it answers anything else."""
        return now_s - self._denied_since_s if self._denied_since_s is not None else 0.0

    def add(self, error: KubernetesError) -> None:
        """Note a failed list or watch."""
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
        # A first failure is mostly over before an operator could look. Each kind is logged once.
        if self.count > 1 and type(error) not in self._logged:
            self._logged.add(type(error))
            self._log.warning("mirroring failed", resource=self._resource.plural, why=self.reason)

    def clear(self) -> None:
        """A list or a watch succeeded. ``count`` stays: only a watch that lasts resets it."""
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
