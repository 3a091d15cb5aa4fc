"""Decodes an untrusted client's bytes to a request, or to a refusal with the field and the reason.
Pure.

The types in messages/ have the bounds of single values. Checks of several values together are here.
This module does not know which objects exist: the owner of the queues checks whether a queue does.
"""

import itertools
from typing import Final, TypeVar

import msgspec

from berthmaster.lib.accelerators.table import How, how_of, is_resource_name
from berthmaster.lib.engine.queueing.queues import CPU, DEFAULT_QUEUE, MEMORY, MODEL
from berthmaster.lib.engine.scoring.profiles import fault
from berthmaster.lib.lifecycle.choices import as_written
from berthmaster.lib.lifecycle.pods import most
from berthmaster.lib.messages.api import (
    CancelRequest,
    CheckpointedRequest,
    CordonRequest,
    DrainRequest,
    EventsRequest,
    EvictRequest,
    GetRequest,
    HelloRequest,
    HoldRequest,
    JobOrderRequest,
    ListRequest,
    LogsRequest,
    LostRequest,
    MoveRequest,
    ProgressedRequest,
    Refusal,
    ReleaseRequest,
    ReprioritizeRequest,
)
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.explain import Step, cut, decoded, first_unknown_field, invalid
from berthmaster.lib.messages.families import (
    CANCEL_REQUESTS,
    CHECKPOINTED_REQUESTS,
    CORDON_REQUESTS,
    DRAIN_REQUESTS,
    EVENTS_REQUESTS,
    EVICT_REQUESTS,
    GET_REQUESTS,
    HELLO_REQUESTS,
    HOLD_REQUESTS,
    JOB_ORDERS,
    JOB_REQUESTS,
    LIST_REQUESTS,
    LOGS_REQUESTS,
    LOST_REQUESTS,
    MOVE_REQUESTS,
    PROGRESSED_REQUESTS,
    QUEUE_REQUESTS,
    RELEASE_REQUESTS,
    REPRIORITIZE_REQUESTS,
    Reader,
)
from berthmaster.lib.messages.workload import MAX_PODS, JobRequest, Name
from berthmaster.lib.nats import subjects
from berthmaster.lib.requests.choices import choose_fault, trial_fault
from berthmaster.lib.requests.names import gpu_env_fault
from berthmaster.lib.requests.pod_fields import run_fault
from berthmaster.lib.requests.pod_sets import divide_fault, id_fault, pod_set_fault
from berthmaster.lib.requests.secrecy import secret_fault
from berthmaster.lib.runtime.redact import secret_in

T = TypeVar("T", bound=msgspec.Struct)

MOST_DRAIN_S: Final = 31_536_000.0  # maximum time until the deadline of a drain
MAX_TENANTS_OF_A_QUEUE: Final = 1000
MAX_SET_BY_CHARS: Final = 256
MAX_PLACES_OF_A_QUEUE: Final = 1000
MAX_RESOURCES_OF_A_QUEUE: Final = 64
_NAME_WORDS: Final = (
    "1 to 63 lower-case letters, digits or '-', the first and the last a letter or digit"
)

JobVerbRequest = (
    HoldRequest
    | ReleaseRequest
    | EvictRequest
    | MoveRequest
    | CheckpointedRequest
    | ProgressedRequest
)


def _read(kind: type[T], reader: Reader[T], data: bytes) -> T | Refusal:
    """Return the decoded request, or a refusal if invalid or with a secret."""
    request = decoded(kind, reader, data)
    return request if isinstance(request, Refusal) else secret_fault(request) or request


def is_name(text: str) -> bool:
    """Return whether a text is a valid name of messages, such as a tenant's."""
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True


def tenant_refusal(tenant: str) -> Refusal | None:
    """Return a refusal of an invalid tenant name. The name comes only from the subject."""
    if is_name(tenant):
        return None
    return Refusal(
        code="invalid",
        field="",
        value=cut(ascii(tenant), 80),
        expected=f"as the subject's third token a tenant's name: {_NAME_WORDS}",
    )


def job_request(data: bytes) -> JobRequest | Refusal:
    """Return the body of ``submit``, or a refusal."""
    request = decoded(JobRequest, JOB_REQUESTS, data)
    if isinstance(request, Refusal):
        return request
    request = as_written(request)
    return request_fault(request) or request


def request_fault(request: JobRequest) -> Refusal | None:
    """Return a refusal of a request whose single values are valid, if several contradict each
    other.
    """
    seen: dict[str, int] = {}
    pods = 0
    for at, pod_set in enumerate(request.pod_sets):
        path: list[Step] = ["pod_sets", at]
        first = seen.setdefault(pod_set.name, at)
        if first != at:
            used = f"a name that is not used yet; pod_sets[{first}] has this one"
            return invalid([*path, "name"], pod_set.name, used)
        fault = pod_set_fault(path, pod_set)
        if fault is not None:
            return fault
        pods += most(pod_set)
        if pods > MAX_PODS:
            return invalid(
                [*path, "count" if most(pod_set) == pod_set.count else "max_count"],
                most(pod_set),
                f"at most {MAX_PODS} pods in all pod sets together; these make {pods}",
            )
    for label in request.cluster_labels:
        if not label.strip():
            right = "a label or property of clusters, such as region"
            return invalid(["cluster_labels", label], label, right)
    for at, place in enumerate(request.data):
        if not place or place.startswith("="):
            right = "a cluster's name, or a label or property of clusters as key=value"
            return invalid(["data", at], place, right)
    fault = id_fault(request) or choose_fault(request) or trial_fault(request, request_fault)
    fault = fault or divide_fault(request)
    if fault is not None:
        return fault
    run = request.run
    return secret_fault(request) or gpu_env_fault(run) or run_fault(run) or ranking_fault(request)


