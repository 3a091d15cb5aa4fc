"""Events on objects, for people who use kubectl: what ``kubectl describe`` shows last.

An event is a courtesy: its caller never waits, and one that cannot be written is dropped and
counted rather than allowed to slow or crowd anything. The same reason again within minutes raises
the count of the event that is there and gives it the newest words. These are events of the core
group, since those of events.k8s.io do not let their words change.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.errors import (
    AlreadyExists,
    ApiError,
    KubernetesError,
    NotFound,
    ServerError,
    TooManyRequests,
)
from berthmaster.kubernetes.objects import Metadata, Object, timestamp
from berthmaster.kubernetes.resources import EVENTS, Resource
from berthmaster.runtime.log import LogLike

MAX_NOTE_BYTES: Final = 1024
MAX_WAITING: Final = 1000  # events that are not written yet
MAX_REMEMBERED: Final = 4000  # events whose count could still be raised
SAME_S: Final = 600.0  # so long after the last time it is the same event again
REPEAT_GAP_S: Final = 10.0  # between two writes of one event
WRITE_GAP_S: Final = 0.05  # between any two writes: 20 a second at most
WRITE_TIMEOUT_S: Final = 5.0
TRIES: Final = 3
FLUSH_S: Final = 2.0  # for what is left when the service stops
FIRST_PAUSE_S: Final = 0.5

EventKind = Literal["Normal", "Warning"]


class Subject(NamedTuple):
    """The object that an event is about."""

    resource: Resource
    metadata: Metadata


class _Key(NamedTuple):
    uid: str
    namespace: str
    name: str
    plural: str
    kind: EventKind
    reason: str


class Entry:
    """One event: what has been told, and how much of it is written."""

    def __init__(self, subject: Subject, key: _Key, at_s: float) -> None:
        self.subject = subject
        self.key = key
        self.kind = key.kind
        self.reason = key.reason
        self.note = ""
        self.count = 0
        self.first_at_s = at_s
        self.last_at_s = at_s
        self.due_s = at_s
        self.name = ""  # of the object that holds it; "" = none yet
        self.tries = 0


class EventQueue:
    """Which events are to be written, and when. Pure; all times are seconds since 1970."""

    def __init__(self) -> None:
        self._entries: dict[_Key, Entry] = {}  # the longest untouched first
        self._waiting: dict[_Key, Entry] = {}
        self.dropped = 0

    def tell(self, subject: Subject, kind: EventKind, reason: str, note: str, now_s: float) -> None:
        """Note that it happened now."""
        meta = subject.metadata
        key = _Key(meta.uid, meta.namespace, meta.name, subject.resource.plural, kind, reason)
        entry = self._entries.pop(key, None)
        if entry is None or now_s - entry.last_at_s > SAME_S:
            entry = Entry(subject, key, now_s)
        if key not in self._waiting and len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._entries[key] = entry
        self._waiting[key] = entry
        entry.note = cut(note)
        entry.count += 1
        entry.last_at_s = now_s
        while len(self._entries) > MAX_REMEMBERED:
            del self._entries[next(iter(self._entries))]

    def next_due_s(self) -> float | None:
        """When the next one is to be written; None while none is waiting."""
        return min((entry.due_s for entry in self._waiting.values()), default=None)

    def take(self, now_s: float) -> Entry | None:
        """One that is due, no longer waiting from now on."""
        for key, entry in self._waiting.items():
            if entry.due_s <= now_s:
                del self._waiting[key]
                entry.due_s = now_s + REPEAT_GAP_S
                return entry
        return None

    def failed(self, entry: Entry, now_s: float, pause_s: float) -> None:
        """It could not be written: wait and try again, up to a few times."""
        entry.tries += 1
        if entry.tries >= TRIES or len(self._waiting) >= MAX_WAITING:
            self.lost(entry)
            return
        entry.due_s = now_s + pause_s
        self._waiting.setdefault(entry.key, entry)

    def lost(self, entry: Entry) -> None:
        """It will not be written; told again, it is tried again."""
        entry.tries = 0
        self.dropped += 1

    def drop_all(self) -> int:
        """Give up on all that wait; how many those were."""
        left = len(self._waiting)
        self._waiting.clear()
        self.dropped += left
        return left


class Recorder:
    """Writes events of one reporter to one API server. ``run`` must run for anything to happen."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,  # such as berthmaster/multikueue
        instance: str,
        log: LogLike,
        now: Callable[[], float],
    ) -> None:
        """``now``: seconds since 1970."""
        self._client = client
        self._controller = controller
        self._instance = instance
        self._log = log
        self._now = now
        self._queue = EventQueue()
        self._some = asyncio.Event()
        self._ending = False
        self._serial = 0
        self._complained: set[str] = set()
        self.written = 0

    @property
    def dropped(self) -> int:
        """Events that were never written."""
        return self._queue.dropped

    def tell(self, subject: Subject, kind: EventKind, reason: str, note: str) -> None:
        """Have an event written soon; returns at once. ``reason`` is one word in CamelCase."""
        self._queue.tell(subject, kind, reason, note, self._now())
        self._some.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Write what is told until told to stop, and then what is left, for a moment."""
        writing = asyncio.create_task(self._write_for_ever(), name="events on objects")
        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({writing, stop}, return_when=asyncio.FIRST_COMPLETED)
            self._ending = True  # one that is being written shall be, not be made twice
            self._some.set()
            await asyncio.wait({writing}, timeout=FLUSH_S)
        finally:
            stop.cancel()
            writing.cancel()
            await asyncio.wait({writing, stop})
        if not writing.cancelled() and (error := writing.exception()) is not None:
            raise error
        if left := self._queue.drop_all():
            self._log.info("events not written, as the service stops", events=left)

    async def _write_for_ever(self) -> None:
        while True:
            entry = self._queue.take(self._now())
            if entry is not None:
                await self._write(entry)
                await asyncio.sleep(0 if self._ending else WRITE_GAP_S)
            elif self._ending:
                return
            else:
                await self._until_due()

    async def _until_due(self) -> None:
        """Until one is due or a new one is told, which is due at once."""
        self._some.clear()
        due_s = self._queue.next_due_s()
        limit_s = None if due_s is None else min(max(due_s - self._now(), 0.0), REPEAT_GAP_S)
        try:
            async with asyncio.timeout(limit_s):
                await self._some.wait()
        except TimeoutError:
            pass

    async def _write(self, entry: Entry) -> None:
        try:
            if not entry.name or not await self._raised(entry):
                await self._created(entry)
        except KubernetesError as error:
            again = not isinstance(error, ApiError) or isinstance(
                error, ServerError | TooManyRequests | AlreadyExists
            )
            if again:
                told_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
                self._queue.failed(entry, self._now(), told_s + FIRST_PAUSE_S * 2**entry.tries)
            else:
                self._queue.lost(entry)
            self._complain(type(error).__name__, str(error))
            return
        entry.tries = 0
        self.written += 1
        self._complained.clear()

    async def _raised(self, entry: Entry) -> bool:
        """Raise the count of the event that is there; false if it has expired."""
        path = EVENTS.path(namespace=_namespace(entry), name=entry.name)
        body = {
            "count": entry.count,
            "message": entry.note,
            "lastTimestamp": timestamp(entry.last_at_s),
        }
        try:
            await self._client.merge_patch(path, body, Object, timeout_s=WRITE_TIMEOUT_S)
        except NotFound:
            entry.name = ""
            entry.count = 1
            entry.first_at_s = entry.last_at_s
            return False
        return True

    async def _created(self, entry: Entry) -> None:
        self._serial += 1
        meta = entry.subject.metadata
        stamp = f"{int(entry.first_at_s * 1000):x}{self._serial:04x}"
        name = f"{meta.name[:200].rstrip('.-') or 'event'}.{stamp}"
        body = {
            "apiVersion": EVENTS.group_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": _namespace(entry)},
            "involvedObject": {
                "apiVersion": entry.subject.resource.group_version,
                "kind": entry.subject.resource.kind,
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "type": entry.kind,
            "reason": entry.reason,
            "message": entry.note,
            "count": entry.count,
            "firstTimestamp": timestamp(entry.first_at_s),
            "lastTimestamp": timestamp(entry.last_at_s),
            "source": {"component": self._controller},
            "reportingComponent": self._controller,
            "reportingInstance": self._instance[:128],
        }
        path = EVENTS.path(namespace=_namespace(entry))
        await self._client.create(path, body, Object, timeout_s=WRITE_TIMEOUT_S)
        entry.name = name

    def _complain(self, kind: str, why: str) -> None:
        """Once for each kind of failure, until one was written again."""
        if kind not in self._complained:
            self._complained.add(kind)
            self._log.warning("cannot write events on objects", why=why, dropped=self.dropped)


def _namespace(entry: Entry) -> str:
    """Events about objects without a namespace stand in "default", where kubectl looks."""
    return entry.subject.metadata.namespace or "default"


def cut(note: str) -> str:
    """At most 1 KiB of UTF-8, cut between characters."""
    data = note.encode(errors="replace")
    if len(data) <= MAX_NOTE_BYTES:
        return data.decode()
    return data[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
