"""Who is told of the ends of which jobs: a file that an operator writes. Pure.

::

    {"webhooks": [{"name": "vision", "url": "https://hooks.example/berth",
                   "key_file": "/etc/berth/hooks/vision.key",
                   "on": ["failed", "evicted"], "tenants": ["vision"], "labels": {"team": "nlp"}}],
     "private_hosts": ["hooks.corp.example"],
     "queue_hosts": ["hooks.example"], "queue_keys": "/etc/berth/hooks",
     "tenant_hosts": ["hooks.slack.com"], "tenant_key_file": "/etc/berth/hooks/tenants.key"}

The file is the list of hosts that are spoken to at all: those of its webhooks, those that the
settings of queues may name, and those that tenants may name for themselves. What a webhook leaves
out selects everything. Keys stand in files of their own: one that a queue's setting names is the
file of that name among ``queue_keys``; all keys of tenants follow from one.
"""

from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Meta

from berthmaster.lifecycle.workload import Workload
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.control import EndKind as Kind
from berthmaster.messages.control import QueueSetting, TenantWebhook
from berthmaster.messages.usage import WebhookView
from berthmaster.messages.workload import Cancelled, Evicted, Failed, Succeeded
from berthmaster.usage.sealing import CannotOpen, open_url, signing_key

MAX_BYTES: Final = 1024 * 1024
KINDS: Final = ("succeeded", "failed", "cancelled", "evicted")
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
    """The file is not what it should be; the text names the field and what would be right."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One address, and what it is told of: all that is given must hold."""

    name: Name
    url: Text
    key_file: Text
    on: Annotated[tuple[Kind, ...], Meta(min_length=1)] = ("succeeded", "failed", "cancelled")
    tenants: Names = ()
    queues: Names = ()
    sets: Names = ()
    labels: dict[str, str] = {}

    def wants(self, notice: "Notice") -> bool:
        """Whether it is to be told."""
        return (
            notice.event in self.on
            and (not self.tenants or notice.tenant in self.tenants)
            and (not self.queues or notice.queue in self.queues)
            and (not self.sets or notice.set in self.sets)
            and self.labels.items() <= notice.labels.items()
        )


class Webhooks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    webhooks: Annotated[tuple[Webhook, ...], Meta(max_length=1000)] = ()
    queue_hosts: Names = ()  # that settings of queues may name
    queue_keys: Annotated[str, Meta(max_length=2048)] = ""  # folder of the keys that they name
    tenant_hosts: Names = ()  # that tenants may name for themselves
    tenant_key_file: Annotated[str, Meta(max_length=2048)] = ""  # what their keys follow from
    private_hosts: Names = ()  # whose addresses may be private; http only where it is this machine


class Recipient(NamedTuple):
    """A webhook, whoever has set it."""

    webhook: Webhook
    fault: str = ""  # why nothing is sent; "" = it may be
    whose: Literal["operators", "queue", "tenant"] = "operators"
    key: bytes = b""  # that notices are signed with; b"" = what its file holds
    set_at_s: float = 0.0

    def view(self) -> WebhookView:
        """Without its URL and its key."""
        webhook, of_tenant = self.webhook, self.whose == "tenant"
        return WebhookView(
            name=webhook.name.rpartition("/")[2],
            whose=self.whose,
            tenant=webhook.tenants[0] if of_tenant else "",
            queue=webhook.queues[0] if self.whose == "queue" else "",
            host=host_of(webhook.url),
            on=webhook.on,
            queues=webhook.queues if self.whose != "queue" else (),
            sets=webhook.sets,
            labels=webhook.labels,
            set_at_s=self.set_at_s,
            fault=self.fault,
        )


NO_FILE: Final = "the usage service has no --webhooks-file, so that nothing is sent to anybody"


def of_queue(setting: QueueSetting, file: Webhooks | None) -> Recipient | None:
    """What a queue's setting names."""
    asked = setting.webhook
    if asked is None:
        return None
    fault = ""
    if file is None:
        file, fault = Webhooks(), NO_FILE
    elif url_fault(asked.url, file.private_hosts):
        fault = "its address is none that the webhooks' file allows"
    elif host_of(asked.url) not in file.queue_hosts:
        fault = "its host is not among the queue_hosts of the webhooks' file"
    elif not file.queue_keys:
        fault = "the webhooks' file names no folder queue_keys"
    elif "/" in asked.key or asked.key.startswith("."):
        fault = "its key has no name"
    webhook = Webhook(
        name=f"of-queue-{setting.queue}",
        url=asked.url,
        key_file=f"{file.queue_keys}/{asked.key}",
        on=asked.on,
        queues=(setting.queue,),
    )
    return Recipient(webhook, fault, "queue", set_at_s=setting.set_at_s)


def of_tenant(tenant: str, one: TenantWebhook, file: Webhooks | None, key: bytes) -> Recipient:
    """What a tenant has set for itself. ``key``: what is in the file of that key; b"" = nothing."""
    url, fault = f"https://{one.host}/", ""
    if file is None:
        fault = NO_FILE
    elif one.host not in file.tenant_hosts:
        fault = "its host is not among the tenant_hosts of the webhooks' file"
    elif not key:
        fault = "the webhooks' file names no tenant_key_file that can be read"
    else:
        try:
            url = open_url(key, tenant, one.name, one.sealed_url)
        except CannotOpen:
            fault = "the key of the webhooks' file is another one now: set it again"
    webhook = Webhook(
        name=f"{tenant}/{one.name}",
        url=url,
        key_file="",
        on=one.on,
        tenants=(tenant,),
        queues=one.queues,
        sets=one.sets,
        labels=one.labels,
    )
    signs = signing_key(key, tenant, one.name, one.salt) if key else b""
    return Recipient(webhook, fault, "tenant", signs, one.set_at_s)


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is told, as JSON. The same event has the same ``notice`` in every try."""

    notice: str
    text: str  # one line for people; what chat services show
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
    """Raises WebhooksError."""
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
    """What would be right; "" if it is. The URL itself is not repeated: it may hold a secret."""
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
    """Of any text; "" if it names none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def address_of(url: str) -> tuple[SplitResult, str, int]:
    """The parts of a right URL, with its host and port."""
    parts = urlsplit(url)
    return parts, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def notice_of(recorded: RecordedEvent, work: Workload) -> Notice | None:
    """What is told of this event of a workload; None: nothing, as it ends no attempt, or one part
    of a job whose whole is told of."""
    event, request = recorded.event, work.request
    kind = _KIND_OF.get(type(event))
    if kind is None or not isinstance(event, Succeeded | Failed | Cancelled | Evicted):
        return None
    if request is not None and request.part is not None:
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
