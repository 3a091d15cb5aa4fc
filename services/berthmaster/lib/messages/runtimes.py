"""Runtimes: templates of pods that a platform team allows, which requests name.

What a template can say is this schema and nothing else: nothing privileged, nothing of the host,
no service account, no accelerator but those that the request asks for. In its texts ``{{name}}``
stands for a parameter, and ``{{tenant}}`` for whoever submits. Secrets are only named: their values
never pass the bus.
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
    """By which runtime a request is run, and with what in its parameters."""

    name: Annotated[
        Name, Meta(description="Runtime that starts the job, such as torch, mpi, jax or plain.")
    ]
    parameters: Annotated[
        dict[Annotated[str, Meta(max_length=63)], ParameterValue],
        Meta(max_length=MAX_PARAMETERS, description="Parameters of the runtime."),
    ] = {}


class RuntimeParameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value that a request may give."""

    type: Literal["string", "integer", "number", "boolean"] = "string"
    default: ParameterValue | None = None  # None = a request must give it
    choices: Annotated[tuple[ParameterValue, ...], Meta(max_length=256)] = ()  # empty = any
    minimum: float | None = None  # of a number, and of a text's length
    maximum: float | None = None
    description: Annotated[str, Meta(max_length=1024)] = ""


class ObjectKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value of a Secret or of a ConfigMap, in the namespace of the pods."""

    name: LabelText
    key: Annotated[str, Meta(pattern=r"^[-._a-zA-Z0-9]+$(?!\n)", min_length=1, max_length=253)]


class RuntimeVolume(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Files for the pods, of just one source. Claims, Secrets and ConfigMaps are those of the
    pods' namespace."""

    name: Name
    mount_path: Text
    read_only: bool = False
    sub_path: Text = ""
    claim: LabelText = ""  # a PersistentVolumeClaim, which all pods of the job share
    secret: LabelText = ""
    config_map: LabelText = ""
    scratch_mib: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None
    # An empty folder on the node, gone with the pod; one that grows beyond this is evicted.


class RuntimeSidecar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container that runs beside the job's in each pod, from before it starts until it has
    ended. It sees no GPU, and what it takes of CPU and memory comes on top of the request's."""

    name: Name
    image: Annotated[str, Meta(min_length=1, max_length=1024)]
    command: Annotated[tuple[Script, ...], Meta(max_length=256)] = ()
    args: Annotated[tuple[Script, ...], Meta(max_length=256)] = ()
    env: Annotated[dict[str, Text], Meta(max_length=256)] = {}
    secret_env: Annotated[dict[str, ObjectKey], Meta(max_length=64)] = {}
    volumes: Annotated[tuple[Name, ...], Meta(max_length=MAX_VOLUMES)] = ()  # by their names
    cpu_milli: Annotated[int, Meta(ge=0, le=10_000_000)] = 100
    memory_mib: Annotated[int, Meta(ge=1, le=1 << 30)] = 128


class PodTemplate(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a runtime adds to the pods of a request."""

    image: Annotated[str, Meta(max_length=1024)] = ""  # of requests that name none
    command: Annotated[tuple[Script, ...], Meta(max_length=256)] = ()
    # Put before what the request runs, its command and args then being arguments of this.
    needs_command: bool = False  # whether a request must say what this is to start
    # Where a cluster serves KubeRay a RayJob is made, which starts the request's command itself.
    kuberay: bool = False
    env: Annotated[dict[str, Text], Meta(max_length=256)] = {}  # the request's own go before these
    secret_env: Annotated[dict[str, ObjectKey], Meta(max_length=64)] = {}
    config_env: Annotated[dict[str, ObjectKey], Meta(max_length=64)] = {}  # of ConfigMaps
    env_from_secrets: Annotated[tuple[LabelText, ...], Meta(max_length=32)] = ()  # all their keys
    env_from_config_maps: Annotated[tuple[LabelText, ...], Meta(max_length=32)] = ()
    volumes: Annotated[tuple[RuntimeVolume, ...], Meta(max_length=MAX_VOLUMES)] = ()
    shared_memory_mib: Annotated[int, Meta(ge=0, le=1 << 30)] | Text = 0
    # The size of /dev/shm, which counts as memory of the pod; 0 = the container runtime's 64 MiB.
    # A text names a parameter: "{{shared_memory_mib}}".
    image_pull_secrets: Annotated[tuple[LabelText, ...], Meta(max_length=16)] = ()
    runtime_class: Annotated[str, Meta(max_length=253)] = ""
    resources: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=16)
    ] = {}  # of each pod with GPUs or TPUs, such as rdma/hca; no accelerators
    sidecars: Annotated[tuple[RuntimeSidecar, ...], Meta(max_length=MAX_SIDECARS)] = ()
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=32)] = ()
    node_labels: Annotated[dict[str, str], Meta(max_length=64)] = {}
    run_as_user: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None  # None = the image's
    fs_group: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None  # who owns its volumes


class RuntimeSetting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.runtime.v1"
):
    """A runtime that requests may name.

    Subject: ``berth.control.runtime.<runtime>``
    """

    runtime: str  # its name
    description: Annotated[str, Meta(max_length=1024)] = ""
    queues: Annotated[tuple[Name, ...], Meta(max_length=256)] = ()  # empty = of any queue
    clusters: Annotated[tuple[LabelText, ...], Meta(max_length=256)] = ()  # empty = on any cluster
    parameters: Annotated[
        dict[Annotated[str, Meta(max_length=63)], RuntimeParameter],
        Meta(max_length=MAX_PARAMETERS),
    ] = {}
    template: PodTemplate = PodTemplate()
    deleted: bool = False  # True: refuses new requests; those inside keep what they were given
    version: str = ""  # of its content: the same content has the same; the gateway works it out
    set_by: str = ""
    set_at_s: float = 0.0


class RuntimeUse(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A runtime as a request got it when it was taken: later changes do not reach it."""

    version: str
    template: PodTemplate  # parameters filled in
    digest: str  # of the request as it was sent
