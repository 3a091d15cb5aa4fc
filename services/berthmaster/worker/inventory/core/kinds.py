"""The kinds of objects that an inventory watches. Pure."""

from enum import Enum
from typing import Final

HOLDERS: Final = "holders"  # of a node's GPUs: what of them counts as the most that it could be


class WatchedKind(Enum):
    NODES = "nodes"
    PODS = "pods"
    WAITING = "waiting pods"
    SLICES = "resourceslices"
    CLAIMS = "resourceclaims"
    CLASSES = "deviceclasses"
    CLUSTER_QUEUES = "clusterqueues"
    LOCAL_QUEUES = "localqueues"
    FLAVORS = "resourceflavors"
    COHORTS = "cohorts"
    COPIES = "workloads"
    SENT_JOBS = "jobs"  # those that MultiKueue has made
    DEFINITIONS = "customresourcedefinitions"
    CONFIGURATION = "configmaps"  # Kueue's
