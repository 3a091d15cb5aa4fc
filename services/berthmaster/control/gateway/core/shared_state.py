"""What all conversations of one gateway share: the view, the queues, the limits. Pure.

**Dependencies.** Jobs that wait for others of their tenant: which may, and when they have. Pure.

What a job waits for must have been submitted before it: so no circle can be made. Whether it has
waited is an event of the log (``released``), which deciders wait for; they remember no endings, and
repeat decisions from the log alone. Where what it waits for can no longer come about, it is
cancelled, and the reason names the other.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from berthmaster.control.gateway.core.workload_index import WorkloadIndex
from berthmaster.lib.lifecycle.states import ENDED, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.explain import invalid, nearest, shorten
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.workload import Dependency, JobRequest
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN
from berthmaster.lib.requests.queues import NO_QUEUES

TRY_EVERY_S: Final = 5.0  # a try takes up to the settle limit


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the core bounds itself by; the service's settings say why these defaults."""

    max_in_flight: int = 1024  # conversations at once
    max_tries: int = 8  # of one change whose workload keeps moving
    max_open_of_tenant: int = 100_000
    full_share: float = 0.9  # of the log's size limit, from which no submit is taken
    cordon_after: int = 3  # workloads that ended badly on a node; 0 = never
    cordon_within_s: float = 3600.0  # in which so many workloads ended badly on one node
    keep_ended_s: float = 30 * 86_400.0  # as long as tombstones are kept
    max_ended: int = 500_000  # workloads that have ended and are remembered


class SharedState:
    """State that outlives a conversation."""

    def __init__(self, by: str, limits: Limits) -> None:
        self.by = by
        self.limits = limits
        self.view = WorkloadIndex()
        self.caught_up = False
        self.is_full = False
        self.trouble = ""  # why nothing that is written is stored
        self._next_try_s = 0.0
        self.damage = ""  # of the logs: nothing is changed meanwhile
        self.queues: dict[str, QueueSetting] = dict(NO_QUEUES)
        self.queues_known = False
        self.runtimes: dict[str, RuntimeSetting] = dict(BUILT_IN)
        self._queue_sequences: dict[str, int] = {}
        self._runtime_sequences: dict[str, int] = {}
        self.followed_to = 0  # last sequence of the log that the view has
        self._ahead: dict[Key, int] = {}  # what we wrote and the view has not seen: its sequence

    def set_queue(self, setting: QueueSetting, sequence: int) -> None:
        """The newest setting of a queue counts, in whatever order they are heard of."""
        if sequence > self._queue_sequences.get(setting.queue, 0):
            self._queue_sequences[setting.queue] = sequence
            self.queues[setting.queue] = setting

    def set_runtime(self, setting: RuntimeSetting, sequence: int) -> None:
        """The same of a runtime."""
        if sequence > self._runtime_sequences.get(setting.runtime, 0):
            self._runtime_sequences[setting.runtime] = sequence
            self.runtimes[setting.runtime] = setting

    def nearest_tenant(self, name: str) -> str:
        """Whom an operator may have meant by a tenant that nothing is known of; "" = nobody."""
        known = self.view.tenants | {each for one in self.queues.values() for each in one.tenants}
        return "" if name in known else nearest(name, sorted(known))

    def set_trouble(self, trouble: str, now_s: float) -> None:
        """What became of the last writes: "" if they were stored."""
        if trouble and not self.trouble:
            self._next_try_s = now_s + TRY_EVERY_S
        self.trouble = trouble

    def refuses(self, now_s: float) -> str:
        """Why a write is not even tried; "" = it is. In trouble one is tried now and then: only
        that can tell that it is over."""
        if self.trouble and now_s < self._next_try_s:
            return self.trouble
        self._next_try_s = now_s + TRY_EVERY_S
        return ""

    def list_queues(self) -> None:
        """Whatever is told now is at least as new as what is known."""
        self._queue_sequences.clear()
        self._runtime_sequences.clear()

    def certain(self, tenant: str, workload_id: str) -> Workload | None:
        """An open workload, if the view is up to date with all that we wrote about it ourselves."""
        if not self.caught_up or (self._ahead and key(tenant, workload_id) in self._ahead):
            return None
        return self.view.find(tenant, workload_id)

    def wrote(self, tenant: str, workload_id: str, sequence: int) -> None:
        """We stored an event: whoever asks next must not get an older answer."""
        if sequence > self.followed_to:
            self._ahead[key(tenant, workload_id)] = sequence

    def followed(self, sequence: int) -> None:
        self.followed_to = sequence
        if self._ahead:
            for name in [k for k, written in self._ahead.items() if written <= sequence]:
                del self._ahead[name]

    def restart(self) -> None:
        """The log is another one: forget what was read of the old."""
        self.view = WorkloadIndex()
        self.caught_up = False
        self.followed_to = 0
        self._ahead.clear()


