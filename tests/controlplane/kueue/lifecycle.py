"""What can happen to a Workload's status: the transitions of the stand-in, each in one place. Pure.

A transition takes the whole Workload, writes into its status and says whether it changed anything.
Who decides that it shall happen is elsewhere (scheduler, workloads, jobs, multikueue). Rules of
this file:

- QuotaReserved and status.admission come and go together; Admitted follows QuotaReserved and the
checks. - An eviction sets every check back to Pending and clears clusterName and the nomination;
quota is given back only
  when the Job is seen inactive. That order is what lets a worker's eviction reach the hub.
- Finished is for ever.
"""

from __future__ import annotations

from tests.controlplane.kueue.objects import (
    Obj,
    condition_of,
    is_true,
    set_condition,
    status_of,
)

ADMITTED = "Admitted"
RESERVED = "QuotaReserved"
EVICTED = "Evicted"
PREEMPTED = "Preempted"
REQUEUED = "Requeued"
FINISHED = "Finished"
DEACTIVATION = "DeactivationTarget"
PODS_READY = "PodsReady"

BY_CHECK = "AdmissionCheck"
BY_DEACTIVATION = "Deactivated"
BY_CLUSTER_QUEUE = "ClusterQueueStopped"
BY_LOCAL_QUEUE = "LocalQueueStopped"
ON_HUB = "EvictedOnManagerCluster"


def is_active(workload: Obj) -> bool:
    """Not switched off by a person or by a rejected check."""
    return workload["spec"].get("active", True) is not False


def is_finished(workload: Obj) -> bool:
    return is_true(workload, FINISHED)


def has_quota(workload: Obj) -> bool:
    return is_true(workload, RESERVED)


def is_evicted(workload: Obj) -> bool:
    return is_true(workload, EVICTED)


def is_poisoned(workload: Obj) -> bool:
    """What a preemption by merge patch leaves when it overtakes an admission."""
    admission = workload.get("status", {}).get("admission")
    return (
        has_quota(workload)
        and is_evicted(workload)
        and not is_finished(workload)
        and admission is None
    )


def is_admitted(workload: Obj) -> bool:
    return is_true(workload, ADMITTED)


def checks_of(workload: Obj) -> list[Obj]:
    """The states of the admission checks, empty where there are none."""
    checks: list[Obj] = workload.get("status", {}).get("admissionChecks") or []
    return checks


def check_named(workload: Obj, name: str) -> Obj | None:
    return next((check for check in checks_of(workload) if check["name"] == name), None)


def reserve(workload: Obj, admission: Obj, checks: list[str], now: str) -> None:
    """Quota was found. What an earlier attempt left (Evicted, Preempted) is over.

    `checks` are those that the ClusterQueue asks for: while the Workload does not list them all,
    it cannot be admitted.
    """
    queue = admission["clusterQueue"]
    status_of(workload)["admission"] = admission
    set_condition(
        workload,
        RESERVED,
        true=True,
        reason=RESERVED,
        message=f"Quota reserved in ClusterQueue {queue}",
        now=now,
    )
    for kind in (EVICTED, PREEMPTED):
        if (past := condition_of(workload, kind)) and past["status"] == "True":
            words = f"Quota reserved again; before: {past['message']}"
            set_condition(workload, kind, true=False, reason=RESERVED, message=words, now=now)
    if all(check_named(workload, name) for name in checks):
        sync_admitted(workload, now)


def unreserve(workload: Obj, reason: str, message: str, now: str) -> bool:
    """No quota, and why. Admitted falls with it."""
    changed = set_condition(workload, RESERVED, true=False, reason=reason, message=message, now=now)
    if status_of(workload).pop("admission", None) is not None:
        changed = True
    return sync_admitted(workload, now) or changed


def sync_admitted(workload: Obj, now: str) -> bool:
    """Admitted = quota and every check Ready."""
    reserved = has_quota(workload)
    ready = all(check["state"] == "Ready" for check in checks_of(workload))
    if is_admitted(workload) == (reserved and ready):
        return False
    if reserved and ready:
        reason, message = ADMITTED, "Admitted"
    elif reserved:
        reason, message = "UnsatisfiedChecks", "Not every admission check is Ready"
    elif ready:
        reason, message = "NoReservation", "No quota is reserved"
    else:
        reason = "NoReservationUnsatisfiedChecks"
        message = "No quota is reserved and not every admission check is Ready"
    true = reserved and ready
    return set_condition(workload, ADMITTED, true=true, reason=reason, message=message, now=now)