def ranking_fault(request: JobRequest | QueueSetting) -> Refusal | None:
    """Return a refusal if the scoring profile or weights are invalid."""
    found = fault(request.profile, request.weights)
    return invalid(found.path, found.value, found.expected) if found is not None else None


def hello_request(data: bytes) -> HelloRequest | Refusal:
    """Return the body of ``hello``, or a refusal."""
    return _read(HelloRequest, HELLO_REQUESTS, data)


def cancel_request(data: bytes) -> CancelRequest | Refusal:
    """Return the body of ``cancel``, or a refusal."""
    return _read(CancelRequest, CANCEL_REQUESTS, data)


def reprioritize_request(data: bytes) -> ReprioritizeRequest | Refusal:
    """Return the body of ``reprioritize``, or a refusal."""
    return _read(ReprioritizeRequest, REPRIORITIZE_REQUESTS, data)


def job_verb_request(verb: str, data: bytes) -> JobVerbRequest | Refusal:
    """Return the body of ``hold``, ``release``, ``evict``, ``move``, ``checkpointed``,
    ``progressed``, or a refusal.
    """
    match verb:
        case "hold":
            return _read(HoldRequest, HOLD_REQUESTS, data)
        case "release":
            return _read(ReleaseRequest, RELEASE_REQUESTS, data)
        case "evict":
            return _read(EvictRequest, EVICT_REQUESTS, data)
        case "move":
            return _read(MoveRequest, MOVE_REQUESTS, data)
        case "progressed":
            return _read(ProgressedRequest, PROGRESSED_REQUESTS, data)
        case _:
            told = _read(CheckpointedRequest, CHECKPOINTED_REQUESTS, data)
            return told if isinstance(told, Refusal) else uri_fault(told.uri) or told


def uri_fault(uri: str) -> Refusal | None:
    """Return a refusal of a checkpoint URI with a password, since all users of the workload see the
    URI.
    """
    if secret_in(uri) or not uri.isprintable():
        right = "one line without user and password: s3://bucket/run/100, a path, a name"
        return invalid(["uri"], "***", right)
    return None


def job_order_request(data: bytes) -> JobOrderRequest | Refusal:
    """Return the body of an operator's verb about one job, or a refusal."""
    request = _read(JobOrderRequest, JOB_ORDERS, data)
    if isinstance(request, Refusal):
        return request
    if not is_name(request.tenant):
        return invalid(["tenant"], request.tenant, _NAME_WORDS)
    return request


def drain_request(data: bytes, now_s: float) -> DrainRequest | Refusal:
    """Return the body of ``drain``, or a refusal."""
    request = _read(DrainRequest, DRAIN_REQUESTS, data)
    if isinstance(request, Refusal):
        return request
    wrong = _no_token("cluster", request.cluster)
    if wrong is None and request.node is not None:
        wrong = _no_token("node", request.node)
    by_s = request.by_s
    if wrong is None and by_s is not None and not now_s < by_s < now_s + MOST_DRAIN_S:
        right = f"a time ahead, as seconds since 1970; now is {now_s:.0f}"
        wrong = invalid(["by_s"], by_s, right)
    return wrong or request


def get_request(data: bytes) -> GetRequest | Refusal:
    """Return the body of ``get``, or a refusal."""
    return _read(GetRequest, GET_REQUESTS, data)


def events_request(data: bytes) -> EventsRequest | Refusal:
    """Return the body of ``events``, or a refusal."""
    return _read(EventsRequest, EVENTS_REQUESTS, data or b"{}")


def list_request(data: bytes) -> ListRequest | Refusal:
    """Return the body of ``list``, or a refusal. An empty body requests everything."""
    return _read(ListRequest, LIST_REQUESTS, data or b"{}")


def logs_request(data: bytes) -> LogsRequest | Refusal:
    """Return the body of ``logs``, or a refusal."""
    return _read(LogsRequest, LOGS_REQUESTS, data)


def cordon_request(data: bytes) -> CordonRequest | Refusal:
    """Return the body of ``cordon`` or ``uncordon``, or a refusal."""
    request = _read(CordonRequest, CORDON_REQUESTS, data)
    if isinstance(request, Refusal):
        return request
    wrong = _no_token("cluster", request.cluster)
    if wrong is None and request.node is not None:
        wrong = _no_token("node", request.node)
    if wrong is None and request.gpu is not None and request.node is None:
        wrong = invalid(["gpu"], request.gpu, "a GPU together with the node that it is in")
    return wrong or request


