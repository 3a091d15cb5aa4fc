"""Tells webhooks of the ends of attempts, from durable consumers: at least once, in any order.

The server keeps how far each consumer is, so nothing is lost while the service is away. What a
webhook does not take comes again with growing pauses, and is a dead letter after the last try. Of
one tenant only a few are under way at once: one that hangs keeps no other's waiting.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.event_subjects import decode_event
from berthmaster.bus.follow import Recorded
from berthmaster.bus.log import EventLog, archived_story, decode_story
from berthmaster.bus.streams import WORKLOADS
from berthmaster.bus.worker import Later, Never, Worker
from berthmaster.lifecycle.fold import Verdict, is_whole, judged_story
from berthmaster.messages.control import QueueSetting, TenantWebhooks
from berthmaster.messages.families import UNREADABLE, encode
from berthmaster.messages.usage import WebhookView
from berthmaster.runtime.webhook import KeyWrong, headers_of, read_key
from berthmaster.usage.metrics import UsageMetrics
from berthmaster.usage.posting import NotTaken, post
from berthmaster.usage.webhooks import (
    KINDS,
    Notice,
    Recipient,
    Webhooks,
    host_of,
    notice_of,
    of_queue,
    of_tenant,
)

CONCURRENCY: Final = 32
OF_ONE_TENANT: Final = 4
TURN_PAUSE_S: Final = 0.5
TRIES: Final = 20  # with pauses of up to half a minute: about eight minutes
REMEMBERED: Final = 20_000  # what was taken while another webhook of the same event was not
NOTICE_HEADER: Final = "Berth-Notice"
DAMAGED_PAUSE_S: Final = 5.0
MOST_TOLD: Final = 3
OF_TENANTS: Final = "usage-tenants"  # dead letters of webhooks that tenants have set


class Notifying:
    """One replica's; several share the consumers."""

    def __init__(
        self, conn: Connection, figures: UsageMetrics, may_tell: Callable[[], bool]
    ) -> None:
        """``may_tell``: whether the log is what it was. A story that lost a part of itself ends in
        another way than it did, and what was told cannot be taken back."""
        self._conn = conn
        self._may_tell = may_tell
        self._log = EventLog(conn)
        self._figures = figures
        self._under_way: Counter[str] = Counter()
        self._taken: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.file: Webhooks | None = None
        self.tenant_key = b""
        self._queues: dict[str, QueueSetting] = {}
        self._tenants: dict[str, TenantWebhooks] = {}
        self._all: tuple[Recipient, ...] = ()
        self._failures: dict[str, tuple[str, float]] = {}  # why its newest notice is not taken

    def set_file(self, file: Webhooks | None, tenant_key: bytes) -> None:
        """What operators allow, from now on; None: nothing. With what is in tenant_key_file."""
        if (file, tenant_key) != (self.file, self.tenant_key):
            self.file, self.tenant_key = file, tenant_key
            self._put_together()

    def set_queue(self, setting: QueueSetting) -> None:
        """A queue's setting, as it is now."""
        if self._queues.get(setting.queue) != setting:
            self._queues[setting.queue] = setting
            self._put_together()

    def set_tenant(self, found: TenantWebhooks) -> None:
        """A tenant's own, as they are now."""
        if self._tenants.get(found.tenant) != found:
            self._tenants[found.tenant] = found
            self._put_together()

    def _put_together(self) -> None:
        named = (of_queue(setting, self.file) for setting in self._queues.values())
        self._all = (
            *(Recipient(webhook) for webhook in (self.file.webhooks if self.file else ())),
            *(one for one in named if one is not None),
            *(
                of_tenant(found.tenant, one, self.file, self.tenant_key)
                for found in self._tenants.values()
                for one in found.webhooks
            ),
        )
        names = {one.webhook.name for one in self._all}
        self._failures = {name: why for name, why in self._failures.items() if name in names}
        silent = Counter(one.whose for one in self._all if one.fault)
        for whose in ("queue", "tenant"):
            self._figures.webhooks_silent.labels(whose).set(silent[whose])

    @property
    def silent(self) -> str:
        """Queues to whose webhooks nothing is sent, and why, for operators; "" = none."""
        told = [
            f"queue {one.webhook.queues[0]}: {one.fault}"
            for one in self._all
            if one.fault and one.whose == "queue"
        ]
        more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        return (
            f"nothing is sent to the webhook of {'; of '.join(told[:MOST_TOLD])}{more}"
            if told
            else ""
        )

    def views(self, tenant: str | None) -> tuple[WebhookView, ...]:
        """All of them, or a tenant's own."""
        return tuple(
            self._view(one)
            for one in self._all
            if tenant is None or (one.whose == "tenant" and one.webhook.tenants == (tenant,))
        )

    def _view(self, one: Recipient) -> WebhookView:
        why, at_s = self._failures.get(one.webhook.name, ("", 0.0))
        return replace(one.view(), last_failure=why, last_failure_at_s=at_s)

    def workers(self) -> list[Worker]:
        """To be run by whoever owns this."""
        return [
            Worker(
                self._conn,
                "usage",
                WORKLOADS,
                f"webhooks-{kind}",
                subjects.workload_events_of(kind),
                self._handle,
                concurrency=CONCURRENCY,
                max_deliveries=TRIES,
                from_now=True,
            )
            for kind in KINDS
        ]

    async def _handle(self, recorded: Recorded) -> None:
        try:
            tenant = subjects.parse_workload_event(recorded.subject).tenant
            event, is_astray = decode_event(recorded.subject, recorded.data)
        except (*UNREADABLE, subjects.SubjectError) as error:
            raise Never(str(error)) from error
        asking = (one.webhook.tenants for one in self._all)
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
        """Of an event that counts; the log has its story, or the archive."""
        try:
            story = decode_story(await self._log.story(tenant, workload))
            if not is_whole(story):
                story = await archived_story(self._conn, tenant, workload) or story
        except UNREADABLE as error:
            raise Never(f"its story cannot be read: {error}") from error
        work, verdicts = judged_story(tenant, workload, story)
        for one, verdict in zip(story, verdicts, strict=True):
            if one.sequence == sequence:
                return notice_of(one, work) if verdict is Verdict.COUNTED else None
        return None

    async def _tell(self, notice: Notice) -> None:
        """All that want it and have not taken it yet. Raises Later, or Never."""
        faults: list[NotTaken] = []
        only_tenants = True
        for one in self._all:
            webhook = one.webhook
            name = (webhook.name, notice.notice)
            if not webhook.wants(notice) or name in self._taken:
                continue
            try:
                await self._post(one, notice)
            except NotTaken as error:
                self._figures.notices.labels(webhook.name, "refused").inc()
                self._failures[webhook.name] = (str(error), self._conn.now())
                faults.append(NotTaken(f"webhook {webhook.name}: {error}", may_help=error.may_help))
                only_tenants = only_tenants and one.whose == "tenant"
                continue
            self._figures.notices.labels(webhook.name, "taken").inc()
            self._failures.pop(webhook.name, None)
            self._taken[name] = None
            if len(self._taken) > REMEMBERED:
                self._taken.popitem(last=False)
        if faults:
            why, letters = "; ".join(map(str, faults)), OF_TENANTS if only_tenants else ""
            if any(one.may_help for one in faults):
                raise Later(why, letters=letters)
            raise Never(why, letters=letters)

    async def _post(self, one: Recipient, notice: Notice) -> None:
        if one.fault or self.file is None:
            raise NotTaken(one.fault, may_help=False)
        key = one.key
        try:
            if not key:
                key = await asyncio.to_thread(read_key, Path(one.webhook.key_file))
        except KeyWrong as error:
            raise NotTaken(str(error), may_help=True) from error
        body = encode(notice)
        headers = {**headers_of(body, key), NOTICE_HEADER: quote(notice.notice)}
        may_be_private = host_of(one.webhook.url) in self.file.private_hosts
        await post(one.webhook.url, body, headers, may_be_private=may_be_private)