def evict(workload: Obj, reason: str, message: str, now: str) -> None:
    """The attempt is over: checks back to Pending, no cluster, no nomination. Quota goes later."""
    set_condition(workload, EVICTED, true=True, reason=reason, message=message, now=now)
    status = status_of(workload)
    status.pop("clusterName", None)
    status.pop("nominatedClusterNames", None)
    for check in checks_of(workload):
        if check["state"] == "Pending":
            continue
        before = check["state"]
        retries = check.get("retryCount", 0) + 1 if before == "Retry" else None
        wait_s = check.get("requeueAfterSeconds")
        name = check["name"]
        check.clear()
        check.update(name=name, state="Pending", lastTransitionTime=now)
        check["message"] = f"Pending again after an eviction, before: {before}"
        if retries is not None:
            check["retryCount"] = retries
        if wait_s is not None:
            check["requeueAfterSeconds"] = wait_s
    evictions: list[Obj] = status.setdefault("schedulingStats", {}).setdefault("evictions", [])
    for entry in evictions:
        if entry["reason"] == reason:
            entry["count"] += 1
            return
    evictions.append({"reason": reason, "underlyingCause": "", "count": 1})


def set_requeued(workload: Obj, *, true: bool, reason: str, message: str, now: str) -> bool:
    """Whether the Workload may ask for quota again."""
    return set_condition(workload, REQUEUED, true=true, reason=reason, message=message, now=now)


def set_check(workload: Obj, name: str, state: str, message: str, now: str) -> bool:
    """Give one check a state; its time of transition moves only when the state does."""
    check = check_named(workload, name)
    if check is None:
        status_of(workload).setdefault("admissionChecks", []).append(
            {"name": name, "state": state, "message": message, "lastTransitionTime": now}
        )
        return True
    if check["state"] == state and check["message"] == message:
        return False
    if check["state"] != state:
        check["lastTransitionTime"] = now
    check.update(state=state, message=message)
    return True


def sync_checks(workload: Obj, wanted: list[str], now: str) -> bool:
    """The checks of the ClusterQueue, and no others: new ones start Pending, known ones keep their
    state."""
    have = checks_of(workload)
    kept = [check for check in have if check["name"] in wanted]
    named = {check["name"] for check in kept}
    kept += [
        {"name": name, "state": "Pending", "message": "", "lastTransitionTime": now}
        for name in wanted
        if name not in named
    ]
    kept.sort(key=lambda check: str(check["name"]))
    if {check["name"] for check in have} == {check["name"] for check in kept}:
        return False
    status_of(workload)["admissionChecks"] = kept
    return True


def set_pods_ready(workload: Obj, now: str, *, ready: bool) -> bool:
    """Whether all pods of the Job are ready or done, and if not, whether they ever were."""
    past = condition_of(workload, PODS_READY)
    recovering = past is not None and past["reason"] in ("WaitForRecovery", "Recovered")
    if not is_admitted(workload):
        true, reason = False, "WaitForStart"
    elif ready:
        true, reason = True, "Recovered" if recovering else "Started"
    elif past is not None and (past["status"] == "True" or recovering):
        true, reason = False, "WaitForRecovery"
    else:
        true, reason = False, "WaitForStart"
    if past is not None and past["reason"] == reason:
        return False
    message = "All pods are ready" if true else "Not all pods are ready"
    return set_condition(workload, PODS_READY, true=true, reason=reason, message=message, now=now)


def finish(workload: Obj, reason: str, message: str, now: str) -> bool:
    """The end."""
    return set_condition(workload, FINISHED, true=True, reason=reason, message=message, now=now)


def target_deactivation(workload: Obj, reason: str, message: str, now: str) -> bool:
    """The Workload shall be switched off; the next look at it writes spec.active."""
    return set_condition(workload, DEACTIVATION, true=True, reason=reason, message=message, now=now)
