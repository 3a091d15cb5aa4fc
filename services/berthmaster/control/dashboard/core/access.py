"""Who looks, and what that person may see and do. Pure.

Three ways to be somebody, in this order:

- a token that the file of people knows, by its SHA-256: in the header Authorization, or in the
  cookie that the page sets for it;
- a name that a reverse proxy vouches for in a header. It counts only if the connection comes from
  an address that is named as a proxy's: else whoever connects could write any name there;
- nobody in particular: where anybody may look (only on loopback, unless it is said to be so), and
  then without any right to act.

Tokens are compared in constant time with all that there are. An address that has shown wrong ones
has to wait; others do not.
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
TRY_AGAIN_S: Final = 6.0  # for each one more
MAX_ADDRESSES: Final = 10_000
MAX_TOKEN: Final = 4_096
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=253)]  # as the proxy says it; "*" = the rest
    role: Role
    tenants: tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...] = ()  # role tenant
    acts: bool = False  # may cancel and reprioritize what it sees; an operator may cordon, too
    token_sha256: tuple[Sha256, ...] = ()


class People(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    people: Annotated[tuple[Listed, ...], Meta(max_length=100_000)] = ()


class PeopleError(ValueError):
    """The file is not right; the text says where."""


class Person(NamedTuple):
    name: str  # "" = nobody in particular
    role: Role
    tenants: frozenset[str]
    acts: bool

    @property
    def scope(self) -> Scope:
        return Scope(self.role != "tenant", self.tenants)

    def may_change(self, tenant: str) -> bool:
        """Whether it may cancel, reprioritize, hold, release and evict jobs of a tenant."""
        return self.acts and (self.role == "operator" or tenant in self.tenants)

    @property
    def may_cordon(self) -> bool:
        """Whether it may cordon and drain clusters and nodes."""
        return self.acts and self.role == "operator"


ANYBODY: Final = Person("", "watcher", frozenset(), False)


class Refused(NamedTuple):
    """Why nobody is let in, and how long to wait before the next try; 0 = no need to."""

    why: str
    again_s: float = 0.0


class Shown(NamedTuple):
    address: str  # of the connection
    token: str = ""
    identity: str = ""  # as the proxy's header says it
    forwarded: str = ""  # the address that a proxy names as its client's


_READER: Final = msgspec.json.Decoder(People)


def read_people(data: bytes) -> People:
    """Raises PeopleError."""
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
    """Knows people by what they show."""

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
        """Who that is."""
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
        for known, name in self._tokens:  # all of them, whichever it is
            if hmac.compare_digest(known, digest):
                found = name
        return found


class Tries:
    """Wrong tokens: a bucket for each address."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """How long an address has to wait before it may try; 0 = it may."""
        return max(0.0, self._until.get(address, 0.0) - (TRIES - 1) * TRY_AGAIN_S - now_s)

    def wrong(self, address: str, now_s: float) -> None:
        self._until[address] = max(now_s, self._until.get(address, 0.0)) + TRY_AGAIN_S
        self._until.move_to_end(address)
        if len(self._until) > MAX_ADDRESSES:
            self._until.popitem(last=False)


def _person(listed: Listed, name: str) -> Person:
    return Person(name, listed.role, frozenset(listed.tenants), listed.acts)


def network_problem(texts: Sequence[str]) -> str:
    """What is wrong with addresses of proxies; "" = nothing."""
    for text in texts:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            return f"addresses or networks such as 10.0.0.7 or 10.0.0.0/24, not {text!r}"
    return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
