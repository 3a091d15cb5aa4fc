"""Who may act while a lease says so: a state machine over what the lease's store shows. Pure.

One holder acts, the others stand by. The lease keeps the peace; writes stay guarded all the same.
Stores differ (lib/nats/stream_lease.py, lib/kube/api_lease.py), this machine is the same for all.

Rules of this file:

- No clock is compared with another machine's. Whoever waits measures, on its own monotonic clock,
  how long the record has not moved; a record that stood still for as long as it promised is free.
- A holder counts from before it sent its write, others from when they see it, which is later: so
  the holder stops by itself before anybody may take over.
- Each life has a holder's name of its own, so a record of ours is surely ours.
- A store takes a write only over the version that was read (``Outdated`` otherwise).

==========  ==================================  ==========  =======
state       what happens                        next state  next step
==========  ==================================  ==========  =======
CANDIDATE   it is time                          CANDIDATE   READ
CANDIDATE   read: nobody's, ours or old         CANDIDATE   TAKE
CANDIDATE   read: another's                     CANDIDATE   REST
CANDIDATE   written (gained)                    HOLDING     REST
CANDIDATE   outdated: somebody was quicker      CANDIDATE   REST
HOLDING     it is time                          HOLDING     RENEW
HOLDING     written                             HOLDING     REST
HOLDING     outdated: by us, or by a thief?     DOUBTING    READ
DOUBTING    it is time                          DOUBTING    READ
DOUBTING    read: ours, the answer was lost     DOUBTING    RENEW
DOUBTING    read: anything else (lost)          CANDIDATE   REST
DOUBTING    written                             HOLDING     REST
DOUBTING    outdated                            DOUBTING    REST
either      its time is over (lost)             CANDIDATE   REST
==========  ==================================  ==========  =======
"""

from enum import Enum
from typing import NamedTuple


class LeaseState(Enum):
    """What one replica is; both that hold may act until their time is over."""

    CANDIDATE = "candidate"
    HOLDING = "holding"
    DOUBTING = "doubting"


class LeaseStep(Enum):
    """What is to be done with the store now."""

    READ = "read"
    TAKE = "take"
    RENEW = "renew"
    REST = "rest"


class Record(NamedTuple):
    """A lease as its store has it."""

    version: str
    holder: str  # "" = nobody's: given back, or in a form that nobody can renew
    ttl_s: float = 0.0  # so long the holder may be silent
    epoch: int = 0  # grows whenever it is taken


class Candidacy:
    """One replica's part in one lease."""

    def __init__(self, holder: str, ttl_s: float) -> None:
        self.holder = holder
        self.ttl_s = ttl_s
        self.state = LeaseState.CANDIDATE
        self.record: Record | None = None  # as last seen
        self.until_s = 0.0  # while it holds
        self._moved_at_s = 0.0

    def held(self, now_s: float) -> bool:
        """Whether this replica may act."""
        return self.state is not LeaseState.CANDIDATE and now_s < self.until_s

    def due(self, now_s: float) -> LeaseStep:
        if self.state is LeaseState.HOLDING and self.held(now_s):
            return LeaseStep.RENEW
        return LeaseStep.READ

    def on_read(self, record: Record | None, now_s: float) -> LeaseStep:
        """What the store shows; None = there is no record."""
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
        """The store took our write, which was sent then."""
        self._saw(record, sent_at_s)
        self.state = LeaseState.HOLDING
        self.until_s = sent_at_s + self.ttl_s
        return LeaseStep.REST

    def on_outdated(self) -> LeaseStep:
        """The store has another version than the one we wrote over."""
        if self.state is not LeaseState.HOLDING:
            return LeaseStep.REST
        self.state = LeaseState.DOUBTING
        return LeaseStep.READ

    def on_time(self, now_s: float) -> bool:
        """Whether a holder has just lost it, because its time is over."""
        if self.state is LeaseState.CANDIDATE or now_s < self.until_s:
            return False
        self.state = LeaseState.CANDIDATE
        return True

    def _saw(self, record: Record | None, now_s: float) -> None:
        before = self.record
        if record is None or before is None or record.version != before.version:
            self._moved_at_s = now_s
        self.record = record
