"""The clusters of one scorer among several: the same in every process, at any time. Pure.

Python's own hash differs from process to process, so the name is digested.
"""

import hashlib
import re
from typing import Final

import msgspec

_TEXT: Final = re.compile(r"([0-9]{1,4})/([0-9]{1,4})\Z")
_REMEMBERED: Final = 100_000


class Shard(msgspec.Struct, frozen=True):
    """Shard ``index`` of ``count``, counted from 1."""

    index: int = 1
    count: int = 1

    @property
    def lease(self) -> str:
        """Return the name of the lease for publishing this shard's scores."""
        return f"scorer.{self.index}-of-{self.count}"

    def owns(self, cluster: str) -> bool:
        return self.count == 1 or shard_of(cluster, self.count) == self.index


_known: dict[tuple[str, int], int] = {}


def shard_of(cluster: str, count: int) -> int:
    """Return the shard, from 1 to ``count``, that serves a cluster."""
    key = (cluster, count)
    found = _known.get(key)
    if found is None:
        digest = hashlib.blake2b(cluster.encode(errors="surrogatepass"), digest_size=8).digest()
        found = int.from_bytes(digest, "big") % count + 1
        if len(_known) >= _REMEMBERED:
            _known.clear()  # names come from outside, so the cache has a bound
        _known[key] = found
    return found


def parse_shard(text: str) -> Shard | None:
    """Return the shard: ``2/8`` is the second of eight. None for any other text."""
    match = _TEXT.match(text)
    if match is None:
        return None
    index, count = int(match[1]), int(match[2])
    return Shard(index, count) if 1 <= index <= count else None