class Waiting:
    """Who waits for whom, for what an ending sets going."""

    def __init__(self) -> None:
        self._behind: dict[Key, dict[Key, None]] = {}

    def follow(self, work: Workload) -> list[Key]:
        """A workload changed: those that are to be looked at now."""
        found: list[Key] = []
        if work.ended:
            found += self._behind.pop(work.key, {})
        if work.state is State.QUEUED and work.depends and work.request is not None:
            for other in work.request.depends_on:
                self._behind.setdefault(key(work.tenant, other.id), {})[work.key] = None
            found.append(work.key)
        return found


def order_refusal(request: JobRequest, via: str) -> Refusal | None:
    """What is wrong with whom a request waits for, whoever there is."""
    for at, other in enumerate(request.depends_on):
        if other.id == request.id:
            right = "another job: one that waits for itself, in a circle, never begins"
            return invalid(["depends_on", at, "id"], other.id, right)
    if via == "hub" and request.set_at_most is not None:
        right = (
            "nothing: the jobs of this queue are ordered by the hub's Kueue (via hub), whose quota "
            "bounds how many run; a queue that is direct or via worker keeps it"
        )
        return invalid(["set_at_most"], request.set_at_most, right)
    if request.set_at_most is not None and not request.set:
        return invalid(["set_at_most"], request.set_at_most, "a set that it is a bound of (set)")
    return None


def unknown(shared: SharedState, tenant: str, others: Sequence[Dependency]) -> list[int]:
    """Which of those it waits for this gateway does not know, or remembers no more, by their
    places: their stories tell."""
    view = shared.view
    return [
        at
        for at, other in enumerate(others)
        if view.find(tenant, other.id) is None and view.ended_state(tenant, other.id) is None
    ]


def unknown_refusal(at: int, workload_id: str) -> Refusal:
    """Nothing of that name is there, for this tenant."""
    return Refusal(
        code="not_found",
        field=f"depends_on[{at}].id",
        value=shorten(workload_id),
        expected="the id of a workload of this tenant that was submitted before",
    )


def stands(shared: SharedState, work: Workload, read: Mapping[str, State]) -> tuple[bool, str]:
    """(whether all that it waits for has come about, why it no longer can). ``read``: how the
    unknown ones stand; NEW is one of which log and archive have nothing any more, so that it has
    ended, and nobody knows how."""
    all_done = True
    for other in work.request.depends_on if work.request is not None else ():
        state = shared.view.ended_state(work.tenant, other.id) or read.get(other.id)
        if state is None or (state not in ENDED and state is not State.NEW):
            all_done = False
        elif other.until == "succeeded" and state is State.NEW:
            return False, f"it depends on {other.id}, which was to succeed and is no longer known"
        elif other.until == "succeeded" and state is not State.SUCCEEDED:
            verb = "was cancelled" if state is State.CANCELLED else "failed"
            return False, f"it depends on {other.id}, which {verb} and was to succeed"
    return all_done, ""
