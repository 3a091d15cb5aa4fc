"""The part of a ClusterClaim that is read before it is written. Pure."""

from berthmaster.lib.kube.objects import Object, Struct


class ClusterClaimSpec(Struct, frozen=True):
    """What a cluster says of itself."""

    value: str = ""


class ClusterClaim(Object, frozen=True):
    """One claim of a managed cluster, which lies in that cluster."""

    spec: ClusterClaimSpec = ClusterClaimSpec()
