"""The Kubernetes resources in use, and their API paths. Pure.

A resource is data: group, version, plural and kind. A new resource is one line at the end.
"""

from typing import Final, NamedTuple


class Resource(NamedTuple):
    """One kind of object as the API serves it."""

    group: str  # "" = the core group
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def group_version(self) -> str:
        """Return the value of ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of a collection, of one object, or of a subresource.

        Without a namespace, the collection of a namespaced resource covers all namespaces.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} have no namespace, not even {namespace!r}")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} {name!r} needs its namespace")
        if subresource and not name:
            raise ValueError(f"{self.plural}/{subresource} needs a name")
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if namespace:
            parts += ["namespaces", _part(namespace)]
        parts.append(self.plural)
        if name:
            parts.append(_part(name))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


# Without urllib, because pure cores build paths too, and urllib imports the network modules.
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


def _part(text: str) -> str:
    """Return one quoted part of a path. Raise ValueError for ``.`` and ``..``."""
    if text in (".", ".."):
        raise ValueError(f"{text!r} is no name of an object")
    if _PLAIN.issuperset(text):
        return text
    return "".join(
        char if char in _PLAIN else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in text
    )


def counted_as(path: str) -> str:
    """Return a path's plural for metrics, with a subresource after a slash, as RBAC writes it."""
    parts = path.partition("?")[0].strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    if not rest:
        return path if len(path) < 64 else path[:64]
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]


_KUEUE: Final = "kueue.x-k8s.io"
_OCM: Final = "cluster.open-cluster-management.io"

NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
PODS: Final = Resource("", "v1", "pods", "Pod")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount")
SERVICES: Final = Resource("", "v1", "services", "Service")
EVENTS: Final = Resource("", "v1", "events", "Event")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
JOBS: Final = Resource("batch", "v1", "jobs", "Job")
JOB_SETS: Final = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
RAY_JOBS: Final = Resource("ray.io", "v1", "rayjobs", "RayJob")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES: Final = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False
)
CLUSTER_ROLE_BINDINGS: Final = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False
)
SELF_SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False
)
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False)
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False
)
POD_GROUPS: Final = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")
SCHEDULING_WORKLOADS: Final = Resource("scheduling.k8s.io", "v1alpha1", "workloads", "Workload")
COSCHEDULING_POD_GROUPS: Final = Resource(
    "scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"
)
VOLCANO_JOBS: Final = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")
VOLCANO_POD_GROUPS: Final = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
KAI_POD_GROUPS: Final = Resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False)
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES: Final = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
DEVICE_CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)
KUEUE_WORKLOADS: Final = Resource(_KUEUE, "v1beta2", "workloads", "Workload")
LOCAL_QUEUES: Final = Resource(_KUEUE, "v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUES: Final = Resource(_KUEUE, "v1beta2", "clusterqueues", "ClusterQueue", False)
RESOURCE_FLAVORS: Final = Resource(_KUEUE, "v1beta2", "resourceflavors", "ResourceFlavor", False)
COHORTS: Final = Resource(_KUEUE, "v1beta2", "cohorts", "Cohort", False)
ADMISSION_CHECKS: Final = Resource(_KUEUE, "v1beta2", "admissionchecks", "AdmissionCheck", False)
MULTIKUEUE_CONFIGS: Final = Resource(
    _KUEUE, "v1beta2", "multikueueconfigs", "MultiKueueConfig", False
)
MULTIKUEUE_CLUSTERS: Final = Resource(
    _KUEUE, "v1beta2", "multikueueclusters", "MultiKueueCluster", False
)
CLUSTER_PROFILES: Final = Resource(
    "multicluster.x-k8s.io", "v1alpha1", "clusterprofiles", "ClusterProfile"
)
DECISION_SLICES: Final = Resource(
    "multicluster.x-k8s.io", "v1alpha1", "placementdecisions", "PlacementDecision"
)
MANAGED_CLUSTERS: Final = Resource(_OCM, "v1", "managedclusters", "ManagedCluster", False)
MANAGED_CLUSTER_SETS: Final = Resource(
    _OCM, "v1beta2", "managedclustersets", "ManagedClusterSet", False
)
MANAGED_CLUSTER_SET_BINDINGS: Final = Resource(
    _OCM, "v1beta2", "managedclustersetbindings", "ManagedClusterSetBinding"
)
PLACEMENTS: Final = Resource(_OCM, "v1beta1", "placements", "Placement")
PLACEMENT_DECISIONS: Final = Resource(_OCM, "v1beta1", "placementdecisions", "PlacementDecision")
MEMBER_CLUSTERS: Final = Resource(
    "cluster.kubernetes-fleet.io", "v1", "memberclusters", "MemberCluster", False
)
RESOURCE_BINDINGS: Final = Resource(
    "work.karmada.io", "v1alpha2", "resourcebindings", "ResourceBinding"
)
KARMADA_CLUSTERS: Final = Resource("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", False)
PROPAGATION_POLICIES: Final = Resource(
    "policy.karmada.io", "v1alpha1", "propagationpolicies", "PropagationPolicy"
)
CLUSTER_PROPAGATION_POLICIES: Final = Resource(
    "policy.karmada.io", "v1alpha1", "clusterpropagationpolicies", "ClusterPropagationPolicy", False
)
OVERRIDE_POLICIES: Final = Resource(
    "policy.karmada.io", "v1alpha1", "overridepolicies", "OverridePolicy"
)
ADD_ON_PLACEMENT_SCORES: Final = Resource(
    _OCM, "v1alpha1", "addonplacementscores", "AddOnPlacementScore"
)
CLUSTER_CLAIMS: Final = Resource(_OCM, "v1alpha1", "clusterclaims", "ClusterClaim", False)
MANAGED_SERVICE_ACCOUNTS: Final = Resource(
    "authentication.open-cluster-management.io",
    "v1beta1",
    "managedserviceaccounts",
    "ManagedServiceAccount",
)
CLUSTER_PERMISSIONS: Final = Resource(
    "rbac.open-cluster-management.io", "v1alpha1", "clusterpermissions", "ClusterPermission"
)
