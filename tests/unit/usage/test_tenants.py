"""A tenant's own webhooks: what may be set, and that the bus holds nothing secret of it."""

import json

import pytest

from berthmaster.messages.api import Refusal
from berthmaster.messages.control import MOST_WEBHOOKS, TenantWebhooks
from berthmaster.messages.explain import decoded
from berthmaster.messages.families import WEBHOOKS_REQUESTS, encode
from berthmaster.messages.usage import WebhookSetting, WebhooksRequest
from berthmaster.usage.sealing import signing_key
from berthmaster.usage.tenants import changed
from berthmaster.usage.webhooks import Webhooks, of_tenant

KEY = b"the operators' own"
FILE = Webhooks(tenant_hosts=("hooks.example",), tenant_key_file="/k")
URL = "https://hooks.example/T0/secret-path"


def asked(
    had: TenantWebhooks,
    request: WebhooksRequest,
    *,
    file: Webhooks | None = FILE,
    key: bytes = KEY,
    salt: str = "s",
) -> TenantWebhooks | Refusal:
    return changed(had, request, file, key, salt=salt, now_s=7.0)


def with_one(name: str = "chat", url: str = URL, **more: object) -> TenantWebhooks:
    new = asked(
        TenantWebhooks(tenant="ann"),
        WebhooksRequest(set=WebhookSetting(name=name, url=url)),
        **more,  # type: ignore[arg-type]
    )
    assert isinstance(new, TenantWebhooks)
    return new


def test_what_is_set_is_sent_to_by_whoever_has_the_key_and_read_by_nobody_else() -> None:
    new = with_one()
    assert b"secret-path" not in encode(new)
    found = of_tenant("ann", new.webhooks[0], FILE, KEY)
    assert (found.webhook.url, found.fault, found.webhook.tenants) == (URL, "", ("ann",))
    assert found.key == signing_key(KEY, "ann", "chat", "s")
    assert "secret-path" not in repr(found.view())

    # Neither another key nor another tenant's name opens it.
    other = of_tenant("ann", new.webhooks[0], FILE, b"another")
    assert "set it again" in other.fault
    assert "set it again" in of_tenant("bob", new.webhooks[0], FILE, KEY).fault


def test_setting_it_anew_is_another_key_and_removing_it_ends_it() -> None:
    new = with_one()
    anew = asked(
        new, WebhooksRequest(set=WebhookSetting(name="chat", url=URL, on=("failed",))), salt="t"
    )
    assert isinstance(anew, TenantWebhooks)
    (one,) = anew.webhooks
    assert (one.on, one.set_at_s) == (("failed",), 7.0)
    keys = {of_tenant("ann", each.webhooks[0], FILE, KEY).key for each in (new, anew)}
    assert len(keys) == 2
    assert asked(anew, WebhooksRequest(remove="chat")) == TenantWebhooks(tenant="ann")
    refusal = asked(anew, WebhooksRequest(remove="chta"))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.expected) == ("not_found", "one of yours: chat")


@pytest.mark.parametrize(
    ("url", "file", "key", "field", "says"),
    [
        (URL, None, KEY, "set", "no --webhooks-file"),
        (URL, Webhooks(), KEY, "set", "operators allow no hosts"),
        (URL, FILE, b"", "set", "operators allow no hosts"),
        ("https://else.example/x", FILE, KEY, "set.url", "hooks.example"),
        ("http://hooks.example/x", FILE, KEY, "set.url", "https://HOST"),
        ("https://me:pw@hooks.example/x", FILE, KEY, "set.url", "without a user"),
        ("https://hooks.example@else.example/x", FILE, KEY, "set.url", "without a user"),
        ("https://hooks.example.else.example/x", FILE, KEY, "set.url", "hooks.example"),
        ("file:///etc/passwd", FILE, KEY, "set.url", "https://HOST"),
        ("", FILE, KEY, "set.url", "https://HOST"),
    ],
)
def test_what_may_not_be_set_is_refused_by_field(
    url: str, file: Webhooks | None, key: bytes, field: str, says: str
) -> None:
    request = WebhooksRequest(set=WebhookSetting(name="chat", url=url))
    refusal = asked(TenantWebhooks(tenant="ann"), request, file=file, key=key)
    assert isinstance(refusal, Refusal)
    assert refusal.field == field
    assert says in refusal.expected
    assert "pw" not in refusal.value


def test_a_tenant_has_a_few_and_no_more() -> None:
    had = TenantWebhooks(tenant="ann")
    for number in range(MOST_WEBHOOKS):
        request = WebhooksRequest(set=WebhookSetting(name=f"n{number}", url=URL))
        new = asked(had, request)
        assert isinstance(new, TenantWebhooks)
        had = new
    refusal = asked(had, WebhooksRequest(set=WebhookSetting(name="more", url=URL)))
    assert isinstance(refusal, Refusal)
    assert (refusal.field, "at most 8" in refusal.expected) == ("set.name", True)
    assert isinstance(
        asked(had, WebhooksRequest(set=WebhookSetting(name="n0", url=URL))), TenantWebhooks
    )


def test_a_host_that_operators_allow_no_more_is_told_and_sent_nothing() -> None:
    one = with_one().webhooks[0]
    fault = of_tenant("ann", one, Webhooks(tenant_key_file="/k"), KEY).fault
    assert fault == "its host is not among the tenant_hosts of the webhooks' file"
    assert "no --webhooks-file" in of_tenant("ann", one, None, b"").fault


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"set": {"name": "A b", "url": URL}}, "set.name"),
        ({"set": {"name": "", "url": URL}}, "set.name"),
        ({"set": {"url": URL}}, "set.name"),
        ({"set": {"name": "a", "url": "x" * 3000}}, "set.url"),
        ({"set": {"name": "a", "url": URL, "on": ["ended"]}}, "set.on[0]"),
        ({"set": {"name": "a", "url": URL, "key": "mine"}}, "set.key"),
        ({"set": {"name": "a", "url": URL, "queues": ["q"] * 17}}, "set.queues"),
        ({"remove": 7}, "remove"),
        ({"delete": "a"}, "delete"),
    ],
)
def test_a_request_that_is_none_is_refused_by_field(body: dict[str, object], field: str) -> None:
    refusal = decoded(WebhooksRequest, WEBHOOKS_REQUESTS, json.dumps(body).encode())
    assert isinstance(refusal, Refusal)
    assert refusal.field == field