def lost_request(data: bytes) -> LostRequest | Refusal:
    """Return the body of ``lost`` or ``found``, or a refusal."""
    request = _read(LostRequest, LOST_REQUESTS, data)
    if isinstance(request, Refusal):
        return request
    return _no_token("cluster", request.cluster) or request


def queue_setting(data: bytes) -> QueueSetting | Refusal:
    """Return the body of ``queue``, or a refusal. As a message it tolerates unknown fields, as a
    request it does not.
    """
    setting = _read(QueueSetting, QUEUE_REQUESTS, data)
    if isinstance(setting, Refusal):
        return setting
    return first_unknown_field(QueueSetting, data) or _queue_fault(setting) or setting


def _queue_fault(setting: QueueSetting) -> Refusal | None:
    if not is_name(setting.queue):
        return invalid(["queue"], setting.queue, _NAME_WORDS)
    if len(setting.tenants) > MAX_TENANTS_OF_A_QUEUE:
        most = f"at most {MAX_TENANTS_OF_A_QUEUE} tenants; without any it is open to all"
        return invalid(["tenants"], f"{len(setting.tenants)} tenants", most)
    for at, tenant in enumerate(setting.tenants):
        if not is_name(tenant):
            return invalid(["tenants", at], tenant, _NAME_WORDS)
    if not -1_000_000 <= setting.priority <= 1_000_000:
        return invalid(["priority"], setting.priority, "a whole number from -1000000 to 1000000")
    if setting.max_priority is not None and not -1_000_000 <= setting.max_priority <= 1_000_000:
        return invalid(
            ["max_priority"], setting.max_priority, "a whole number from -1000000 to 1000000"
        )
    if len(setting.set_by) > MAX_SET_BY_CHARS:
        return invalid(["set_by"], setting.set_by, f"at most {MAX_SET_BY_CHARS} characters")
    if setting.queue == DEFAULT_QUEUE and setting.deleted:
        return invalid(["deleted"], True, 'false: the queue "default" always exists; hold it')
    return (
        ranking_fault(setting)
        or _places_fault(setting)
        or _amounts_fault(setting)
        or _resources_fault(setting)
    )


def _places_fault(setting: QueueSetting) -> Refusal | None:
    """Refuse names that Kubernetes would refuse, while the operator still gets the error."""
    if len(setting.places) > MAX_PLACES_OF_A_QUEUE:
        most = f'at most {MAX_PLACES_OF_A_QUEUE} clusters; "*" stands for every other one'
        return invalid(["places"], f"{len(setting.places)} places", most)
    for cluster, place in setting.places.items():
        for field, name in (
            ("namespace", place.namespace),
            ("service_account", place.service_account),
            ("local_queue", place.local_queue),
        ):
            if not is_name(name) and (name or field == "namespace"):
                return invalid(["places", cluster, field], name, _NAME_WORDS)
    return None


def _amounts_fault(setting: QueueSetting) -> Refusal | None:
    names = ("guarantee_gpu_milli", "deserved_gpu_milli", "capability_gpu_milli")
    return _order_fault([], [(name, getattr(setting, name)) for name in names])


def _order_fault(path: list[Step], amounts: list[tuple[str, int | None]]) -> Refusal | None:
    """Refuse a guarantee above the deserved amount, and either above the limit."""
    given = [(name, amount) for name, amount in amounts if amount is not None]
    for (low, amount), (high, limit) in itertools.pairwise(given):
        if amount > limit:
            return invalid([*path, low], amount, f"at most {high}, which is {limit}")
    return None


def _resources_fault(setting: QueueSetting) -> Refusal | None:
    if len(setting.resources) > MAX_RESOURCES_OF_A_QUEUE:
        most = f"at most {MAX_RESOURCES_OF_A_QUEUE} resources"
        return invalid(["resources"], f"{len(setting.resources)} resources", most)
    for resource, each in setting.resources.items():
        model = resource.removeprefix(MODEL)
        named = resource in (CPU, MEMORY) or (model != resource and 0 < len(model) <= 63)
        how = how_of(resource)
        counted = model == resource and is_resource_name(resource) and how in (How.OTHER, How.TPU)
        if not (named or counted):
            right = (
                '"cpu" (milli), "memory" (MiB), "gpu/<model>" (milli), such as "gpu/H100", or an '
                'extended resource that pods ask for by "resources" or "tpus", such as "rdma/hca"'
            )
            return invalid(["resources"], resource, right)
        names = ("guarantee", "deserved", "capability")
        fault = _order_fault(["resources", resource], [(n, getattr(each, n)) for n in names])
        if fault is not None:
            return fault
    return None


def _no_token(field: str, name: str) -> Refusal | None:
    try:
        subjects.token(name)
    except subjects.SubjectError:
        most = subjects.MAX_TOKEN_CHARS
        return invalid([field], name, f"a name that fits a subject: {most} characters encoded")
    return None
