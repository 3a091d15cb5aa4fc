"""Mirrored objects of a hub. All kinds are required: without Kueue nothing can be dispatched."""

from typing import Final

from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    JOBS,
    KUEUE_WORKLOADS,
    LOCAL_QUEUES,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
)
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.multikueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from berthmaster.lib.kueue.queues import ClusterQueue, LocalQueue
from berthmaster.lib.kueue.workloads import KueueWorkload

ABSENT_S: Final = 5.0  # interval of checks for a missing kind
WATCHED: Final = (
    Watched(JOBS, HubJob),
    Watched(ADMISSION_CHECKS, AdmissionCheck),
    Watched(MULTIKUEUE_CONFIGS, MultiKueueConfig),
    Watched(MULTIKUEUE_CLUSTERS, MultiKueueCluster),
    Watched(CLUSTER_QUEUES, ClusterQueue),
    Watched(LOCAL_QUEUES, LocalQueue),
    Watched(KUEUE_WORKLOADS, KueueWorkload),
)
