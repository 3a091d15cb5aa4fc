"""Builders of a hub's objects: valid, and saying only what a test is about."""

from collections.abc import Mapping, Sequence

from berthmaster.hub.admission.core.objects import (
    GROUP_INDEX_LABEL,
    OCM_GROUP,
    PLACEMENT_LABEL,
    REQUEST_ANNOTATION,
    Decision,
    DecisionStatus,
    Placement,
    PlacementDecision,
    PlacementStatus,
)
from berthmaster.lib.kube.objects import Condition, Conditions, Metadata
from berthmaster.lib.kueue.multikueue import (
    AdmissionCheck,
    AdmissionCheckSpec,
    MultiKueueCluster,
    MultiKueueConfig,
    MultiKueueConfigSpec,
    Parameters,
)
from berthmaster.lib.kueue.names import CHECK_CONTROLLER, MULTIKUEUE
from berthmaster.lib.kueue.workloads import CheckState, Workload, WorkloadStatus

CHECK, MK_CHECK, PLACEMENT, NAMESPACE = "gpus", "send", "t4", "kueue-system"
NAMED = Parameters(api_group=OCM_GROUP, kind="Placement", name=PLACEMENT)
NO_PARAMETERS = Parameters(name="none at all")
OURS = {"app.kubernetes.io/managed-by": "berthmaster-admission"}
RESERVED = Condition(type="QuotaReserved", status="True")


def condition(kind: str, true: bool = True, reason: str = "", message: str = "") -> Condition:
    return Condition(type=kind, status=str(true), reason=reason or kind, message=message)


def check(
    name: str = CHECK,
    parameters: Parameters = NAMED,
    *,
    controller: str = CHECK_CONTROLLER,
    conditions: Sequence[Condition] = (),
) -> AdmissionCheck:
    given = None if parameters is NO_PARAMETERS else parameters
    return AdmissionCheck(
        metadata=Metadata(name=name, uid=f"uid-{name}"),
        spec=AdmissionCheckSpec(controller_name=controller, parameters=given),
        status=Conditions(conditions=tuple(conditions)),
    )


def multikueue_check(config: str = CHECK, name: str = MK_CHECK) -> AdmissionCheck:
    named = Parameters(api_group="kueue.x-k8s.io", kind="MultiKueueConfig", name=config)
    return check(name, named, controller=MULTIKUEUE)


def placement(
    name: str = PLACEMENT, *conditions: Condition, selected: int | None = None
) -> Placement:
    return Placement(
        metadata=Metadata(name=name, namespace=NAMESPACE),
        status=PlacementStatus(conditions=conditions, number_of_selected_clusters=selected),
    )


def page(
    *clusters: str, number: int = 1, group: int | None = 0, of: str = PLACEMENT, request: str = ""
) -> PlacementDecision:
    labels = {PLACEMENT_LABEL: of}
    notes = {REQUEST_ANNOTATION: request} if request else {}
    if group is not None:
        labels[GROUP_INDEX_LABEL] = str(group)
    return PlacementDecision(
        metadata=Metadata(
            name=f"{of}-decision-{number}", namespace=NAMESPACE, labels=labels, annotations=notes
        ),
        status=DecisionStatus(decisions=tuple(Decision(cluster_name=name) for name in clusters)),
    )


def config(
    *clusters: str,
    name: str = CHECK,
    draining: str = "",
    owner: str | None = None,
    version: int = 1,
) -> MultiKueueConfig:
    annotations = {"berthmaster.io/admission-check": name if owner is None else owner}
    if draining:
        annotations["berthmaster.io/draining"] = draining
    return MultiKueueConfig(
        metadata=Metadata(
            name=name, labels=OURS, annotations=annotations, resource_version=str(version)
        ),
        spec=MultiKueueConfigSpec(clusters=clusters),
    )


def foreign(*clusters: str, name: str = CHECK) -> MultiKueueConfig:
    return MultiKueueConfig(
        metadata=Metadata(name=name, resource_version="1"),
        spec=MultiKueueConfigSpec(clusters=clusters),
    )


def cluster(
    name: str, *, active: bool | None = True, annotations: Mapping[str, str] | None = None
) -> MultiKueueCluster:
    told = () if active is None else (condition("Active", active, "BadKubeConfig", "no Secret"),)
    return MultiKueueCluster(
        metadata=Metadata(name=name, annotations=dict(annotations or {})),
        status=Conditions(conditions=told),
    )


def workload(
    name: str = "train",
    *,
    state: str = "Pending",
    message: str = "",
    conditions: Sequence[Condition] = (RESERVED,),
    nominated: Sequence[str] = (),
    chosen: str = "",
    version: int = 1,
    deleted: str | None = None,
    checks: Sequence[str] = (CHECK,),
) -> Workload:
    states = [CheckState(name=one, state=state, message=message) for one in checks]
    return Workload(
        metadata=Metadata(
            name=name,
            namespace="ml",
            uid=f"uid-{name}",
            resource_version=str(version),
            deletion_timestamp=deleted,
        ),
        status=WorkloadStatus(
            conditions=tuple(conditions),
            admission_checks=(*states, CheckState(name=MK_CHECK, state="Pending")),
            nominated_cluster_names=tuple(nominated),
            cluster_name=chosen or None,
        ),
    )
