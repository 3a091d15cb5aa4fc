"""The parts of a ClusterClaim that are read. Pure."""

from berthmaster.lib.kube.objects import Object, Struct


class ClusterClaimSpec(Struct, frozen=True):
    value: str = ""


class ClusterClaim(Object, frozen=True):
    spec: ClusterClaimSpec = ClusterClaimSpec()
