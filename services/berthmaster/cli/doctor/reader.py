"""Reads clusters for the doctor: lists, gets and access reviews, never a write.

Objects that these credentials may not read are noted and skipped. Only an unreachable server ends
the reading of a cluster. (SubjectAccessReviews are created, but never stored.)
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from berthmaster.cli.doctor import facts, objects
from berthmaster.cli.doctor.facts import HubFacts, Mode, Right, Survey, Without, WorkerFacts
from berthmaster.cli.doctor.gates import MANAGER, find_argument
from berthmaster.cli.doctor.rights import AGENT_ACCOUNT, HUB_ACCOUNT, agent_rights, hub_rights
from berthmaster.cli.doctor.upgrade import Side
from berthmaster.cli.doctor.worker import queues_of
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.table import KINDS
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB
from berthmaster.lib.kube import labels, resources
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import from_kubeconfig
from berthmaster.lib.kube.errors import (
    BadAnswer,
    Forbidden,
    KubernetesError,
    NotFound,
    Unauthorized,
)
from berthmaster.lib.kube.objects import Object, Struct, seconds
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.kueue.configuration import CONFIG_MAP, ConfigMap
from berthmaster.lib.kueue.configuration import NAMESPACE as KUEUE_NAMESPACE
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.multikueue import (
    AdmissionCheck,
    ManagedWorkload,
    MultiKueueCluster,
    MultiKueueConfig,
)
from berthmaster.lib.kueue.names import ACTIVE, MULTIKUEUE
from berthmaster.lib.kueue.queues import ClusterQueue, LocalQueue
from berthmaster.lib.runtime.log import LogLike

T = TypeVar("T")
O = TypeVar("O", bound=Object)  # noqa: E741

USER_AGENT: Final = "berth-doctor"
TIMEOUT_S: Final = 10.0
MANAGER_CONTAINER: Final = "manager"  # as in Kueue's own manifests
LEASE_NAMESPACES: Final = ("kube-system", "kube-node-lease")
API_VERSIONS: Final = ("v1beta2", "v1beta1", "v1alpha1")
AT_ONCE: Final = 8
HELD_S: Final = 300.0  # a running executor releases an object within seconds
OUR_PODS: Final = "app.kubernetes.io/part-of=berthmaster"
TELEMETRY_NAMESPACE: Final = "berth-telemetry"  # also the DaemonSet's name
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet")
POLICIES: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy",
    namespaced=False,
)  # fmt: skip
BINDINGS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding", namespaced=False,
)  # fmt: skip
MUTATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration", namespaced=False,
)  # fmt: skip
WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration", namespaced=False,
)  # fmt: skip
REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    name: str
    kubeconfig: Path | None = None
    context: str = ""

    @property
    def way(self) -> dict[str, Any]:
        return {"context": self.context, "kubeconfig": str(self.kubeconfig or "")}


class ReviewStatus(Struct, frozen=True):
    allowed: bool = False


class Review(Struct, frozen=True):
    status: ReviewStatus = ReviewStatus()


class _Silent:
    """A logger without output: the report shows all findings."""

    def info(self, event: str, /, **fields: object) -> None: ...
    def warning(self, event: str, /, **fields: object) -> None: ...
    def error(
        self, event: str, /, *, error: BaseException | None = None, **fields: object
    ) -> None: ...


async def survey(
    hub: ClusterAccess | None,
    workers: Sequence[ClusterAccess],
    *,
    mode: Mode,
    namespace: str,
    now_s: float,
    as_self: bool = False,
    without: Sequence[Without] = (),
    log: LogLike | None = None,
) -> Survey:
    """Read all clusters, the workers in parallel.

    ``as_self`` checks the rights of these credentials, as for `berth up`, instead of the service
    accounts.
    """
    log = log or _Silent()
    account = "" if as_self else f"system:serviceaccount:{namespace}:{HUB_ACCOUNT}"
    ours = (namespace, account)
    found_hub = await _hub(hub, mode, ours, now_s, log) if hub is not None else None
    names = sorted({queue.namespace for queue in queues_of(found_hub)})
    account = "" if as_self else f"system:serviceaccount:{namespace}:{AGENT_ACCOUNT}"
    found = await asyncio.gather(
        *(_worker(each, names, (namespace, account), now_s, log) for each in workers)
    )
    return Survey(
        mode=mode,
        namespace=namespace,
        hub=found_hub,
        workers=tuple(found),
        without=tuple(without),
        as_self=as_self,
    )


async def our_pods(
    place: ClusterAccess, kind: type[HubFacts] | type[WorkerFacts], namespace: str
) -> Side:
    """Return Berthmaster's pods in a cluster, for the order of an upgrade."""
    try:
        async with await _client(place, _Silent()) as client:
            read = _Reading(client, 0.0, "")
            spaces = [namespace, *([TELEMETRY_NAMESPACE] if kind is WorkerFacts else [])]
            pods = [
                pod
                for space in dict.fromkeys(spaces)
                for pod in await read.all(
                    resources.PODS, objects.Pod, namespace=space, selector=OUR_PODS
                )
            ]
            if read.failing or read.unread:
                why = "; ".join([*(one.why for one in read.failing), *read.unread])
                return Side(cluster=kind(name=place.name, **place.way, unreachable=why))
    except (KubernetesError, OSError) as error:
        return Side(cluster=kind(name=place.name, **place.way, unreachable=str(error)))
    return Side(
        cluster=kind(name=place.name, **place.way),
        containers=tuple(one for pod in pods for one in objects.our_containers(pod)),
    )


