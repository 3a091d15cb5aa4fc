"""What an operator may name as a queue's webhook."""

import json

import pytest

from berthmaster.messages.api import Refusal
from berthmaster.messages.control import QueueSetting, QueueWebhook
from berthmaster.requests.validation import queue_setting
from berthmaster.usage.webhooks import Webhooks, of_queue


@pytest.mark.parametrize(
    ("webhook", "field"),
    [
        ({"url": "https://hooks.example/berth?x=1", "key": "night.key"}, ""),
        ({"url": "https://hooks.example:8443", "key": "k", "on": ["evicted"]}, ""),
        ({"url": "http://127.0.0.1:80/", "key": "k"}, ""),
        ({"url": "http://hooks.example/", "key": "k"}, "webhook.url"),
        ({"url": "https://me:pw-1@hooks.example/", "key": "k"}, "webhook.url"),
        ({"url": "https://hooks.example:99999/", "key": "k"}, "webhook.url"),
        ({"url": "https://hooks.example/#a", "key": "k"}, "webhook.url"),
        ({"url": "https://hooks.example/a b", "key": "k"}, "webhook.url"),
        ({"url": "file:///etc/passwd", "key": "k"}, "webhook.url"),
        ({"url": "", "key": "k"}, "webhook.url"),
        ({"url": "https://hooks.example/", "key": "../creds"}, "webhook.key"),
        ({"url": "https://hooks.example/", "key": ".hidden"}, "webhook.key"),
        ({"url": "https://hooks.example/", "key": ""}, "webhook.key"),
        ({"url": "https://hooks.example/"}, "webhook.key"),
        ({"url": "https://hooks.example/", "key": "k", "on": []}, "webhook.on"),
        ({"url": "https://hooks.example/", "key": "k", "on": ["ended"]}, "webhook.on[0]"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused_by_field(
    webhook: dict[str, object], field: str
) -> None:
    told = queue_setting(json.dumps({"queue": "night", "webhook": webhook}).encode())
    assert (told.field if isinstance(told, Refusal) else "") == field
    assert "pw-1" not in repr(told)


@pytest.mark.parametrize(
    ("url", "file", "fault"),
    [
        ("https://a.example/", None, "has no --webhooks-file"),
        ("https://a.example/", Webhooks(), "not among the queue_hosts"),
        ("https://a.example/", Webhooks(queue_hosts=("a.example",)), "no folder queue_keys"),
        ("https://a.example:99999/", Webhooks(queue_hosts=("a.example",)), "its address is none"),
        ("http://127.0.0.1/", Webhooks(queue_hosts=("127.0.0.1",)), "its address is none"),
        ("https://a.example/", Webhooks(queue_hosts=("a.example",), queue_keys="/k"), ""),
    ],
)
def test_what_a_queue_names_is_told_only_as_the_operators_file_allows(
    url: str, file: Webhooks | None, fault: str
) -> None:
    setting = QueueSetting(queue="night", webhook=QueueWebhook(url=url, key="one"))
    found = of_queue(setting, file)
    assert found is not None
    keys = file.queue_keys if file is not None else ""
    assert (found.webhook.queues, found.webhook.key_file) == (("night",), f"{keys}/one")
    assert fault in found.fault
    assert bool(fault) == bool(found.fault)
    assert of_queue(QueueSetting(queue="night"), file) is None
