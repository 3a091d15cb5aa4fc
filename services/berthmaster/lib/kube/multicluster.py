"""The kinds of sig-multicluster's cluster inventory: ClusterProfile and PlacementDecision. Pure.

A ClusterProfile states how to reach its cluster: an *access provider* has a name, and the address
of the API server. A consumer maps the name to a credential plugin of its own. Example::

    status:
      accessProviders:
      - name: secretreader
        cluster:
          server: https://east:6443
          certificate-authority-data: LS0t…
          extensions:
          - {name: client.authentication.k8s.io/exec, extension: {clusterName: east}}
"""

from typing import Any, Final

import msgspec

from berthmaster.lib.kube.objects import Condition, Object, Struct

EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"  # data for the credential plugin
DECISION_KEY: Final = "multicluster.x-k8s.io/decision-key"  # label of all slices of a decision
DECISION_INDEX: Final = "multicluster.x-k8s.io/decision-index"  # label: place of a slice, from 0


class Property(Struct, frozen=True):
    """A property of a cluster, or a ClusterClaim."""

    name: str = ""
    value: str = ""
    last_observed_time: str | None = None


class ClusterVersion(Struct, frozen=True):
    kubernetes: str = ""


class ClusterManager(Struct, frozen=True):
    """The owner of a ClusterProfile."""

    name: str = ""


class ClusterProfileSpec(Struct, frozen=True):
    """The immutable spec with the manager."""

    cluster_manager: ClusterManager = ClusterManager()


class Extension(Struct, frozen=True):
    """Named data of any form."""

    name: str = ""
    extension: Any = None


class ProviderCluster(Struct, frozen=True):
    """The address of an API server, in the form of a kubeconfig's cluster."""

    server: str = ""
    ca: str = msgspec.field(default="", name="certificate-authority-data")
    server_name: str = msgspec.field(default="", name="tls-server-name")
    proxy: str = msgspec.field(default="", name="proxy-url")
    insecure: bool = msgspec.field(default=False, name="insecure-skip-tls-verify")
    extensions: tuple[Extension, ...] | None = ()


class AccessProvider(Struct, frozen=True):
    """A way to access a cluster."""

    name: str = ""
    cluster: ProviderCluster | None = None


class ClusterProfileStatus(Struct, frozen=True):
    version: ClusterVersion = ClusterVersion()
    properties: tuple[Property, ...] = ()
    conditions: tuple[Condition, ...] = ()
    access_providers: tuple[AccessProvider, ...] | None = ()
    credential_providers: tuple[AccessProvider, ...] | None = ()  # the field's former name


class ClusterProfile(Object, frozen=True):
    """A cluster in the inventory."""

    spec: ClusterProfileSpec = ClusterProfileSpec()
    status: ClusterProfileStatus = ClusterProfileStatus()


class ProfileReference(Struct, frozen=True):
    """A ClusterProfile; namespace "" = the namespace of the decision."""

    name: str = ""
    namespace: str = ""


class ProfileDecision(Struct, frozen=True):
    """A chosen cluster."""

    cluster_profile_ref: ProfileReference = ProfileReference()
    reason: str = ""


class DecisionSlice(Object, frozen=True):
    """A PlacementDecision of sig-multicluster: at most a hundred chosen clusters."""

    decisions: tuple[ProfileDecision, ...] | None = ()
    scheduler_name: str = ""
