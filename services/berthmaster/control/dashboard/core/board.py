"""What pages show, as documents by key, each with the version of its last change. Pure.

A reader has a cursor: the version up to which it has read. What it is sent next is every document
that changed after that, as it is now. So nothing is kept for a reader but one number: whoever reads
slowly skips what was in between, and whoever comes back after a while says how far it was.

For example, at version 7 the documents are fleet (changed at 7) and cluster/a (at 5). A reader with
cursor 5 gets fleet alone; one with cursor 0 both; one with cursor 7 nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

MAX_GONE: Final = 10_000  # keys that were dropped, remembered for those who were away
MAX_CACHED: Final = 64  # different updates of one version


class Audience(NamedTuple):
    watchers: bool  # those who see everything
    tenants: frozenset[str] | None  # these; None = any


ALL: Final = Audience(True, None)
WATCHERS: Final = Audience(True, frozenset())


def tenant_alone(tenant: str) -> Audience:
    """A tenant's own; whoever sees everything has a document of all tenants instead."""
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
    """Documents by key. ``parts`` are added to each update beside them, for the same cursor."""

    def __init__(self, life: str) -> None:
        self.life = life  # cursors of another life mean nothing here
        self.version = 0
        self.parts: Callable[[int, Scope], Mapping[str, Any]] = lambda cursor, scope: {}
        self._documents: dict[str, _Document] = {}
        self._gone: dict[str, tuple[int, Audience]] = {}
        self._forgotten = 0  # keys that went up to this version are not remembered any more
        self._stirred = False
        self._cache: dict[tuple[int, Scope], bytes] = {}

    def put(self, key: str, value: Any, audience: Audience = ALL) -> None:
        """Show this under a key from the next version on; the same again changes nothing."""
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
        """Something of the parts has changed."""
        self._stirred = True

    def turn(self) -> bool:
        """End a version, if anything was changed since the last; whether it was."""
        if not self._stirred:
            return False
        self._stirred = False
        self.version += 1
        self._cache.clear()
        return True

    def cursor_of(self, last_event_id: str) -> int:
        """How far somebody was who comes back with this; 0 = from the beginning."""
        life, _, number = last_event_id.rpartition("-")
        if life != self.life or not number.isdecimal() or len(number) > 15:
            return 0
        return int(number) if int(number) <= self.version else 0

    def update(self, cursor: int, scope: Scope, now_s: float) -> bytes:
        """What somebody has to be sent who has read up to a cursor: one event of a stream. Those of
        one version are made once for all who have read alike."""
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
