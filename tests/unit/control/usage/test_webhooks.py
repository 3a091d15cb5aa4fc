"""Who is told of which ends, what of, and to which addresses nothing is sent."""

import json
from typing import Any

import msgspec
import pytest

from berthmaster.control.usage.core.addresses import fault
from berthmaster.control.usage.webhooks import (
    Notice,
    Webhook,
    WebhooksError,
    address_of,
    notice_of,
    parse_webhooks,
)
from berthmaster.lib.lifecycle.fold import fold_history
from tests.unit.control.usage.stories import Story

HOOK: dict[str, Any] = {"name": "a", "url": "https://hooks.example/berth", "key_file": "/k"}
NOTICE = Notice(
    notice="ann/job/7", text="job failed", event="failed", tenant="ann", id="job", queue="night",
    set="sweep", labels={"team": "nlp", "who": "x"}, at_s=9.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "wants"),
    [
        ({}, True),
        ({"on": ["failed", "evicted"], "tenants": ["ann"], "labels": {"team": "nlp"}}, True),
        ({"queues": ["night"], "sets": ["sweep", "other"]}, True),
        ({"on": ["succeeded"]}, False),
        ({"tenants": ["bob"]}, False),
        ({"queues": ["day"]}, False),
        ({"sets": ["other"]}, False),
        ({"labels": {"team": "cv"}}, False),
    ],
)
def test_all_that_a_webhook_names_must_hold(given: dict[str, Any], wants: bool) -> None:
    assert msgspec.convert(HOOK | given, Webhook).wants(NOTICE) is wants


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ([], "Expected `object`"),
        ({"webhook": []}, "unknown field `webhook`"),
        ({"webhooks": [HOOK, HOOK]}, "two are called 'a'"),
        ({"webhooks": [{"name": "a", "url": "https://h"}]}, "missing required field `key_file`"),
        ({"webhooks": [HOOK | {"on": []}]}, "length >= 1"),
        ({"webhooks": [HOOK | {"on": ["ended"]}]}, "Invalid enum value 'ended'"),
        ({"webhooks": [HOOK | {"url": "http://hooks.example/"}]}, "http only to this machine"),
        ({"webhooks": [HOOK | {"url": "file:///etc/passwd"}]}, "an address such as https://"),
        ({"webhooks": [HOOK | {"url": "ftp://hooks.example/"}]}, "right is https://"),
        ({"webhooks": [HOOK | {"url": "https://h:1x/"}]}, "an address such as https://"),
        ({"webhooks": [HOOK | {"url": "https://h/\r\nX: y"}]}, "an address such as https://"),
        ({"webhooks": [HOOK | {"url": "https://me:pw@h/"}]}, "without a user, a password"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_field(file: object, told: str) -> None:
    with pytest.raises(WebhooksError) as wrong:
        parse_webhooks(json.dumps(file).encode())
    assert told in str(wrong.value)
    assert "pw@" not in str(wrong.value)


def test_an_address_has_a_host_and_a_port() -> None:
    file = {"webhooks": [HOOK | {"url": "http://127.0.0.1:8/x"}], "private_hosts": ["127.0.0.1"]}
    (hook,) = parse_webhooks(json.dumps(file).encode()).webhooks
    assert address_of(hook.url)[1:] == ("127.0.0.1", 8)
    assert address_of("https://[2001:db8::1]/x")[1:] == ("2001:db8::1", 443)


PUBLIC, V6 = "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"


@pytest.mark.parametrize(
    ("addresses", "private", "plain", "right"),
    [
        ([PUBLIC], False, False, True),
        ([V6], False, False, True),
        ([PUBLIC, "10.0.0.1"], False, False, False),  # one of several
        (["127.0.0.1"], False, False, False),
        (["::1"], False, False, False),
        (["::ffff:10.0.0.1"], False, False, False),
        (["64:ff9b::a00:1"], False, False, False),  # 10.0.0.1 behind NAT64
        (["2002:a00:1::"], False, False, False),
        (["100.64.0.1"], False, False, False),
        (["fd00::1"], False, False, False),
        (["10.0.0.1"], True, False, True),
        (["169.254.169.254"], True, False, False),  # a cloud's metadata, whatever is allowed
        (["fe80::1%eth0"], True, False, False),
        (["0.0.0.0"], True, False, False),
        (["224.0.0.1"], True, False, False),
        (["127.0.0.1"], True, True, True),
        (["10.0.0.1"], True, True, False),
        ([], True, True, False),
    ],
)
def test_an_address_that_is_not_public_is_refused_unless_that_is_allowed(
    addresses: list[str], private: bool, plain: bool, right: bool
) -> None:
    assert (fault(addresses, may_be_private=private, in_plain_text=plain) == "") is right


def test_an_end_is_told_with_what_its_job_is_and_a_step_on_the_way_is_not() -> None:
    story = Story("train", queue="q2", labels={"team": "nlp"}).ran(1000.0, 1100.0)
    work, _ = fold_history(story.tenant, "train", story.events)
    told = [notice_of(one, work) for one in story.events]
    assert told[:-1] == [None] * (len(told) - 1)
    last = story.events[-1]
    assert told[-1] == Notice(
        notice=f"{story.tenant}/train/{last.sequence}", text="train succeeded: over",
        event="succeeded", tenant=story.tenant, id="train", queue="q2", labels={"team": "nlp"},
        attempt=1, cluster="c1", reason="over", at_s=last.stored_at_s,
    )  # fmt: skip
