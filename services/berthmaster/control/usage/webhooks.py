"""Webhooks for the ends of jobs: a file that an operator writes. Pure.

::

    {"webhooks": [{"name": "vision", "url": "https://hooks.example/berth",
                   "key_file": "/etc/berth/hooks/vision.key",
                   "on": ["failed", "evicted"], "tenants": ["vision"], "labels": {"team": "nlp"}}],
     "private_hosts": ["hooks.corp.example"]}

The service sends to the addresses in this file only. A missing selector selects everything. Keys
are in files of their own.
"""

from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Meta

from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.workload import Cancelled, Evicted, Failed, Succeeded

MAX_BYTES: Final = 1024 * 1024
Kind = Literal["succeeded", "failed", "cancelled", "evicted"]
Name = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-zA-Z0-9._-]+$")]
Text = Annotated[str, Meta(min_length=1, max_length=2048)]
Names = Annotated[tuple[Text, ...], Meta(max_length=256)]
_KIND_OF: Final[dict[type, Kind]] = {
    Succeeded: "succeeded",
    Failed: "failed",
    Cancelled: "cancelled",
    Evicted: "evicted",
}


class WebhooksError(ValueError):
    """The file is invalid. The text names the field and a valid value."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One webhook and its selectors, all of which must match."""

    name: Name
    url: Text
    key_file: Text
    on: Annotated[tuple[Kind, ...], Meta(min_length=1)] = ("succeeded", "failed", "cancelled")
    tenants: Names = ()
    queues: Names = ()
    sets: Names = ()
    labels: dict[str, str] = {}

    def wants(self, notice: "Notice") -> bool:
        """Return whether the webhook selects this notice."""
        return (
            notice.event in self.on
            and (not self.tenants or notice.tenant in self.tenants)
            and (not self.queues or notice.queue in self.queues)
            and (not self.sets or notice.set in self.sets)
            and self.labels.items() <= notice.labels.items()
        )


class Webhooks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The webhooks file."""

    webhooks: Annotated[tuple[Webhook, ...], Meta(max_length=1000)] = ()
    private_hosts: Names = ()  # hosts that may have private addresses. http only for this machine


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a notice, as JSON. All tries for an event have the same ``notice``."""

    notice: str
    text: str  # one line for users, shown by chat services
    event: Kind
    tenant: str
    id: str
    queue: str = ""
    set: str = ""
    labels: dict[str, str] = {}
    attempt: int = 0
    cluster: str = ""
    reason: str = ""
    at_s: float


def parse_webhooks(text: bytes) -> Webhooks:
    """Return the parsed file. Raises WebhooksError."""
    if len(text) > MAX_BYTES:
        raise WebhooksError(f"{len(text)} bytes, at most {MAX_BYTES}")
    try:
        found = msgspec.json.decode(text, type=Webhooks)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WebhooksError(str(error).replace("`$", "`").replace("`.", "`")) from None
    names = [one.name for one in found.webhooks]
    if doubled := next((name for name in names if names.count(name) > 1), ""):
        raise WebhooksError(f"webhooks: two are called {doubled!r}; right is a name for each")
    for at, one in enumerate(found.webhooks):
        if wrong := url_fault(one.url, found.private_hosts):
            raise WebhooksError(f"webhooks[{at}].url of {one.name!r}: right is {wrong}")
    return found


def url_fault(url: str, private_hosts: Names) -> str:
    """Return a description of a valid URL, or "" if this URL is valid. The result leaves out the
    URL, because URLs may hold secrets.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "an address such as https://hooks.example/berth"
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        return "an address such as https://hooks.example/berth"
    if parts.username is not None or parts.fragment:
        return "an address without a user, a password and a #"
    if parts.scheme == "http" and host not in private_hosts:
        return "https://…; http only to this machine, for a host among private_hosts"
    return "" if parts.scheme in ("http", "https") else "https://…"


def host_of(url: str) -> str:
    """Return the host of any text, or ""."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def address_of(url: str) -> tuple[SplitResult, str, int]:
    """Return the parts of a valid URL, with its host and port."""
    parts = urlsplit(url)
    return parts, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def notice_of(recorded: RecordedEvent, work: Workload) -> Notice | None:
    """Return the notice of an event. None: the event ends no attempt, or the workload is part of a
    job with its own notice.
    """
    event, request = recorded.event, work.request
    kind = _KIND_OF.get(type(event))
    if kind is None or not isinstance(event, Succeeded | Failed | Cancelled | Evicted):
        return None
    if request is not None and (request.part is not None or request.trial_of):
        return None
    reason = f": {event.reason}" if event.reason else ""
    return Notice(
        notice=f"{event.tenant}/{event.id}/{recorded.sequence}",
        text=f"{event.id} {kind}{reason}",
        event=kind,
        tenant=event.tenant,
        id=event.id,
        queue=request.queue if request is not None else "",
        set=request.set if request is not None else "",
        labels=dict(request.labels) if request is not None else {},
        attempt=event.attempt,
        cluster=event.cluster,
        reason=event.reason,
        at_s=recorded.stored_at_s,
    )
