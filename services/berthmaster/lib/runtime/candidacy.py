"""State machine of a lease: which replica may act, by the lease's record. Pure.

A replica holds the lease and acts, and the others stand by. The lease only reduces conflicts:
writes are guarded all the same. Records are stored in NATS or in a cluster
(lib/nats/stream_lease.py, lib/kube/api_lease.py). This machine is the same for both.

Example: a record has a ``ttl_s`` of 1.5 and moved last at 10.0 of a candidate's clock. At 11.5 the
candidate takes the lease.

- Clocks of different machines are never compared. A candidate measures, by its own monotonic clock,
  how long the record has not changed. An unchanged record is free after its ``ttl_s``.
- A holder counts time from before sending a write. Other replicas count from seeing the write, and
  thus from later. So the holder stops before another replica may take over.
- Each process run has a unique holder name, so a record under the name surely belongs to this run.
- A store accepts a write only over the version that was read (``Outdated`` otherwise).

::

    state      event                                     next state  next step
    CANDIDATE  timer                                     CANDIDATE   READ
    CANDIDATE  read: without a holder, own, or expired   CANDIDATE   TAKE
    CANDIDATE  read: another's                           CANDIDATE   REST
    CANDIDATE  written (gained)                          HOLDING     REST
    CANDIDATE  outdated: another replica was faster      CANDIDATE   REST
    HOLDING    timer                                     HOLDING     RENEW
    HOLDING    written                                   HOLDING     REST
    HOLDING    outdated: by an own write, or another's?  DOUBTING    READ
    DOUBTING   timer                                     DOUBTING    READ
    DOUBTING   read: own, the answer was lost            DOUBTING    RENEW
    DOUBTING   read: anything else (lost)                CANDIDATE   REST
    DOUBTING   written                                   HOLDING     REST
    DOUBTING   outdated                                  DOUBTING    REST
    either     expired (lost)                            CANDIDATE   REST
"""

from enum import Enum
from typing import NamedTuple


class LeaseState(Enum):
    """State of one replica. HOLDING and DOUBTING may act until their time expires."""

    CANDIDATE = "candidate"
    HOLDING = "holding"
    DOUBTING = "doubting"


class LeaseStep(Enum):
    """The next operation on the store."""

    READ = "read"
    TAKE = "take"
    RENEW = "renew"
    REST = "rest"


class Record(NamedTuple):
    """A lease as stored."""

    version: str
    holder: str  # "" = none: released, or in an unreadable form
    ttl_s: float = 0.0  # how long the holder may be silent
    epoch: int = 0  # grows each time a replica takes the lease


class Candidacy:
    """A replica's candidacy for a lease."""

    def __init__(self, holder: str, ttl_s: float) -> None:
        self.holder = holder
        self.ttl_s = ttl_s
        self.state = LeaseState.CANDIDATE
        self.record: Record | None = None  # as last seen
        self.until_s = 0.0  # expiry while the replica holds the lease
        self._moved_at_s = 0.0

    def held(self, now_s: float) -> bool:
        """Return whether this replica may act."""
        return self.state is not LeaseState.CANDIDATE and now_s < self.until_s

    def due(self, now_s: float) -> LeaseStep:
        if self.state is LeaseState.HOLDING and self.held(now_s):
            return LeaseStep.RENEW
        return LeaseStep.READ

    def on_read(self, record: Record | None, now_s: float) -> LeaseStep:
        """Handle a read record; None = no record."""
        self._saw(record, now_s)
        ours = record is not None and record.holder == self.holder
        if self.state is not LeaseState.CANDIDATE:
            if ours:
                return LeaseStep.RENEW
            self.state = LeaseState.CANDIDATE
            return LeaseStep.REST
        if record is None or ours or not record.holder:
            return LeaseStep.TAKE
        free_at_s = self._moved_at_s + max(record.ttl_s, self.ttl_s)
        return LeaseStep.TAKE if now_s >= free_at_s else LeaseStep.REST

    def on_written(self, record: Record, sent_at_s: float) -> LeaseStep:
        """Handle a stored write that was sent at ``sent_at_s``."""
        self._saw(record, sent_at_s)
        self.state = LeaseState.HOLDING
        self.until_s = sent_at_s + self.ttl_s
        return LeaseStep.REST

    def on_outdated(self) -> LeaseStep:
        """Handle a refused write: the store has another version."""
        if self.state is not LeaseState.HOLDING:
            return LeaseStep.REST
        self.state = LeaseState.DOUBTING
        return LeaseStep.READ

    def on_time(self, now_s: float) -> bool:
        """Return whether a holder has just lost the lease, because its time expired."""
        if self.state is LeaseState.CANDIDATE or now_s < self.until_s:
            return False
        self.state = LeaseState.CANDIDATE
        return True

    def _saw(self, record: Record | None, now_s: float) -> None:
        before = self.record
        if record is None or before is None or record.version != before.version:
            self._moved_at_s = now_s
        self.record = record
