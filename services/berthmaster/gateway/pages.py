"""Pages of lists that are made once for all who wait for the same one. Pure.

A long page is some milliseconds of work, and whoever sends thousands of requests for one asks for
the same. All who had asked before the making of a page began get that page, so that nobody is told
less than what was known as he asked; whoever comes later waits for the next one. Each who waits
does a stretch of the work when it is his turn, of the page that is under way.
"""

from collections import deque
from collections.abc import Callable, Generator

from berthmaster.messages.api import ListReply

Steps = Generator[None, None, ListReply]
_Key = tuple[str | None, bytes]  # whose workloads (None: everybody's), and the request
_Row = deque["Page"]  # the one under way, and the next


class Page:
    """One page, for however many wait for it; each leaves once."""

    def __init__(self, row: _Row, make: Callable[[], Steps]) -> None:
        self._row = row
        self._make = make
        self._steps: Steps | None = None
        self.reply: ListReply | None = None
        self.waiting = 0

    @property
    def is_begun(self) -> bool:
        """Whether it is too late to ask for it."""
        return self._steps is not None

    def work(self) -> None:
        """A stretch of this page, or of the one before it."""
        first = self._row[0]
        if first._steps is None:
            first._steps = first._make()
        try:
            next(first._steps)
        except StopIteration as end:
            first.reply = end.value
            self._row.popleft()


class Pages:
    """Those that somebody waits for."""

    def __init__(self) -> None:
        self._rows: dict[_Key, _Row] = {}

    def __len__(self) -> int:
        """Different requests that are under way."""
        return len(self._rows)

    def join(self, whose: str | None, request: bytes, make: Callable[[], Steps]) -> Page:
        """Wait for the next page of this request; ``make`` begins it."""
        row = self._rows.setdefault((whose, request), deque())
        if not row or row[-1].is_begun:
            row.append(Page(row, make))
        row[-1].waiting += 1
        return row[-1]

    def leave(self, whose: str | None, request: bytes, page: Page) -> None:
        """One who waited has his page, or waits no more."""
        page.waiting -= 1
        row = self._rows.get((whose, request))
        if row is None:
            return
        if not page.waiting and page in row:
            row.remove(page)
        if not row:
            del self._rows[whose, request]
