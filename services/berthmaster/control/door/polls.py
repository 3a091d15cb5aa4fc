"""Requests that wait for an answer, a bounded number for each cluster.

One poll too many ends the oldest one with an empty answer: a killed agent has left the oldest poll,
and must not delay its successor.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


class _Poll:
    def __init__(self, kinds: Collection[str]) -> None:
        self.kinds = kinds
        self.over = False
        self.stirred = asyncio.Event()


class Polls:
    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, deque[_Poll]] = {}
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def stir(self, cluster: str, kind: str = "") -> None:
        """Wake the polls of a cluster, after a possible answer for this kind."""
        for poll in self._waiting.get(cluster, ()):
            if not poll.kinds or not kind or kind in poll.kinds:
                poll.stirred.set()

    def close(self) -> None:
        """Answer all polls now."""
        self._closed = True
        self.stir_all()

    def stir_all(self) -> None:
        """Wake all polls."""
        for polls in self._waiting.values():
            for poll in polls:
                poll.stirred.set()

    async def answer(
        self,
        cluster: str,
        answer: Callable[[], T | None],
        wait_s: float,
        kinds: Collection[str] = (),
    ) -> T | None:
        """Return the first answer that is not None, or None after ``wait_s``."""
        found = answer()
        if found is not None or not wait_s or self._closed:
            return found
        poll = _Poll(kinds)
        polls = self._waiting.setdefault(cluster, deque())
        polls.append(poll)
        if len(polls) > self._most:
            oldest = polls[0]
            oldest.over = True
            oldest.stirred.set()
            polls.popleft()
        try:
            async with asyncio.timeout(wait_s):
                while found is None and not (poll.over or self._closed):
                    await poll.stirred.wait()
                    poll.stirred.clear()
                    found = answer()
        except TimeoutError:
            found = answer()
        finally:
            if poll in polls:
                polls.remove(poll)
            if not polls and self._waiting.get(cluster) is polls:
                del self._waiting[cluster]
        return found
