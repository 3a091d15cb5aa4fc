"""Perform actions of users, with credentials of their tenant or of the job administrator. The
page's own credentials allow no action. Each action has its own connection.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from berthmaster.control.dashboard.asking import NotAnswered
from berthmaster.control.dashboard.core.access import Person
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.messages.api import (
    PLACE_VERBS,
    CancelRequest,
    CordonRequest,
    DrainRequest,
    EvictRequest,
    HoldRequest,
    JobOrderRequest,
    Reason,
    ReleaseRequest,
    ReprioritizeRequest,
)
from berthmaster.lib.messages.families import encode
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.settings import CommonSettings

STEWARD: Final = "steward"
LIMIT_S: Final = 8.0
CONNECT_S: Final = 3.0
MOST_WHO: Final = 128  # characters of the user's name, as requests accept
Text = Annotated[str, Meta(max_length=253)]


JobVerb = Literal["cancel", "reprioritize", "hold", "release", "evict"]
PlaceVerb = Literal["cordon", "uncordon", "drain"]


class Act(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    verb: JobVerb | PlaceVerb
    tenant: Text = ""
    id: Text = ""
    priority: int = 0
    cluster: Text = ""
    node: Text = ""
    reason: Reason = ""
    evict: bool = False  # of hold: also a running job
    by_s: float | None = None  # of drain


class Forbidden(Exception):
    """The user may not perform this action. The text says what is needed."""


class _Settings(NamedTuple):
    nats_url: str
    nats_creds_file: Path | None
    inbox_prefix: str
    nats_ca_file: Path | None
    nats_plaintext: bool


ACTS: Final = msgspec.json.Decoder(Act)


class Hands:
    def __init__(self, settings: CommonSettings, folder: Path | None, log: LogLike) -> None:
        self._settings = settings
        self._folder = folder
        self._log = log

    def allowed(self, person: Person) -> dict[str, Any]:
        """Return the actions that the page may offer to a user."""
        able = self._folder is not None and person.acts
        return {
            "change": sorted(person.tenants) if able and person.role == "tenant" else [],
            "change_all": able and person.role == "operator",
            "cordon": able and person.may_cordon,
        }

    async def do(self, person: Person, act: Act) -> bytes:
        """Perform an action and return the raw reply. Raises Forbidden, NotAnswered,
        msgspec.ValidationError.
        """
        user = self._user_for(person, act)
        subject, body = _request(person, act)
        file = (self._folder or Path()) / f"{user}.creds"
        if not file.is_file():
            raise Forbidden(f"the page has no credentials {file.name} to do that with")
        common = self._settings
        settings = _Settings(
            common.nats_url,
            file,
            inbox_prefix(user),
            common.nats_ca_file,
            common.nats_plaintext,
        )
        self._log.info("action requested", who=person.name, verb=act.verb, subject=subject)
        try:
            conn = await Connection.open(
                settings, user, self._log, timeout_s=CONNECT_S, clock_subject=""
            )
            async with conn:
                return (await conn.request(subject, body, timeout_s=LIMIT_S)).data
        except BusError as error:
            raise NotAnswered(f"it was not done, or nobody said so: {error}") from error

    def _user_for(self, person: Person, act: Act) -> str:
        if self._folder is None:
            raise Forbidden("nobody acts by way of this page: it runs without --hands-dir")
        if act.verb in PLACE_VERBS:
            if not person.may_cordon:
                raise Forbidden("only an operator who may act cordons and drains")
            return STEWARD
        if not person.may_change(act.tenant):
            raise Forbidden(f"you may not change jobs of tenant {act.tenant!r}")
        return STEWARD if person.role == "operator" else f"tenant.{subjects.token(act.tenant)}"


def _request(person: Person, act: Act) -> tuple[str, bytes]:
    by, who = f"by {person.name} on the page", person.name[:MOST_WHO]
    reason = f"{act.reason} ({by})" if act.reason else by
    match act.verb:
        case "cancel":
            cancel = _checked(CancelRequest(id=act.id, reason=reason[:1024]))
            return subjects.api(act.tenant, act.verb), cancel
        case "reprioritize":
            change = _checked(ReprioritizeRequest(id=act.id, priority=act.priority))
            return subjects.api(act.tenant, act.verb), change
        case "hold" | "release" | "evict" if person.role == "operator":
            order = JobOrderRequest(
                tenant=act.tenant,
                id=act.id,
                reason=act.reason,
                who=who,
                evict=act.evict and act.verb == "hold",
            )
            return subjects.operator(f"{act.verb}_job"), _checked(order)
        case "hold":
            hold = HoldRequest(id=act.id, reason=reason[:1024], evict=act.evict)
            return subjects.api(act.tenant, act.verb), _checked(hold)
        case "release":
            release = ReleaseRequest(id=act.id, reason=reason[:1024])
            return subjects.api(act.tenant, act.verb), _checked(release)
        case "evict":
            evict = EvictRequest(id=act.id, reason=reason[:1024])
            return subjects.api(act.tenant, act.verb), _checked(evict)
        case "drain":
            drain = DrainRequest(
                cluster=act.cluster,
                node=act.node or None,
                reason=reason[:1024],
                who=who,
                by_s=act.by_s,
            )
            return subjects.operator(act.verb), _checked(drain)
        case "cordon" | "uncordon":
            cordon = CordonRequest(
                cluster=act.cluster,
                node=act.node or None,
                reason=reason[:1024],
                who=who,
            )
            return subjects.operator(act.verb), _checked(cordon)


def _checked(request: msgspec.Struct) -> bytes:
    """Return the encoded request. An invalid one raises here, as the gateway would refuse it,
    without the cost of a connection.
    """
    data = encode(request)
    msgspec.json.decode(data, type=type(request))
    return data