async def _hub(
    place: ClusterAccess, mode: Mode, ours: tuple[str, str], now_s: float, log: LogLike
) -> HubFacts:
    """Read a hub. ``ours``: namespace of Berthmaster's pods, and the account to check."""
    namespace, account = ours
    try:
        async with await _client(place, log) as client:
            read = await _Reading.begin(client, now_s)
            checks = await read.all(resources.ADMISSION_CHECKS, AdmissionCheck)
            configs = await read.all(resources.MULTIKUEUE_CONFIGS, MultiKueueConfig)
            clusters = await read.all(resources.MULTIKUEUE_CLUSTERS, MultiKueueCluster)
            queues = await read.all(resources.CLUSTER_QUEUES, ClusterQueue)
            locals_ = await read.all(resources.LOCAL_QUEUES, LocalQueue)
            wanted = hub_rights(mode, _dispatched(checks, queues, locals_))
            fields = await read.common(place, account, wanted)
            policies = await read.all(POLICIES, objects.Policy)
            bindings = await read.all(BINDINGS, objects.PolicyBinding)
            workloads = await read.all(resources.KUEUE_WORKLOADS, ManagedWorkload)
            jobs = await read.all(resources.JOBS, HubJob)
            sets = await read.all(resources.JOB_SETS, HubJob)
            webhooks = await read.all(WEBHOOKS, objects.WebhookConfiguration)
            clearing = await read.clearing()
            served = await read.served(POLICIES.group_version)
            manager, life = await read.manager(), await read.life()
            pods = await read.one(STATEFUL_SETS, Object, namespace, HUB_ACCOUNT)
            return HubFacts(
                **fields,
                installed=pods is not None,
                kueue_image=read.image,
                kueue_life=life,
                gate_argument=read.gate_argument,
                file_gates=manager.file_gates if manager is not None else None,
                unread=tuple(read.unread),
                failing=tuple(read.failing),
                manager=manager,
                serves_policies=POLICIES.plural in served,
                clearing=(
                    *objects.find_policies(policies, bindings, objects.clears_nominations),
                    *clearing,
                ),
                poisoned=objects.poisoned(workloads),
                nominators=objects.nominators(workloads),
                workload_webhook=objects.workload_webhook(webhooks),
                checks=tuple(
                    facts.AdmissionCheck(
                        name=one.metadata.name,
                        controller=one.spec.controller_name,
                        config=one.spec.parameters.name if one.spec.parameters else "",
                        state=objects.state(one.condition(ACTIVE)),
                    )
                    for one in checks
                ),
                configs={one.metadata.name: one.clusters for one in configs},
                clusters=tuple(
                    facts.MultiKueueCluster(
                        name=one.metadata.name,
                        fleet_name=one.fleet_name,
                        state=objects.state(one.condition(ACTIVE)),
                    )
                    for one in clusters
                ),
                cluster_queues=tuple(map(objects.cluster_queue, queues)),
                local_queues=tuple(map(objects.local_queue, locals_)),
                early_deleted=(
                    *objects.early_deleted(resources.JOBS.kind, jobs),
                    *objects.early_deleted(resources.JOB_SETS.kind, sets),
                ),
                stranded=objects.stranded(jobs, locals_, _multikueue_queues(checks, queues)),
            )
    except (KubernetesError, OSError) as error:
        return HubFacts(name=place.name, **place.way, unreachable=str(error))


