"""Notify webhooks of the ends of attempts, from durable consumers: at least once, in any order.

The server keeps the position of each consumer, so nothing is lost while the service is down. A
refused notice is repeated with growing pauses, and becomes a dead letter after the last try. Only a
few notices of one tenant are in flight, so a tenant's hanging webhook delays no other tenant.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from berthmaster.control.usage.metrics import UsageMetrics
from berthmaster.control.usage.posting import NotTaken, post
from berthmaster.control.usage.webhooks import Notice, Webhook, Webhooks, host_of, notice_of
from berthmaster.lib.event_log.workload_log import EventLog, archived_story, decode_story
from berthmaster.lib.lifecycle.fold import Verdict, fold_history, is_whole
from berthmaster.lib.messages.families import UNREADABLE, encode
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.durables import NOTICES
from berthmaster.lib.nats.message_subjects import decode_event
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.worker import Later, Never, Worker
from berthmaster.lib.runtime.webhook import KeyWrong, headers_of, read_key

CONCURRENCY: Final = 32
OF_ONE_TENANT: Final = 4
TURN_PAUSE_S: Final = 0.5
TRIES: Final = 20  # with pauses of up to half a minute: about eight minutes
REMEMBERED: Final = 20_000  # notices taken by some webhooks and refused by others
NOTICE_HEADER: Final = "Berth-Notice"
DAMAGED_PAUSE_S: Final = 5.0


class Notifying:
    """One replica. Several replicas share the consumers."""

    def __init__(
        self, conn: Connection, figures: UsageMetrics, may_tell: Callable[[], bool]
    ) -> None:
        """Connect to the log. ``may_tell`` returns whether the log is sound. A history with lost
        events may end differently, and a sent notice cannot be withdrawn.
        """
        self._conn = conn
        self._may_tell = may_tell
        self._log = EventLog(conn)
        self._figures = figures
        self._under_way: Counter[str] = Counter()
        self._taken: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.file: Webhooks | None = None

    @property
    def _webhooks(self) -> tuple[Webhook, ...]:
        return self.file.webhooks if self.file is not None else ()

    def workers(self) -> list[Worker]:
        """Return the workers, for the caller to run."""
        return [
            Worker(
                self._conn,
                "usage",
                durable,
                self._handle,
                concurrency=CONCURRENCY,
                max_deliveries=TRIES,
            )
            for durable in NOTICES
        ]

    async def _handle(self, recorded: Recorded) -> None:
        try:
            tenant = subjects.parse_workload_event(recorded.subject).tenant
            event, is_astray = decode_event(recorded.subject, recorded.data)
        except (*UNREADABLE, subjects.SubjectError) as error:
            raise Never(str(error)) from error
        asking = (webhook.tenants for webhook in self._webhooks)
        if is_astray or not any(tenant in tenants or not tenants for tenants in asking):
            return
        if not self._may_tell():
            raise Later("the log is damaged", pause_s=DAMAGED_PAUSE_S, counted=False)
        if self._under_way[tenant] >= OF_ONE_TENANT:
            raise Later("others of this tenant go first", pause_s=TURN_PAUSE_S, counted=False)
        self._under_way[tenant] += 1
        try:
            notice = await self._notice(tenant, event.id, recorded.sequence)
            if notice is not None:
                await self._tell(notice)
        finally:
            self._under_way[tenant] -= 1

    async def _notice(self, tenant: str, workload: str, sequence: int) -> Notice | None:
        """Return the notice of an event, or None if the event was not applied. The log or the
        archive has the history.
        """
        try:
            story = decode_story(await self._log.story(tenant, workload))
            if not is_whole(story):
                story = await archived_story(self._conn, tenant, workload) or story
        except UNREADABLE as error:
            raise Never(f"its story cannot be read: {error}") from error
        work, verdicts = fold_history(tenant, workload, story)
        for one, verdict in zip(story, verdicts, strict=True):
            if one.sequence == sequence:
                return notice_of(one, work) if verdict is Verdict.COUNTED else None
        return None

    async def _tell(self, notice: Notice) -> None:
        """Send a notice to each webhook that selects it and has not taken it yet. Raises Later or
        Never.
        """
        faults: list[NotTaken] = []
        for webhook in self._webhooks:
            name = (webhook.name, notice.notice)
            if not webhook.wants(notice) or name in self._taken:
                continue
            try:
                await self._post(webhook, notice)
            except NotTaken as error:
                self._figures.notices.labels(webhook.name, "refused").inc()
                faults.append(NotTaken(f"webhook {webhook.name}: {error}", may_help=error.may_help))
                continue
            self._figures.notices.labels(webhook.name, "taken").inc()
            self._taken[name] = None
            if len(self._taken) > REMEMBERED:
                self._taken.popitem(last=False)
        if faults:
            why = "; ".join(map(str, faults))
            if any(one.may_help for one in faults):
                raise Later(why)
            raise Never(why)

    async def _post(self, webhook: Webhook, notice: Notice) -> None:
        try:
            key = await asyncio.to_thread(read_key, Path(webhook.key_file))
        except KeyWrong as error:
            raise NotTaken(str(error), may_help=True) from error
        body = encode(notice)
        headers = {**headers_of(body, key), NOTICE_HEADER: quote(notice.notice)}
        private_hosts = self.file.private_hosts if self.file is not None else ()
        may_be_private = host_of(webhook.url) in private_hosts
        await post(webhook.url, body, headers, may_be_private=may_be_private)
