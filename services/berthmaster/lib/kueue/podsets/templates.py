"""Pod templates, with the fields that a request is built from. Pure.

Every field may be missing or null.
"""

from berthmaster.lib.kube.objects import LabelRequirement, Struct

Quantity = str | int | float | None


class Resources(Struct, frozen=True):
    """The resources of one container."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class Container(Struct, frozen=True):
    resources: Resources | None = None
    restart_policy: str | None = None  # Always, on an init container: a sidecar


class Term(Struct, frozen=True):
    """Expressions that must all hold."""

    match_expressions: tuple[LabelRequirement, ...] | None = None


class NodeSelector(Struct, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[Term, ...] | None = None


class NodeAffinity(Struct, frozen=True):
    """Only required terms restrict the nodes of a pod."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(Struct, frozen=True):
    node_affinity: NodeAffinity | None = None


class PodToleration(Struct, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class ResourceClaim(Struct, frozen=True):
    """Devices that a pod requests by a claim (dynamic resource allocation)."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Struct, frozen=True):
    """The fields that restrict the nodes of a pod."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[PodToleration, ...] | None = None
    resource_claims: tuple[ResourceClaim, ...] | None = None
    resources: Resources | None = None  # of the whole pod
    overhead: dict[str, Quantity] | None = None  # of the RuntimeClass


class TemplateMetadata(Struct, frozen=True):
    annotations: dict[str, str] | None = None


class PodTemplate(Struct, frozen=True):
    metadata: TemplateMetadata | None = None
    spec: PodSpec | None = None


class TemplateSet(Struct, frozen=True):
    """Equal pods of one template."""

    name: str = "main"
    count: int = 1
    template: PodTemplate | None = None