def _multikueue_queues(
    checks: Sequence[AdmissionCheck], queues: Sequence[ClusterQueue]
) -> frozenset[str]:
    wanted = {one.metadata.name for one in checks if one.spec.controller_name == MULTIKUEUE}
    return frozenset(one.metadata.name for one in queues if wanted & set(one.check_names))


def _dispatched(
    checks: Sequence[AdmissionCheck], queues: Sequence[ClusterQueue], locals_: Sequence[LocalQueue]
) -> list[str]:
    """Return the namespaces with a LocalQueue that leads to workers."""
    remote = _multikueue_queues(checks, queues)
    return sorted({one.metadata.namespace for one in locals_ if one.spec.cluster_queue in remote})


async def _worker(
    place: ClusterAccess,
    namespaces: Sequence[str],
    ours: tuple[str, str],
    now_s: float,
    log: LogLike,
) -> WorkerFacts:
    """Read a worker. ``ours``: namespace of Berthmaster's pods, and the account to check."""
    namespace, account = ours
    try:
        async with await _client(place, log) as client:
            read = await _Reading.begin(client, now_s)
            there = await read.all(resources.NAMESPACES, Object)
            known = frozenset(one.metadata.name for one in there)
            slices = await read.all(resources.RESOURCE_SLICES, objects.ResourceSlice)
            classes = await read.all(resources.DEVICE_CLASSES, objects.DeviceClass)
            drivers = objects.drivers(slices, classes)
            together, groups = await _together(read)
            kinds = [
                kind
                for kind in KINDS
                if kind is not JOB
                and kind.resource.plural in await read.served(kind.resource.group_version)
            ]
            wanted = agent_rights(
                [name for name in namespaces if name in known],
                claims=bool(drivers),
                groups=groups,
                volcano_jobs=VOLCANO_JOB in kinds,
            )
            fields = await read.common(place, account, wanted)
            nodes = await read.all(resources.NODES, objects.Node)
            queues = await read.all(resources.CLUSTER_QUEUES, ClusterQueue)
            locals_ = await read.all(resources.LOCAL_QUEUES, LocalQueue)
            manager = await read.manager()
            if manager is not None and manager.waits_for_pods:
                together.append("kueue")
            life = await read.life()
            policies = await read.all(POLICIES, objects.Policy)
            bindings = await read.all(BINDINGS, objects.PolicyBinding)
            served = await read.served(POLICIES.group_version)
            agents = await read.one(
                DAEMON_SETS, objects.DaemonSet, TELEMETRY_NAMESPACE, TELEMETRY_NAMESPACE
            )
            held = await read.held(read.clock_s or now_s)
            others = [] if agents else await read.all(DAEMON_SETS, objects.DaemonSet)
            return WorkerFacts(
                **fields,
                kueue_image=read.image,
                kueue_life=life,
                serves_policies=POLICIES.plural in served,
                keeping=objects.find_policies(policies, bindings, objects.keeps_ended_jobs),
                gate_argument=read.gate_argument,
                file_gates=manager.file_gates if manager is not None else None,
                namespaces=known,
                cluster_queues=tuple(map(objects.cluster_queue, queues)),
                local_queues=tuple(map(objects.local_queue, locals_)),
                gpu_nodes=tuple(found for one in nodes for found in objects.gpu_nodes(one)),
                nodes=len(nodes),
                drivers=drivers,
                held=tuple(held),
                telemetry=objects.telemetry(agents),
                exporter=objects.exporter(others),
                together=tuple(together),
                installed=await read.one(DEPLOYMENTS, Object, namespace, AGENT_ACCOUNT) is not None,
                job_kinds=frozenset(kind.name for kind in kinds),
                gates=None if manager is None or manager.problem else manager.gates,
                unread=tuple(read.unread),  # last, because other reads may add to it
                failing=tuple(read.failing),
            )
    except (KubernetesError, OSError) as error:
        return WorkerFacts(name=place.name, **place.way, unreachable=str(error))


# The executor creates the first served of Kubernetes', coscheduling's and Volcano's groups.
_GROUPS: Final[tuple[tuple[facts.Together, Resource], ...]] = (
    ("kubernetes", resources.POD_GROUPS),
    ("workload", resources.SCHEDULING_WORKLOADS),
    ("coscheduling", resources.COSCHEDULING_POD_GROUPS),
    ("volcano", resources.VOLCANO_POD_GROUPS),
)
_KAI: Final = ("scheduling.run.ai/v2alpha2", "podgroups")


