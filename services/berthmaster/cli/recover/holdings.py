"""Asks every cluster for its attempts.

`berth recover` creates an inquiry, which the agent gateway (door) forwards to each cluster's
executor. The executor reports by the verb ``holdings``, and the gateway forwards the attempts
proven by receipts. A cluster has answered when all pages of one listing have arrived. Nothing is
stored: lost messages are requested again.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from berthmaster.cli.recover.core import Held
from berthmaster.lib.messages.door import HeldPage, Nudge, ProvenAttempt
from berthmaster.lib.messages.families import HELD_PAGES, UNREADABLE, encode
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError

ASK_EVERY_S: Final = 2.0
MAX_HELD: Final = 200_000  # attempts and pages of all clusters, about 400 MB


class TooMuchHeld(BusError):
    """Clusters report more than fits into memory."""


class Answers(NamedTuple):
    """The attempts of clusters, and the clusters that reported all of them."""

    held: Sequence[Held]
    answered: Set[str]


class Collector:
    """Joins the pages of one inquiry. Pure."""

    def __init__(self, inquiry: str, most: int = MAX_HELD) -> None:
        self.inquiry = inquiry
        self.answered: set[str] = set()
        self.too_much = ""  # why the collector stops; "" = it continues
        self._most = most
        self._pages: dict[tuple[str, str], set[int]] = {}  # (cluster, listing) -> arrived pages
        self._ends: dict[tuple[str, str], int] = {}  # (cluster, listing) -> last page
        self._held: dict[tuple[str, str, str, int], ProvenAttempt] = {}
        self._sizes: Counter[str] = Counter()  # attempts and pages by cluster

    @property
    def held(self) -> list[Held]:
        """Return the attempts, each once per cluster, also from incomplete listings."""
        return [Held(cluster, one) for (cluster, *_), one in self._held.items()]

    def take(self, page: HeldPage) -> None:
        listing = page.cluster, page.listing
        pages = self._pages.get(listing, set())
        if page.inquiry != self.inquiry or page.page in pages or self.too_much:
            return
        new = [(page.cluster, one.tenant, one.id, one.attempt) for one in page.held]
        self._sizes[page.cluster] += 1 + len(set(new) - self._held.keys())
        if (total := self._sizes.total()) > self._most:
            cluster, most = self._sizes.most_common(1)[0]
            self.too_much = (
                f"clusters report {total:,} attempts and pages; at most {self._most:,} are taken. "
                f"{cluster} reports {most:,}: if it does not run so many, shut its agent out"
            )
            return
        self._held.update(zip(new, page.held, strict=True))
        self._pages.setdefault(listing, pages).add(page.page)
        if page.last:
            self._ends[listing] = page.page
        end = self._ends.get(listing)
        if end is not None and len(pages) == end + 1 and max(pages) == end:
            self.answered.add(page.cluster)


async def ask(conn: Connection, clusters: Set[str], *, limit_s: float) -> Answers:
    """Ask these clusters until each has answered, or the time is over.

    Answers of other clusters count too. Raises BusError, such as TooMuchHeld.
    """
    collector = Collector(secrets.token_hex(16))
    changed = asyncio.Event()

    def take(_subject: str, data: bytes) -> None:
        try:
            collector.take(HELD_PAGES.decode(data))
        except UNREADABLE as error:
            conn.log.warning("holdings page unreadable", why=str(error))
        changed.set()

    subscription = await conn.subscribe(subjects.held_of_all_clusters(), take)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    ask_again_s = 0.0
    try:
        await conn.flush()
        while (silent := clusters - collector.answered) and not collector.too_much:
            now_s = loop.time()
            if now_s >= deadline:
                break
            if now_s >= ask_again_s:
                ask_again_s = now_s + ASK_EVERY_S
                nudge = encode(Nudge(sequence=0, inquiry=collector.inquiry))
                for cluster in sorted(silent):
                    await conn.publish(subjects.inquiry(cluster), nudge)
            changed.clear()
            try:
                async with asyncio.timeout_at(min(deadline, ask_again_s)):
                    await changed.wait()
            except TimeoutError:
                pass
    finally:
        await subscription.unsubscribe()
    if collector.too_much:
        raise TooMuchHeld(collector.too_much)
    return Answers(collector.held, collector.answered)
