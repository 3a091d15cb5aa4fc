"""The steps of the core, each for one cluster. Pure."""

from typing import NamedTuple

from berthmaster.hub.credentials.core.observed import (
    Bootstrap,
    Description,
    Endpoint,
    Held,
    Minted,
    Registration,
    Token,
)
from berthmaster.lib.kube.controller.shell_contract import KubeEvent


class Prepare(NamedTuple):
    """Create account and rights on the worker, and list the bound Secrets."""

    cluster: str
    source: Bootstrap


class Look(NamedTuple):
    cluster: str
    source: Bootstrap


class Mint(NamedTuple):
    """Create a bound Secret and its token, and make a real call with the token."""

    cluster: str
    source: Bootstrap
    serial: str


class Publish(NamedTuple):
    """Write a verified token into the Secret that Kueue reads."""

    cluster: str
    endpoint: Endpoint
    minted: Minted
    told: str
    held: Held | None


class Register(NamedTuple):
    """Create the MultiKueueCluster, or point it to Berthmaster's Secret or to the profile."""

    cluster: str
    registered: Registration | None
    profile: str = ""  # ClusterProfile for Kueue's own plugin; "" = Berthmaster's Secret


class Sweep(NamedTuple):
    """Delete bound Secrets, and thereby end their tokens."""

    cluster: str
    source: Bootstrap
    serials: tuple[str, ...]


class Check(NamedTuple):
    """Make a real call with the token that Kueue has."""

    cluster: str
    serial: str


class Request(NamedTuple):
    """Request an account and its rights from OCM."""

    cluster: str


class Adopt(NamedTuple):
    """Make a real call with the token from OCM or from a plugin."""

    cluster: str
    endpoint: Endpoint
    token: Token


class Describe(NamedTuple):
    """Write the access provider of a ClusterProfile by Berthmaster."""

    cluster: str
    wanted: Description


class Unregister(NamedTuple):
    cluster: str
    registered: Registration


class Revoke(NamedTuple):
    """Delete all of Berthmaster's objects on the worker."""

    cluster: str
    source: Bootstrap


class Release(NamedTuple):
    """Delete OCM's objects, and thereby the account."""

    cluster: str


class Empty(NamedTuple):
    """Remove the kubeconfig from the hub's Secret. The data for revoking stays."""

    cluster: str
    held: Held


class Forget(NamedTuple):
    """Delete the hub's Secret."""

    cluster: str
    held: Held


Step = (
    Prepare
    | Look
    | Mint
    | Publish
    | Register
    | Sweep
    | Check
    | Request
    | Adopt
    | Describe
    | Unregister
    | Revoke
    | Release
    | Empty
    | Forget
)

Instruction = Step | KubeEvent
