"""Instructions of the core of claims. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.resources import CLUSTER_CLAIMS
from berthmaster.lib.ocm.core.kept_objects import Create, Key, Kind
from berthmaster.worker.claims.core.objects import ClusterClaim

CLAIM = "claim"
KINDS: Final[Mapping[str, Kind]] = {CLAIM: Kind(CLUSTER_CLAIMS, ClusterClaim)}


class CreateClaim(Create, frozen=True):
    """Make a claim of the cluster."""

    value: str


class WriteClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Change a claim in the version read."""

    key: Key
    resource_version: str
    value: str


Write = CreateClaim | WriteClaim
Instruction = Write | KubeEvent
