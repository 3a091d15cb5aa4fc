"""State that all conversations of one gateway share: the index, the queues, the limits. Pure.

**Dependencies.** A job may wait for other jobs of its tenant. Example: ``train`` depends on
``prepare`` until succeeded. When ``prepare`` succeeds, the gateway writes ``released`` for
``train``. If ``prepare`` fails, the gateway cancels ``train``, and the reason names ``prepare``.

A job may only depend on jobs submitted before, so no cycle is possible. ``released`` is an event
because deciders remember no endings and repeat their decisions from the log alone.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from berthmaster.control.gateway.core.trial_watch import Trials
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
    """Bounds of the core. The service's settings give the reasons for these defaults."""

    max_in_flight: int = 1024  # conversations at once
    max_tries: int = 8  # maximum tries of one change to a workload with concurrent changes
    max_open_of_tenant: int = 100_000
    full_share: float = 0.9  # fraction of the log's size limit above which submits are refused
    cordon_after: int = 3  # workloads with a bad ending on a node before its cordon, 0 means never
    cordon_within_s: float = 3600.0  # period in which these bad endings count
    keep_ended_s: float = 30 * 86_400.0  # retention of tombstones
    max_ended: int = 500_000  # maximum remembered ended workloads


class SharedState:
    """State that outlives a conversation."""

    def __init__(self, by: str, limits: Limits) -> None:
        self.by = by
        self.limits = limits
        self.view = WorkloadIndex()
        self.caught_up = False
        self.is_full = False
        self.trouble = ""  # why writes are not stored, "" if they are
        self._next_try_s = 0.0
        self.damage = ""  # damage of the logs, "" if sound. Damage stops all changes
        self.queues: dict[str, QueueSetting] = dict(NO_QUEUES)
        self.queues_known = False
        self.runtimes: dict[str, RuntimeSetting] = dict(BUILT_IN)
        self._queue_sequences: dict[str, int] = {}
        self._runtime_sequences: dict[str, int] = {}
        self.followed_to = 0  # last log sequence in the index
        self.trials = Trials()
        self._ahead: dict[Key, int] = {}  # last sequence we wrote that the index does not have yet

    def set_queue(self, setting: QueueSetting, sequence: int) -> None:
        """Keep the newest setting of a queue, in any order of arrival."""
        if sequence > self._queue_sequences.get(setting.queue, 0):
            self._queue_sequences[setting.queue] = sequence
            self.queues[setting.queue] = setting

    def set_runtime(self, setting: RuntimeSetting, sequence: int) -> None:
        """Keep the newest setting of a runtime, in any order of arrival."""
        if sequence > self._runtime_sequences.get(setting.runtime, 0):
            self._runtime_sequences[setting.runtime] = sequence
            self.runtimes[setting.runtime] = setting

    def nearest_tenant(self, name: str) -> str:
        """Return the known tenant most similar to an unknown name, or ""."""
        known = self.view.tenants | {each for one in self.queues.values() for each in one.tenants}
        return "" if name in known else nearest(name, sorted(known))

    def set_trouble(self, trouble: str, now_s: float) -> None:
        """Set the reason why the last writes were not stored, "" if they were."""
        if trouble and not self.trouble:
            self._next_try_s = now_s + TRY_EVERY_S
        self.trouble = trouble

    def refuses(self, now_s: float) -> str:
        """Return why a write is not tried, or "". During trouble one write is tried every
        ``TRY_EVERY_S``, because only a write shows the end of the trouble.
        """
        if self.trouble and now_s < self._next_try_s:
            return self.trouble
        self._next_try_s = now_s + TRY_EVERY_S
        return ""

    def list_queues(self) -> None:
        """Accept the settings that follow as at least as new as the known ones."""
        self._queue_sequences.clear()
        self._runtime_sequences.clear()

    def certain(self, tenant: str, workload_id: str) -> Workload | None:
        """Return an open workload if the index has all our own events about the workload."""
        if not self.caught_up or (self._ahead and key(tenant, workload_id) in self._ahead):
            return None
        return self.view.find(tenant, workload_id)

    def wrote(self, tenant: str, workload_id: str, sequence: int) -> None:
        """Note a stored event of ours, so that no later request gets an older answer."""
        if sequence > self.followed_to:
            self._ahead[key(tenant, workload_id)] = sequence

    def followed(self, sequence: int) -> None:
        self.followed_to = sequence
        if self._ahead:
            for name in [k for k, written in self._ahead.items() if written <= sequence]:
                del self._ahead[name]

    def restart(self) -> None:
        """Forget all events of the old log after its replacement."""
        self.view = WorkloadIndex()
        self.caught_up = False
        self.followed_to = 0
        self.trials = Trials()
        self._ahead.clear()


class Waiting:
    """Jobs that wait for other jobs, by the job they depend on."""

    def __init__(self) -> None:
        self._behind: dict[Key, dict[Key, None]] = {}

    def follow(self, work: Workload) -> list[Key]:
        """Follow a changed workload and return the workloads to check now."""
        found: list[Key] = []
        if work.ended:
            found += self._behind.pop(work.key, {})
        if work.state is State.QUEUED and work.depends and work.request is not None:
            for other in work.request.depends_on:
                self._behind.setdefault(key(work.tenant, other.id), {})[work.key] = None
            found.append(work.key)
        return found


def order_refusal(request: JobRequest, via: str) -> Refusal | None:
    """Return a refusal of a request's own dependencies or set, without a look at other jobs."""
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
    """Return the positions of dependencies unknown to this gateway, or no longer remembered. Event
    histories give their states.
    """
    view = shared.view
    return [
        at
        for at, other in enumerate(others)
        if view.find(tenant, other.id) is None and view.ended_state(tenant, other.id) is None
    ]


def unknown_refusal(at: int, workload_id: str) -> Refusal:
    """Return a refusal: this tenant has no such workload."""
    return Refusal(
        code="not_found",
        field=f"depends_on[{at}].id",
        value=shorten(workload_id),
        expected="the id of a workload of this tenant that was submitted before",
    )


def stands(shared: SharedState, work: Workload, read: Mapping[str, State]) -> tuple[bool, str]:
    """Return whether all dependencies are met, and why they can no longer be. ``read`` has the
    states of unknown dependencies. NEW means ended in an unknown way: neither log nor archive has
    any event.
    """
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
