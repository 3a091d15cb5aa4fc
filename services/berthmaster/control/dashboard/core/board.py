"""The page's state as documents by key, each with the version of its last change. Pure.

Example: at version 7 the documents are fleet (changed at 7) and cluster/a (at 5). A reader with
cursor 5 gets only fleet, a reader with cursor 0 gets both, and a reader with cursor 7 gets nothing.

A reader's cursor is the version up to which the reader has read. The next update has every document
that changed since then, in its current state. A cursor is the only state of a reader. A slow reader
skips versions, and a reconnected reader sends its cursor.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

MAX_GONE: Final = 10_000  # removed keys, remembered for disconnected readers
MAX_CACHED: Final = 64  # different updates of one version


class Audience(NamedTuple):
    watchers: bool  # users with access to all tenants
    tenants: frozenset[str] | None  # tenants with access, None for any


ALL: Final = Audience(True, None)
WATCHERS: Final = Audience(True, frozenset())


def tenant_alone(tenant: str) -> Audience:
    """Return the audience of a tenant's own document. Users with access to all tenants have a
    document of all tenants instead.
    """
    return Audience(False, frozenset((tenant,)))


class Scope(NamedTuple):
    everything: bool
    tenants: frozenset[str] = frozenset()

    def sees(self, audience: Audience) -> bool:
        if self.everything:
            return audience.watchers
        return audience.tenants is None or not self.tenants.isdisjoint(audience.tenants)

    def sees_tenant(self, tenant: str) -> bool:
        return self.everything or tenant in self.tenants


class _Document(NamedTuple):
    version: int
    audience: Audience
    body: bytes


class Board:
    """Documents by key. ``parts`` returns further data of each update, for the same cursor."""

    def __init__(self, life: str) -> None:
        self.life = life  # process run, part of every cursor
        self.version = 0
        self.parts: Callable[[int, Scope], Mapping[str, Any]] = lambda cursor, scope: {}
        self._documents: dict[str, _Document] = {}
        self._gone: dict[str, tuple[int, Audience]] = {}
        self._forgotten = 0  # removed keys up to this version are no longer remembered
        self._stirred = False
        self._cache: dict[tuple[int, Scope], bytes] = {}

    def put(self, key: str, value: Any, audience: Audience = ALL) -> None:
        """Set a document from the next version on. The same content changes nothing."""
        body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        known = self._documents.get(key)
        if known is not None and (known.body, known.audience) == (body, audience):
            return
        self._gone.pop(key, None)
        self._documents[key] = _Document(self.version + 1, audience, body)
        self._stirred = True

    def drop(self, key: str) -> None:
        known = self._documents.pop(key, None)
        if known is None:
            return
        self._gone[key] = (self.version + 1, known.audience)
        while len(self._gone) > MAX_GONE:
            first = next(iter(self._gone))
            self._forgotten = max(self._forgotten, self._gone.pop(first)[0])
        self._stirred = True

    def keys(self, prefix: str) -> Iterator[str]:
        return (key for key in self._documents if key.startswith(prefix))

    def stir(self) -> None:
        """Note a change of the parts."""
        self._stirred = True

    def turn(self) -> bool:
        """End a version if anything changed, and return whether it did."""
        if not self._stirred:
            return False
        self._stirred = False
        self.version += 1
        self._cache.clear()
        return True

    def cursor_of(self, last_event_id: str) -> int:
        """Return the cursor of a reconnected reader, or 0 for a full update."""
        life, _, number = last_event_id.rpartition("-")
        if life != self.life or not number.isdecimal() or len(number) > 15:
            return 0
        return int(number) if int(number) <= self.version else 0

    def update(self, cursor: int, scope: Scope, now_s: float) -> bytes:
        """Return the update of a reader at this cursor, as one event of the stream. Readers with
        the same cursor and scope share the encoded update of a version.
        """
        made = self._cache.get((cursor, scope))
        if made is None:
            made = self._made(cursor, scope, now_s)
            if len(self._cache) < MAX_CACHED:
                self._cache[cursor, scope] = made
        return made

    def _made(self, cursor: int, scope: Scope, now_s: float) -> bytes:
        whole = cursor == 0 or cursor < self._forgotten
        since = 0 if whole else cursor
        documents = {
            key: orjson.Fragment(document.body)
            for key, document in self._documents.items()
            if document.version > since and scope.sees(document.audience)
        }
        gone = [
            key
            for key, (version, audience) in self._gone.items()
            if version > since and scope.sees(audience)
        ]
        body = {
            "now_s": round(now_s, 3),
            "whole": whole,
            "documents": documents,
            "gone": [] if whole else gone,
            **self.parts(since, scope),
        }
        told = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        return b"id: %s-%d\ndata: %s\n\n" % (self.life.encode(), self.version, told)
