"""What tenants ask of the verb ``webhooks``: their own listed, one set, one removed. Pure."""

from typing import Final, Literal

import msgspec

from berthmaster.messages.api import Refusal
from berthmaster.messages.control import MOST_WEBHOOKS, TenantWebhook, TenantWebhooks
from berthmaster.messages.explain import VALUE_CHARS, cut, invalid
from berthmaster.messages.usage import WebhookSetting, WebhooksRequest
from berthmaster.requests.webhooks import URL_WORDS
from berthmaster.usage.sealing import seal
from berthmaster.usage.webhooks import NO_FILE, Webhooks, host_of, url_fault

_NOT_TOLD: Final = "(not repeated: it may hold a secret)"
_NONE_ALLOWED: Final = (
    "nothing: operators allow no hosts for tenants' own webhooks (tenant_hosts and "
    "tenant_key_file of the usage service's --webhooks-file)"
)


def changed(
    had: TenantWebhooks,
    request: WebhooksRequest,
    file: Webhooks | None,
    key: bytes,
    *,
    salt: str,
    now_s: float,
) -> TenantWebhooks | Refusal:
    """All of a tenant's webhooks, as they are to be from now on."""
    kept = had.webhooks
    if request.remove:
        names = [one.name for one in kept]
        if request.remove not in names:
            right = f"one of yours: {', '.join(names)}" if names else "nothing: you have none"
            return _refusal("not_found", "remove", request.remove, right)
        kept = tuple(one for one in kept if one.name != request.remove)
    if (asked := request.set) is not None:
        if refusal := _refused(asked, file, key):
            return refusal
        kept = tuple(one for one in kept if one.name != asked.name)
        if len(kept) >= MOST_WEBHOOKS:
            right = f"the name of one of yours, or to remove one: at most {MOST_WEBHOOKS} a tenant"
            return invalid(["set", "name"], asked.name, right)
        kept = (*kept, _made(had.tenant, asked, key, salt, now_s))
    return msgspec.structs.replace(had, webhooks=kept)


def _made(tenant: str, asked: WebhookSetting, key: bytes, salt: str, now_s: float) -> TenantWebhook:
    return TenantWebhook(
        name=asked.name,
        host=host_of(asked.url),
        sealed_url=seal(key, tenant, asked.name, asked.url),
        salt=salt,
        on=asked.on,
        queues=asked.queues,
        sets=asked.sets,
        labels=asked.labels,
        set_at_s=now_s,
    )


def _refused(asked: WebhookSetting, file: Webhooks | None, key: bytes) -> Refusal | None:
    if file is None:
        return _refusal("forbidden", "set", asked.name, f"nothing: {NO_FILE}")
    if not file.tenant_hosts or not key:
        return _refusal("forbidden", "set", asked.name, _NONE_ALLOWED)
    if url_fault(asked.url, file.private_hosts):
        return invalid(["set", "url"], _NOT_TOLD, URL_WORDS)
    if (host := host_of(asked.url)) not in file.tenant_hosts:
        right = f"a host that operators allow for this: {', '.join(file.tenant_hosts)}"
        return _refusal("forbidden", "set.url", host, right)
    return None


def _refusal(
    code: Literal["forbidden", "not_found"], field: str, value: str, expected: str
) -> Refusal:
    return Refusal(code=code, field=field, value=cut(value, VALUE_CHARS), expected=expected)
