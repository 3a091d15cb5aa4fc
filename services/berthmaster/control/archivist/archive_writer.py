"""Write to the archive, in batches under load: the disk is synced once per batch.

A server that confirms after the sync stores some 500 to 1,000 single writes a second, fewer than
workloads may end. The writes that arrive during a batch make the next batch.
"""

import asyncio
from typing import Final, NamedTuple

from berthmaster.lib.event_log.workload_log import Part, send_batch
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, BusError

WRITE_TIMEOUT_S: Final = 5.0
MAX_BATCH: Final = 100
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
MAX_IN_BATCH_BYTES: Final = 64 * 1024  # larger messages are written alone


class _Page(NamedTuple):
    subject: str
    data: bytes
    done: "asyncio.Future[str]"


class ArchiveWriter:
    """Batches the writes of any number of tasks. The number of tasks bounds the waiting writes."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._waiting: list[_Page] = []
        self._task: asyncio.Task[None] | None = None
        self.batches = 0

    async def write(self, subject: str, data: bytes) -> str:
        """Store a message. Return "" after the confirmation, else why the outcome is unknown."""
        page = _Page(subject, data, asyncio.get_running_loop().create_future())
        if len(data) > MAX_IN_BATCH_BYTES:
            return await self._alone(page)
        self._waiting.append(page)
        if self._task is None:
            self._task = asyncio.create_task(self._bind(), name="writer")
        return await page.done

    async def _bind(self) -> None:
        """Write batches until no message waits."""
        try:
            while self._waiting:
                pages = self._next_pages()
                if len(pages) == 1:
                    _tell(pages[0], await self._alone(pages[0]))
                else:
                    await self._together(pages)
        finally:
            self._task = None
            for page in self._waiting:  # only after a cancel: the process ends
                page.done.cancel()

    def _next_pages(self) -> list[_Page]:
        """Return the waiting messages of the next batch."""
        size = 0
        for number, page in enumerate(self._waiting[:MAX_BATCH]):
            size += len(page.data)
            if number and size > MAX_BATCH_BYTES:
                break
        else:
            number = min(len(self._waiting), MAX_BATCH)
        pages, self._waiting = self._waiting[:number], self._waiting[number:]
        return pages

    async def _together(self, pages: list[_Page]) -> None:
        try:
            parts: list[Part] = [(page.subject, page.data, {}) for page in pages]
            await send_batch(self._conn, parts, timeout_s=WRITE_TIMEOUT_S)
        except ApiError:  # batches are not supported, so nothing was stored
            for page, why in zip(
                pages, await asyncio.gather(*(self._alone(page) for page in pages)), strict=True
            ):
                _tell(page, why)
        except BusError as error:
            for page in pages:
                _tell(page, str(error))
        else:
            self.batches += 1
            for page in pages:
                _tell(page, "")

    async def _alone(self, page: _Page) -> str:
        try:
            await self._conn.store(page.subject, page.data, timeout_s=WRITE_TIMEOUT_S)
        except BusError as error:
            return str(error)
        return ""


def _tell(page: _Page, why: str) -> None:
    if not page.done.done():  # the task may have been cancelled
        page.done.set_result(why)
