"""What is wrong with a webhook that an operator names, by field. Pure."""

import re
from typing import Final

from berthmaster.messages.api import Refusal
from berthmaster.messages.control import QueueWebhook
from berthmaster.messages.explain import invalid

_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?(?:/[!-~]*)?\Z"
)
_KEY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}\Z")
_LOOPBACK: Final = ("127.0.0.1", "localhost")
MAX_PORT: Final = 65_535
URL_WORDS: Final = (
    "https://HOST[:PORT]/PATH without a user, a password and a #; http only to 127.0.0.1"
)
KEY_WORDS: Final = "the name of a key of the service that sends notices: letters, digits, - . and _"


def webhook_refusal(webhook: QueueWebhook) -> Refusal | None:
    """Why it cannot be set, if so. The URL is not repeated whole: it may hold what is secret."""
    found = _URL.match(webhook.url)
    in_plain_text = found is not None and found["scheme"] == "http"
    if found is None or "#" in webhook.url or int(found["port"] or 1) not in range(1, MAX_PORT + 1):
        return invalid(["webhook", "url"], "(not repeated: it may hold a secret)", URL_WORDS)
    if in_plain_text and found["host"] not in _LOOPBACK:
        return invalid(["webhook", "url"], found["host"], URL_WORDS)
    if not _KEY.match(webhook.key):
        return invalid(["webhook", "key"], webhook.key, KEY_WORDS)
    return None
