"""Answers the verb ``webhooks``, and keeps what tenants set: one message a tenant, each written
after the one before, so that two who set something at once lose nothing."""

import secrets

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.control import read_control
from berthmaster.bus.errors import ApiError, BusError
from berthmaster.bus.log import GUARD, WRONG_LAST_SEQUENCE, last_message
from berthmaster.bus.streams import CONTROL
from berthmaster.messages.api import Refusal
from berthmaster.messages.control import TenantWebhooks
from berthmaster.messages.explain import decoded
from berthmaster.messages.families import UNREADABLE, WEBHOOKS_REQUESTS, encode
from berthmaster.messages.usage import WebhooksReply, WebhooksRequest
from berthmaster.usage.notifying import Notifying
from berthmaster.usage.sealing import SALT_BYTES, signing_key
from berthmaster.usage.tenants import changed

TRIES = 3
STORE_LIMIT_S = 3.0


class WebhookSettings:
    """Of one replica; what was set reaches the others over the bus."""

    def __init__(self, conn: Connection, notifying: Notifying) -> None:
        self._conn = conn
        self._notifying = notifying

    async def answer(self, subject: str, data: bytes) -> bytes:
        """One request of a tenant, or of operators, who only look."""
        request = decoded(WebhooksRequest, WEBHOOKS_REQUESTS, data or b"{}")
        if isinstance(request, Refusal):
            return encode(request)
        tenant = subjects.parse_api(subject)[0] if subjects.asker(subject) else None
        key = ""
        if request.set is not None or request.remove:
            if tenant is None:
                return encode(_NOT_OPERATORS)
            done = await self._change(tenant, request)
            if isinstance(done, Refusal):
                return encode(done)
            key = done
        notifying = self._notifying
        return encode(
            WebhooksReply(
                webhooks=notifying.views(tenant),
                hosts=notifying.file.tenant_hosts if notifying.file else (),
                key=key,
                note=notifying.silent if tenant is None else "",
            )
        )

    async def _change(self, tenant: str, request: WebhooksRequest) -> str | Refusal:
        """The key of what was set."""
        why = ""
        for _ in range(TRIES):
            try:
                return await self._try(tenant, request)
            except ApiError as error:
                if error.code not in WRONG_LAST_SEQUENCE:
                    return _unavailable(str(error))
                why = str(error)
            except (BusError, *UNREADABLE) as error:
                return _unavailable(str(error))
        return _unavailable(why)

    async def _try(self, tenant: str, request: WebhooksRequest) -> str | Refusal:
        subject = subjects.webhooks(tenant)
        last = await last_message(self._conn, CONTROL, subject, timeout_s=STORE_LIMIT_S)
        had = read_control(subject, last.data) if last is not None else None
        if not isinstance(had, TenantWebhooks):
            had = TenantWebhooks(tenant=tenant)
        salt, notifying = secrets.token_hex(SALT_BYTES), self._notifying
        new = changed(
            had,
            request,
            notifying.file,
            notifying.tenant_key,
            salt=salt,
            now_s=self._conn.now(),
        )
        if isinstance(new, Refusal):
            return new
        await self._conn.store(
            subject,
            encode(new),
            timeout_s=STORE_LIMIT_S,
            headers={GUARD: str(last.sequence if last is not None else 0)},
        )
        notifying.set_tenant(new)
        if request.set is None:
            return ""
        return signing_key(notifying.tenant_key, tenant, request.set.name, salt).decode()


_NOT_OPERATORS = Refusal(
    code="forbidden",
    field="set",
    value="",
    expected="a tenant's own request; operators use the webhooks' file, or `berth queue set`",
)


def _unavailable(why: str) -> Refusal:
    return Refusal(
        code="unavailable",
        field="",
        value="",
        expected=f"it could not be stored: {why}",
        retry=True,
    )
