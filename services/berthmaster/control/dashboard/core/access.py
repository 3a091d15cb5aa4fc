"""Users and their rights. Pure.

A user is found in one of three ways, in this order:

1. By a token in the users file, by its SHA-256: in the header Authorization, or in the page's
   cookie.
2. By a name in a reverse proxy's header. The name counts only on a connection from a configured
   proxy address: any other client could write any name.
3. As an anonymous user without the right to act, where the page is open to all: on loopback, or if
   configured.

A token is compared with all known ones in constant time. An address with wrong tokens has to wait,
and other addresses do not.
"""

import hashlib
import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from berthmaster.control.dashboard.core.board import Scope
from berthmaster.lib.messages.families import UNREADABLE

Role = Literal["watcher", "tenant", "operator"]
TRIES: Final = 10  # wrong tokens of one address at once
TRY_AGAIN_S: Final = 6.0  # pause for each further token
MAX_ADDRESSES: Final = 10_000
MAX_TOKEN: Final = 4_096
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=253)]  # as in the proxy's header, "*": all
    role: Role
    tenants: tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...] = ()  # role tenant
    acts: bool = False  # may change visible jobs. Operators may also cordon
    token_sha256: tuple[Sha256, ...] = ()


class People(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    people: Annotated[tuple[Listed, ...], Meta(max_length=100_000)] = ()


class PeopleError(ValueError):
    """The users file is invalid. The text says where."""


class Person(NamedTuple):
    name: str  # "" = anonymous
    role: Role
    tenants: frozenset[str]
    acts: bool

    @property
    def scope(self) -> Scope:
        return Scope(self.role != "tenant", self.tenants)

    def may_change(self, tenant: str) -> bool:
        """Return whether the user may cancel, reprioritize, hold, release and evict a tenant's
        jobs.
        """
        return self.acts and (self.role == "operator" or tenant in self.tenants)

    @property
    def may_cordon(self) -> bool:
        """Return whether the user may cordon and drain clusters and nodes."""
        return self.acts and self.role == "operator"


ANYBODY: Final = Person("", "watcher", frozenset(), False)


class Refused(NamedTuple):
    """Reason of a refused login, with the seconds before the next try, 0 for no pause."""

    why: str
    again_s: float = 0.0


class Shown(NamedTuple):
    address: str  # of the connection
    token: str = ""
    identity: str = ""  # as in the proxy's header
    forwarded: str = ""  # client address in the proxy's header


_READER: Final = msgspec.json.Decoder(People)


def read_people(data: bytes) -> People:
    """Return the parsed users file. Raises PeopleError."""
    try:
        people = _READER.decode(data)
    except UNREADABLE as error:
        raise PeopleError(str(error)) from None
    seen: set[str] = set()
    for each in people.people:
        if each.name in seen:
            raise PeopleError(f"{each.name!r} stands there twice")
        seen.add(each.name)
        if each.role == "tenant" and not each.tenants:
            raise PeopleError(f"{each.name!r} is of role tenant and names none in `tenants`")
        if each.role != "tenant" and each.tenants:
            raise PeopleError(f"{each.name!r} names tenants, which role {each.role} does not have")
        if each.role == "watcher" and each.acts:
            raise PeopleError(f"{each.name!r}: a watcher does not act; an operator may")
        if each.name == "*" and (each.acts or each.token_sha256):
            raise PeopleError("'*' is whoever the proxy names: without `acts`, without tokens")
    return people


class Doorkeeper:
    """Finds users by their credentials."""

    def __init__(
        self, people: People, *, proxies: Sequence[str] = (), anybody: bool = False
    ) -> None:
        self._by_name = {each.name: each for each in people.people}
        self._tokens = [
            (bytes.fromhex(digest), each.name)
            for each in people.people
            for digest in each.token_sha256
        ]
        self._proxies = [ipaddress.ip_network(text, strict=False) for text in proxies]
        self._anybody = anybody
        self._tries = Tries()

    def who(self, shown: Shown, now_s: float) -> Person | Refused:
        """Return the user, or a refusal."""
        proxied = self._is_proxy(shown.address)
        if shown.token:
            address = shown.forwarded if proxied and shown.forwarded else shown.address
            if (wait_s := self._tries.wait_s(address, now_s)) > 0:
                return Refused("too many wrong tokens; wait", wait_s)
            if (name := self._of_token(shown.token)) is not None:
                return _person(self._by_name[name], name)
            self._tries.wrong(address, now_s)
            return Refused("this token is not known here")
        if shown.identity and proxied:
            listed = self._by_name.get(shown.identity) or self._by_name.get("*")
            if listed is None:
                return Refused("nobody of this name may look here")
            return _person(listed, shown.identity)
        if self._anybody:
            return ANYBODY
        return Refused("show a token, or come by way of the proxy")

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._proxies)

    def _of_token(self, token: str) -> str | None:
        if len(token) > MAX_TOKEN:
            return None
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        found = None
        for known, name in self._tokens:  # all of them, for constant time
            if hmac.compare_digest(known, digest):
                found = name
        return found


class Tries:
    """Token buckets for wrong tokens, one for each address."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """Return the seconds before an address may try, or 0."""
        return max(0.0, self._until.get(address, 0.0) - (TRIES - 1) * TRY_AGAIN_S - now_s)

    def wrong(self, address: str, now_s: float) -> None:
        self._until[address] = max(now_s, self._until.get(address, 0.0)) + TRY_AGAIN_S
        self._until.move_to_end(address)
        if len(self._until) > MAX_ADDRESSES:
            self._until.popitem(last=False)


def _person(listed: Listed, name: str) -> Person:
    return Person(name, listed.role, frozenset(listed.tenants), listed.acts)


def network_problem(texts: Sequence[str]) -> str:
    """Return the fault of configured proxy addresses, or ""."""
    for text in texts:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            return f"addresses or networks such as 10.0.0.7 or 10.0.0.0/24, not {text!r}"
    return ""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
