"""Labels, annotations, conditions and states of Kueue's objects. Pure."""

from typing import Final

GROUP: Final = "kueue.x-k8s.io"
QUEUE_LABEL: Final = f"{GROUP}/queue-name"  # label of a job: its LocalQueue
# Annotations of a Job: the minimum number of pods to start, and whether its completions follow.
MIN_PARALLELISM: Final = f"{GROUP}/job-min-parallelism"
EQUAL_COMPLETIONS: Final = f"{GROUP}/job-completions-equal-parallelism"
# Annotation of a Job with a variable number of pods ("true"). The scheduling gate of the same name
# holds the Job's pods until Kueue has reserved quota for them.
ELASTIC_JOB: Final = f"{GROUP}/elastic-job"
ELASTIC_GATE: Final = ELASTIC_JOB
JOB_UID_LABEL: Final = f"{GROUP}/job-uid"  # label of a job's Workloads
POD_SET_LABEL: Final = f"{GROUP}/podset"  # label of the pods of a job started by Kueue
WORKLOAD_ANNOTATION: Final = f"{GROUP}/workload"  # annotation of these pods: Workload
ORIGIN_LABEL: Final = f"{GROUP}/multikueue-origin"  # label of the copies created by MultiKueue
# On the jobs of these copies: the copy's name. An annotation; a label up to 0.17.
PREBUILT: Final = f"{GROUP}/prebuilt-workload-name"
MULTIKUEUE: Final = f"{GROUP}/multikueue"  # controller of the check, and a job's managedBy
ALL_AT_ONCE: Final = f"{GROUP}/multikueue-dispatcher-all-at-once"
INCREMENTAL: Final = f"{GROUP}/multikueue-dispatcher-incremental"

# Berthmaster's entries in Kueue's objects.
DISPATCHER: Final = "berthmaster.io/dispatcher"  # multiKueue.dispatcherName in mode dispatch
CHECK_CONTROLLER: Final = "berthmaster.io/placement"  # controller of Berthmaster's own checks
FLEET_NAME_ANNOTATION: Final = "berthmaster.io/cluster"  # annotation of a MultiKueueCluster
# Of a MultiKueueConfig: names of its draining clusters, such as "a,b".
DRAINING_ANNOTATION: Final = "berthmaster.io/draining"
HELD_ANNOTATION: Final = "berthmaster.io/held-by"  # of a Workload deactivated by a hold
# Of a Workload blocked in Kueue: time of the last wake-up.
NUDGED_ANNOTATION: Final = "berthmaster.io/nudged-at"
SELECTOR_ANNOTATION: Final = "berthmaster.io/cluster-selector"  # of a ClusterQueue or LocalQueue

# Conditions of a Workload.
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
EVICTED: Final = "Evicted"
PREEMPTED: Final = "Preempted"
FINISHED: Final = "Finished"
DEACTIVATION_TARGET: Final = "DeactivationTarget"  # about to be deactivated
# Condition of a queue, check or MultiKueueCluster that its controller reports as working.
ACTIVE: Final = "Active"

# States of an admission check of a Workload.
PENDING: Final = "Pending"
READY: Final = "Ready"
RETRY: Final = "Retry"
REJECTED: Final = "Rejected"

# Berthmaster's webhook that clears nominations, as deploy/chart/templates/clearing.yaml names it.
CLEARING_CONFIGURATION: Final = "berthmaster-clearing"
CLEARING_WEBHOOK: Final = "clearing.berthmaster.io"
