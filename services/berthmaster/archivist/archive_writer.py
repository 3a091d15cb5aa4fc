"""Writes to the archive, many at once where many wait: the disk is synced once a batch.

A server that answers when the disk has it takes some 500 to 1,000 single writes a second, which is
less than workloads may end. What waits while a batch is under way makes the next one. Each write
keeps its own guard; if any guard of a batch fails, nothing of it is stored, and its writes are done
one by one, so that each learns its own fate.
"""

import asyncio
from typing import Final, NamedTuple

from berthmaster.bus.batch import send_batch
from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import ApiError, BusError
from berthmaster.bus.log import GUARD, GUARD_SUBJECT, WRONG_LAST_SEQUENCE
from berthmaster.lifecycle.instructions import Outcome, Refused, Stored, Unknown

WRITE_TIMEOUT_S: Final = 5.0
MAX_BATCH: Final = 100
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
MAX_IN_BATCH_BYTES: Final = 64 * 1024  # what is larger is written by itself


class _Page(NamedTuple):
    subject: str
    data: bytes
    guard: int
    done: "asyncio.Future[Outcome]"

    @property
    def headers(self) -> dict[str, str]:
        return {GUARD: str(self.guard), GUARD_SUBJECT: self.subject}


class ArchiveWriter:
    """``write`` from as many tasks as you like; they are the bound of what waits."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._waiting: list[_Page] = []
        self._task: asyncio.Task[None] | None = None
        self.batches = 0

    async def write(self, subject: str, data: bytes, guard: int) -> Outcome:
        """Store it if the subject still is at ``guard``. Unknown when nobody knows."""
        page = _Page(subject, data, guard, asyncio.get_running_loop().create_future())
        if len(data) > MAX_IN_BATCH_BYTES:
            return await self._alone(page)
        self._waiting.append(page)
        if self._task is None:
            self._task = asyncio.create_task(self._bind(), name="writer")
        return await page.done

    async def _bind(self) -> None:
        """Until nobody waits."""
        try:
            while self._waiting:
                pages = self._next_pages()
                if len(pages) == 1:
                    _tell(pages[0], await self._alone(pages[0]))
                else:
                    await self._together(pages)
        finally:
            self._task = None
            for page in self._waiting:  # only if this was cancelled: the process ends
                page.done.cancel()

    def _next_pages(self) -> list[_Page]:
        """Some that wait, of different subjects: a batch's guards look at what was before it."""
        pages: list[_Page] = []
        left: list[_Page] = []
        subjects: set[str] = set()
        size = 0
        for page in self._waiting:
            size += len(page.data)
            fits = len(pages) < MAX_BATCH and (size <= MAX_BATCH_BYTES or not pages)
            if fits and page.subject not in subjects:
                subjects.add(page.subject)
                pages.append(page)
            else:
                left.append(page)
        self._waiting = left
        return pages

    async def _together(self, pages: list[_Page]) -> None:
        try:
            parts = [(page.subject, page.data, page.headers) for page in pages]
            last = await send_batch(self._conn, parts, timeout_s=WRITE_TIMEOUT_S)
        except ApiError:  # a guard failed, or batches are not to be had: nothing was stored
            for page, outcome in zip(
                pages, await asyncio.gather(*(self._alone(page) for page in pages)), strict=True
            ):
                _tell(page, outcome)
        except BusError as error:
            for page in pages:
                _tell(page, Unknown(str(error)))
        else:
            self.batches += 1
            first = last - len(pages) + 1  # a batch is stored without gaps
            for sequence, page in enumerate(pages, first):
                _tell(page, Stored(sequence))

    async def _alone(self, page: _Page) -> Outcome:
        try:
            sequence = await self._conn.store(
                page.subject, page.data, timeout_s=WRITE_TIMEOUT_S, headers=page.headers
            )
            return Stored(sequence)
        except ApiError as error:
            return Refused() if error.code in WRONG_LAST_SEQUENCE else Unknown(str(error))
        except BusError as error:
            return Unknown(str(error))


def _tell(page: _Page, outcome: Outcome) -> None:
    if not page.done.done():  # its task may have been given up
        page.done.set_result(outcome)
