"""Runtimes: pod templates allowed by a platform team, which requests name.

A template can express only this schema: nothing privileged, no access to the host, no service
account, and only the accelerators of the request. In texts ``{{name}}`` stands for a parameter and
``{{tenant}}`` for the submitting tenant. A template names Secrets, and their values never travel on
the bus.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.terms import LabelText, Name, Toleration

MAX_PARAMETERS = 32
MAX_VOLUMES = 32
MAX_SIDECARS = 8

Text = Annotated[str, Meta(max_length=4096)]
Script = Annotated[str, Meta(max_length=16_384)]
ParameterValue = str | int | float | bool


class Runtime(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Runtime of a request, with parameters."""

    name: Annotated[
        Name, Meta(description="Runtime that starts the job, such as torch, mpi, jax or plain.")
    ]
    parameters: Annotated[
        dict[Annotated[str, Meta(max_length=63)], ParameterValue],
        Meta(max_length=MAX_PARAMETERS, description="Parameters of the runtime."),
    ] = {}


class RuntimeParameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value that a request may set."""

    type: Literal["string", "integer", "number", "boolean"] = "string"  # type of the value
    default: ParameterValue | None = None  # value of requests that set none; null = required
    choices: Annotated[tuple[ParameterValue, ...], Meta(max_length=256)] = ()
    # choices: accepted values; empty = any
    minimum: float | None = None  # minimum of a number, or of a text's length; null = unset
    maximum: float | None = None  # maximum of a number, or of a text's length; null = unset
    description: Annotated[str, Meta(max_length=1024)] = ""  # explanation for users


class ObjectKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key of a Secret or ConfigMap in the namespace of the pods."""

    name: LabelText  # name of the Secret or ConfigMap
    key: Annotated[str, Meta(pattern=r"^[-._a-zA-Z0-9]+$(?!\n)", min_length=1, max_length=253)]
    # key: key inside the object


class RuntimeVolume(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A volume with exactly one source. Claims, Secrets and ConfigMaps are in the namespace of the
    pods.
    """

    name: Name  # name of the volume
    mount_path: Text  # path in the container
    read_only: bool = False  # True: mounted read-only
    sub_path: Text = ""  # path inside the volume; "" = the whole volume
    claim: LabelText = ""
    # claim: PersistentVolumeClaim, shared by all pods of the job; "" = another source
    secret: LabelText = ""  # Secret with the files; "" = another source
    config_map: LabelText = ""  # ConfigMap with the files; "" = another source
    scratch_mib: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None
    # scratch_mib: size limit of an empty folder that lives as long as the pod, in MiB; null =
    # another source


class RuntimeSidecar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container that starts before the job's container and ends after. A sidecar gets no GPU, and
    its CPU and memory add to the request.
    """

    name: Name  # name of the container
    image: Annotated[str, Meta(min_length=1, max_length=1024)]  # container image
    command: Annotated[tuple[Script, ...], Meta(max_length=256)] = ()
    # command: entrypoint; empty = the image's own
    args: Annotated[tuple[Script, ...], Meta(max_length=256)] = ()
    # args: arguments of the entrypoint; empty = the image's own
    env: Annotated[dict[str, Text], Meta(max_length=256)] = {}  # environment variables
    secret_env: Annotated[dict[str, ObjectKey], Meta(max_length=64)] = {}
    # secret_env: environment variables from Secrets
    volumes: Annotated[tuple[Name, ...], Meta(max_length=MAX_VOLUMES)] = ()
    # volumes: names of mounted volumes
    cpu_milli: Annotated[int, Meta(ge=0, le=10_000_000)] = 100  # CPU in milli
    memory_mib: Annotated[int, Meta(ge=1, le=1 << 30)] = 128  # memory in MiB


class PodTemplate(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Additions of a runtime to the pods of a request."""

    image: Annotated[str, Meta(max_length=1024)] = ""
    # image: container image of requests that name none; "" = required in the request
    command: Annotated[tuple[Script, ...], Meta(max_length=256)] = ()
    # command: entrypoint; the request's command and args become its arguments
    needs_command: bool = False  # True: a request must have a command
    kuberay: bool = False
    # kuberay: True: on clusters with KubeRay the executor creates a RayJob, which runs the
    # request's command
    env: Annotated[dict[str, Text], Meta(max_length=256)] = {}
    # env: environment variables; the request's own win
    secret_env: Annotated[dict[str, ObjectKey], Meta(max_length=64)] = {}
    # secret_env: environment variables from Secrets
    config_env: Annotated[dict[str, ObjectKey], Meta(max_length=64)] = {}
    # config_env: environment variables from ConfigMaps
    env_from_secrets: Annotated[tuple[LabelText, ...], Meta(max_length=32)] = ()
    # env_from_secrets: Secrets of which every key becomes an environment variable
    env_from_config_maps: Annotated[tuple[LabelText, ...], Meta(max_length=32)] = ()
    # env_from_config_maps: ConfigMaps of which every key becomes an environment variable
    volumes: Annotated[tuple[RuntimeVolume, ...], Meta(max_length=MAX_VOLUMES)] = ()
    # volumes: volumes of the pods
    shared_memory_mib: Annotated[int, Meta(ge=0, le=1 << 30)] | Text = 0
    # shared_memory_mib: size of /dev/shm in MiB, part of the pod's memory, or a parameter such as
    # "{{shared_memory_mib}}"; 0 = the container runtime's default of 64 MiB
    image_pull_secrets: Annotated[tuple[LabelText, ...], Meta(max_length=16)] = ()
    # image_pull_secrets: Secrets for the image registry
    runtime_class: Annotated[str, Meta(max_length=253)] = ""
    # runtime_class: RuntimeClass of the pods; "" = the cluster's default
    resources: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=16)
    ] = {}  # extended resources of each pod with GPUs or TPUs, such as rdma/hca; no accelerators
    sidecars: Annotated[tuple[RuntimeSidecar, ...], Meta(max_length=MAX_SIDECARS)] = ()
    # sidecars: sidecar containers
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=32)] = ()
    # tolerations: taints of nodes to tolerate
    node_labels: Annotated[dict[str, str], Meta(max_length=64)] = {}  # labels that nodes must have
    run_as_user: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    # run_as_user: user id of the container; null = the image's own
    fs_group: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    # fs_group: group id that owns the volumes; null = unset


class RuntimeSetting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.runtime.v1"
):
    """A runtime that requests may name.

    Subject: ``berth.control.runtime.<runtime>``
    """

    runtime: str  # name of the runtime
    description: Annotated[str, Meta(max_length=1024)] = ""  # explanation for users
    queues: Annotated[tuple[Name, ...], Meta(max_length=256)] = ()
    # queues: queues that may use the runtime; empty = all
    clusters: Annotated[tuple[LabelText, ...], Meta(max_length=256)] = ()
    # clusters: clusters that may run the runtime; empty = all
    parameters: Annotated[
        dict[Annotated[str, Meta(max_length=63)], RuntimeParameter],
        Meta(max_length=MAX_PARAMETERS),
    ] = {}  # values that a request may set, by name
    template: PodTemplate = PodTemplate()  # additions to the pods
    deleted: bool = False  # True: new requests are refused; accepted jobs keep the template
    version: str = ""  # hash of the content, set by the gateway
    set_by: str = ""
    set_at_s: float = 0.0


class RuntimeUse(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A runtime as resolved at submission. Later changes of the runtime have no effect."""

    version: str  # version of the runtime
    template: PodTemplate  # template with parameters filled in
    digest: str  # hash of the request as sent
