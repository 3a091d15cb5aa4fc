"""Labels, annotations, conditions and states by which Kueue and our services know their objects.
Pure."""

from typing import Final

GROUP: Final = "kueue.x-k8s.io"
QUEUE_LABEL: Final = f"{GROUP}/queue-name"  # on a job: its LocalQueue
MIN_PARALLELISM: Final = f"{GROUP}/job-min-parallelism"  # annotation of a Job: as few may start
EQUAL_COMPLETIONS: Final = f"{GROUP}/job-completions-equal-parallelism"  # and are all then
# Annotation of a Job whose number of pods may change ("true"), and the gate that Kueue then has its
# pods wait behind until it has quota for so many.
ELASTIC_JOB: Final = f"{GROUP}/elastic-job"
ELASTIC_GATE: Final = ELASTIC_JOB
JOB_UID_LABEL: Final = f"{GROUP}/job-uid"  # on the Workloads of a job
POD_SET_LABEL: Final = f"{GROUP}/podset"  # on the pods of what Kueue has started
WORKLOAD_ANNOTATION: Final = f"{GROUP}/workload"  # on them: of which Workload they are
ORIGIN_LABEL: Final = f"{GROUP}/multikueue-origin"  # on the copies that MultiKueue makes
# On the jobs of those copies: the copy's name. An annotation; a label until 0.17.
PREBUILT: Final = f"{GROUP}/prebuilt-workload-name"
MULTIKUEUE: Final = f"{GROUP}/multikueue"  # controller of the check, and a job's managedBy
ALL_AT_ONCE: Final = f"{GROUP}/multikueue-dispatcher-all-at-once"
INCREMENTAL: Final = f"{GROUP}/multikueue-dispatcher-incremental"

# Ours on Kueue's objects.
CHECK_CONTROLLER: Final = "berthmaster.io/placement"  # controller of our own checks
FLEET_NAME_ANNOTATION: Final = "berthmaster.io/cluster"  # on a MultiKueueCluster
DRAINING_ANNOTATION: Final = "berthmaster.io/draining"  # on a MultiKueueConfig: a,b leave it
HELD_ANNOTATION: Final = "berthmaster.io/held-by"  # on a Workload that a hold of ours switched off
NUDGED_ANNOTATION: Final = "berthmaster.io/nudged-at"  # on a Workload that Kueue held back: when
SELECTOR_ANNOTATION: Final = "berthmaster.io/cluster-selector"  # on a ClusterQueue or LocalQueue

# Conditions of a Workload.
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
EVICTED: Final = "Evicted"
PREEMPTED: Final = "Preempted"
FINISHED: Final = "Finished"
DEACTIVATION_TARGET: Final = "DeactivationTarget"  # it is about to be switched off
# By which the controller of a queue, a check, a MultiKueueCluster says that it works.
ACTIVE: Final = "Active"

# States of an admission check of a Workload.
PENDING: Final = "Pending"
READY: Final = "Ready"
RETRY: Final = "Retry"
REJECTED: Final = "Rejected"