async def _together(read: "_Reading") -> tuple[list[facts.Together], list[Resource]]:
    """Return the components that start gangs, and the objects that they use."""
    found: list[facts.Together] = []
    groups: list[Resource] = []
    for name, resource in _GROUPS:
        if not groups and resource.plural in await read.served(resource.group_version):
            found.append(name)
            groups.append(resource)
    if _KAI[1] in await read.served(_KAI[0]):
        found.append("kai")
    return found, groups


async def _client(place: ClusterAccess, log: LogLike) -> Client:
    access = await from_kubeconfig(place.kubeconfig, place.context)
    return await Client.open(access, user_agent=USER_AGENT, log=log, timeout_s=TIMEOUT_S)


@dataclass
class _Reading:
    client: Client
    now_s: float
    version: str
    uid: str = ""
    unread: list[str] = field(default_factory=list)
    failing: list[facts.FailingKind] = field(default_factory=list)
    image: str = ""
    gate_argument: facts.GateArgument | None = None
    clock_s: float = 0.0  # the cluster's time, from its leases; 0 = unknown

    @classmethod
    async def begin(cls, client: Client, now_s: float) -> "_Reading":
        """Begin reading a server. Raises KubernetesError if no server accepts the credentials."""
        read = cls(client, now_s, await client.version())
        try:
            read.uid = await client.uid()
        except NotFound:
            pass  # a control plane without namespaces
        except KubernetesError as error:
            await read.failed("the namespace kube-system", error)
        return read

    async def common(
        self, place: ClusterAccess, account: str, wanted: Sequence[Right]
    ) -> dict[str, Any]:
        """Read the objects of hub and worker alike. Raises Unreachable and similar errors."""
        served = [
            each
            for each in API_VERSIONS
            if await self.served(f"{resources.KUEUE_WORKLOADS.group}/{each}")
        ]
        missing, asked_as = await self._missing(account, wanted)
        return {
            "name": place.name,
            **place.way,
            "version": self.version,
            "uid": self.uid,
            "skew_s": await self._skew(),
            "kueue_versions": frozenset(served),
            "missing_rights": missing,
            "rights_of": asked_as,
        }

    async def all(
        self, resource: Resource, kind: type[O], *, namespace: str = "", selector: str = ""
    ) -> list[O]:
        """Return a whole list; empty if the kind is not served, or is forbidden and noted."""
        found: list[O] = []
        try:
            pages = self.client.list_pages(
                resource, kind, namespace=namespace, label_selector=selector
            )
            async for page in pages:
                found = [*page.items] if page.first else [*found, *page.items]
                for bad in page.undecodable:
                    self.unread.append(f"{resource.plural} {bad.namespace}/{bad.name} ({bad.why})")
        except NotFound:
            return []
        except KubernetesError as error:
            where = f" in {namespace}" if namespace else ""
            await self.failed(f"{_named(resource)}{where}", error)
            return []
        return found

    async def served(self, group_version: str) -> frozenset[str]:
        """Return the served plurals of a group; none after a noted failure."""
        try:
            return frozenset(await self.client.served(group_version))
        except KubernetesError as error:
            await self.failed(f"the kinds of {group_version}", error)
            return frozenset()

    async def one(self, resource: Resource, kind: type[T], namespace: str, name: str) -> T | None:
        """Return one object; None if missing, or forbidden and noted."""
        try:
            return await self.client.get(resource.path(namespace=namespace, name=name), kind)
        except NotFound:
            return None
        except KubernetesError as error:
            await self.failed(f"{_named(resource)} {namespace}/{name}", error)
            return None

    async def life(self) -> facts.ManagerLife:
        """Return whether Kueue's manager runs, by its pods and its lease."""
        deployment = await self.one(DEPLOYMENTS, objects.Deployment, KUEUE_NAMESPACE, MANAGER)
        pods = await self.all(resources.PODS, objects.Pod, namespace=KUEUE_NAMESPACE)
        leases = await self.all(resources.LEASES, objects.Lease, namespace=KUEUE_NAMESPACE)
        return objects.manager_life(deployment, pods, leases, self.clock_s or self.now_s)

    async def clearing(self) -> list[facts.FoundPolicy]:
        """Return our webhook that clears nominations, with its pods; empty without a webhook."""
        found = objects.find_clearing_webhook(
            await self.all(MUTATING_WEBHOOKS, objects.WebhookConfiguration)
        )
        if found is None:
            return []
        name, hook = found
        at = hook.client_config.service
        if at is None:
            return [objects.clearing_webhook(name, hook, None)]
        pods = await self.one(DEPLOYMENTS, objects.Deployment, at.namespace, at.name)
        return [objects.clearing_webhook(name, hook, pods)]

    async def held(self, now_s: float) -> list[facts.HeldObject]:
        """Return long-deleted job objects that only Berthmaster's finalizer keeps."""
        found: list[facts.HeldObject] = []
        for kind in (each.resource for each in KINDS):
            for one in await self.all(kind, Object, selector=labels.EXECUTOR):
                meta = one.metadata
                left_s = seconds(meta.deletion_timestamp)
                ours = labels.FINALIZER in meta.finalizers
                if ours and 0 < left_s < now_s - HELD_S:
                    name = f"{kind.plural}.{kind.group}"
                    found.append(facts.HeldObject(name, meta.namespace, meta.name))
        return found

    async def manager(self) -> facts.ManagerConfig | None:
        """Return Kueue's configuration, and read its image."""
        deployment = await self.one(DEPLOYMENTS, objects.Deployment, KUEUE_NAMESPACE, MANAGER)
        containers = deployment.spec.template.spec.containers if deployment else ()
        for number, container in enumerate(containers):
            if "kueue" in container.image or container.name == MANAGER_CONTAINER:
                self.image = container.image
                self.gate_argument = find_argument(number, container.command, container.args)
        found = await self.one(resources.CONFIG_MAPS, ConfigMap, KUEUE_NAMESPACE, CONFIG_MAP)
        if found is None:
            return None
        return objects.manager_config(found.data, self.gate_argument)

    async def _skew(self) -> float | None:
        """Return the cluster's clock minus the local one, from the newest lease.

        The control plane renews its leases every ten seconds. So an old lease means little, and a
        lease in the future means a lot.
        """
        newest_s = 0.0
        for namespace in LEASE_NAMESPACES:
            for lease in await self.all(resources.LEASES, objects.Lease, namespace=namespace):
                newest_s = max(newest_s, seconds(lease.spec.renew_time))
        self.clock_s = newest_s
        return newest_s - self.now_s if newest_s else None

    async def _missing(
        self, account: str, wanted: Sequence[Right]
    ) -> tuple[tuple[Right, ...], str]:
        """Return the rights that the account lacks; nothing if these credentials may not check
        them."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def allowed(right: Right) -> bool:
            async with turns:
                return await (may(self.client, account, right) if account else self._can(right))

        try:
            answers = await asyncio.gather(*(allowed(right) for right in wanted))
        except Forbidden as error:
            self._note(f"the rights of {account}", error)
            return (), ""
        missing = [right for right, yes in zip(wanted, answers, strict=True) if not yes]
        return tuple(missing), account or "who these credentials are of"

    async def _can(self, right: Right) -> bool:
        plural, _, subresource = right.resource.partition("/")
        resource = Resource(right.group, "*", plural, "")
        return await self.client.can(
            right.verb,
            resource,
            namespace=right.namespace,
            name=right.name,
            subresource=subresource,
        )

    async def failed(self, what: str, error: KubernetesError) -> None:
        """Note a failed read.

        Raises KubernetesError if the server answers no other request either: then the server fails,
        not the kind.
        """
        if isinstance(error, Forbidden | BadAnswer):
            self._note(what, error)
            return
        if isinstance(error, Unauthorized):
            raise error
        await self.client.version()
        if what not in [one.kind for one in self.failing]:
            self.failing.append(facts.FailingKind(kind=what, why=str(error)))

    def _note(self, what: str, error: KubernetesError) -> None:
        why = "these credentials may not" if isinstance(error, Forbidden) else str(error)
        self.unread.append(f"{what} ({why})")


def _named(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


async def may(client: Client, user: str, right: Right) -> bool:
    """Return whether a user or service account has a right. Raises KubernetesError."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    spec: dict[str, Any] = {
        "user": user,
        "resourceAttributes": {name: text for name, text in attributes.items() if text},
    }
    parts = user.split(":")
    if parts[:2] == ["system", "serviceaccount"]:
        spec["groups"] = ["system:serviceaccounts", f"system:serviceaccounts:{parts[2]}"]
    body = {"apiVersion": REVIEWS.group_version, "kind": REVIEWS.kind, "spec": spec}
    review = await client.create(REVIEWS.path(), body, Review)
    return review.status.allowed
