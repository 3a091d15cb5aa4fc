"""What credentials sees of a cluster, and what steps found out. Pure.

Nothing here shows a token when printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from berthmaster.hub.credentials.core.names import digest

LEAST_LIFE_S: Final = 600.0  # of a token: what an API server grants at least
SHARE: Final = 2 / 3  # of its life, after which a bootstrap's token is renewed


class Endpoint(NamedTuple):
    """Where an API server is and who vouches for it (PEM; empty = the system's authorities)."""

    server: str
    ca: bytes = b""
    server_name: str = ""
    proxy: str = ""

    @property
    def fingerprint(self) -> str:
        """Another one means another cluster."""
        return digest(self.server, self.ca.decode("latin-1"), self.server_name, self.proxy)


class Bootstrap(NamedTuple):
    """A person's kubeconfig for the worker, by which we make what is needed there."""

    endpoint: Endpoint
    secret: str  # namespace/name
    version: str  # of the Secret: another one may hold other credentials

    @property
    def target(self) -> str:
        """What a token was made for."""
        return self.endpoint.fingerprint


@dataclass(frozen=True)
class Token:
    """What OCM's addon brought."""

    serial: str
    text: str = field(repr=False)
    expires_at_s: float = 0.0  # 0 = not said


class Life(NamedTuple):
    """What a ServiceAccount's token says of itself."""

    namespace: str
    account: str
    issued_at_s: float
    expires_at_s: float

    @property
    def lasts_s(self) -> float:
        """How long it was made for; not less than an API server grants."""
        return max(LEAST_LIFE_S, self.expires_at_s - self.issued_at_s)

    def is_due(self, now_s: float, renew_after_s: float) -> bool:
        """``renew_after_s``: 0 = at two thirds of its life."""
        after_s = renew_after_s or SHARE * (self.expires_at_s - self.issued_at_s)
        return now_s >= self.issued_at_s + after_s


class Managed(NamedTuple):
    """Open Cluster Management makes the account; None = not known yet."""

    endpoint: Endpoint | None
    token: Token | None
    trouble: str = ""  # what the account's conditions say

    @property
    def target(self) -> str:
        """What a token was made for."""
        return self.endpoint.fingerprint if self.endpoint is not None else ""


class Refused(NamedTuple):
    """A bootstrap Secret that is not used, with the field and what is wrong with it."""

    secret: str
    field: str
    why: str


Source = Bootstrap | Managed | Refused


class Held(NamedTuple):
    """The Secret that Kueue reads, as far as it is ours."""

    target: str
    told: str
    serial: str
    issued_at_s: float
    expires_at_s: float
    usable: bool  # it holds a kubeconfig
    managed: bool  # its token is OCM's
    version: str
    uid: str


class Registration(NamedTuple):
    """Our MultiKueueCluster."""

    right: bool  # it names our Secret
    version: str
    uid: str


class Observed(NamedTuple):
    """All that the hub says of one cluster."""

    known: bool = False
    told: str = ""  # fingerprint of what ManagedCluster and ClusterProfile say of its endpoint
    source: Source | None = None
    secret: Held | None = None
    registered: Registration | None = None
    listed_by: tuple[str, ...] = ()  # MultiKueueConfigs
    requested: bool = False  # OCM's objects are there as we want them
    asked: bool = False  # one of OCM's objects that is ours is there
    foreign: str = ""  # an object of somebody else that stands where ours should


@dataclass(frozen=True)
class Minted:
    """A token that was verified and is not in Kueue's Secret yet."""

    target: str
    serial: str
    issued_at_s: float
    expires_at_s: float
    token: str = field(repr=False)
    managed: bool = False


class Survey(NamedTuple):
    """What of ours is on a worker."""

    target: str
    version: str  # of the bootstrap Secret
    bound: Mapping[str, float]  # serial: when it was made, by our clock
    account: bool  # account or roles are there
    prepared: bool = False  # they are as they should be
