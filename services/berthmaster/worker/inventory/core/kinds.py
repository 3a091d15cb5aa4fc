"""Kinds of objects that an inventory watches. Pure."""

from enum import Enum
from typing import Final

HOLDERS: Final = "holders"  # GPU holders of a node, counted as their maximum


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
    SENT_JOBS = "jobs"  # Jobs created by MultiKueue
    DEFINITIONS = "customresourcedefinitions"
    CONFIGURATION = "configmaps"  # Kueue's
