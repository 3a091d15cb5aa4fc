"""A runtime's template applied to a pod. Pure.

Containers of a template get no more rights than Berthmaster's own (pods.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from berthmaster.lib.jobs.pods import HARDENED, OPENS_GPUS, Document, is_for_device_plugins
from berthmaster.lib.messages.runtimes import ObjectKey, PodTemplate, RuntimeSidecar, RuntimeVolume
from berthmaster.lib.messages.workload import PodSet

SHARED_MEMORY: Final = "shm"  # volume of /dev/shm, a reserved name


def apply(spec: Document, pods: PodSet, template: PodTemplate) -> None:
    """Apply the template to a pod of this set, whose resources include the sidecars'."""
    [main] = spec["containers"]
    _take_off(main, pods, template.sidecars)
    if template.command:
        main["args"] = [*main.pop("command", []), *main.get("args", [])]
        main["command"] = list(template.command)
    known = {each["name"] for each in main.get("env", [])}
    added = [
        one
        for one in _env(template.env, template.secret_env, template.config_env)
        if one["name"] not in known
    ]
    if added:
        main["env"] = [*main.get("env", []), *added]
    sources = [{"secretRef": {"name": name}} for name in template.env_from_secrets]
    sources += [{"configMapRef": {"name": name}} for name in template.env_from_config_maps]
    if sources:
        main["envFrom"] = sources
    volumes = [_volume(volume) for volume in template.volumes]
    mounts = [_mount(volume) for volume in template.volumes]
    if isinstance(template.shared_memory_mib, int) and template.shared_memory_mib:
        size = min(template.shared_memory_mib, pods.memory_mib or template.shared_memory_mib)
        memory = {"medium": "Memory", "sizeLimit": f"{size}Mi"}
        volumes.append({"name": SHARED_MEMORY, "emptyDir": memory})
        mounts.append({"name": SHARED_MEMORY, "mountPath": "/dev/shm"})
    if volumes:
        spec["volumes"] = volumes
        main["volumeMounts"] = mounts
    if template.sidecars:
        spec["initContainers"] = [_sidecar(one, template.volumes) for one in template.sidecars]
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in template.image_pull_secrets]
    if template.runtime_class:
        spec["runtimeClassName"] = template.runtime_class
    if template.run_as_user is not None:
        spec["securityContext"] |= {"runAsUser": template.run_as_user, "runAsNonRoot": True}
    if template.fs_group is not None:
        spec["securityContext"]["fsGroup"] = template.fs_group


def _take_off(main: Document, pods: PodSet, sidecars: Iterable[RuntimeSidecar]) -> None:
    """Give the job's container the pod's resources without those of the sidecars."""
    cpu_milli = pods.cpu_milli - sum(one.cpu_milli for one in sidecars)
    memory_mib = pods.memory_mib - sum(one.memory_mib for one in sidecars)
    resources = main["resources"]
    resources["requests"] |= {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
    if memory_mib:
        resources["limits"]["memory"] = f"{memory_mib}Mi"
    else:
        resources["limits"].pop("memory", None)


def _env(
    plain: Mapping[str, str],
    secrets: Mapping[str, ObjectKey],
    configs: Mapping[str, ObjectKey],
) -> list[Document]:
    env: list[Document] = [{"name": name, "value": value} for name, value in plain.items()]
    for field, keys in (("secretKeyRef", secrets), ("configMapKeyRef", configs)):
        for name, of in keys.items():
            reference = {"name": of.name, "key": of.key}
            env.append({"name": name, "valueFrom": {field: reference}})
    return [each for each in env if not is_for_device_plugins(each["name"], each.get("value"))]


def _volume(volume: RuntimeVolume) -> Document:
    source: dict[str, Any]
    if volume.claim:
        source = {"persistentVolumeClaim": {"claimName": volume.claim}}
        if volume.read_only:
            source["persistentVolumeClaim"]["readOnly"] = True
    elif volume.secret:
        source = {"secret": {"secretName": volume.secret}}
    elif volume.config_map:
        source = {"configMap": {"name": volume.config_map}}
    else:
        source = {"emptyDir": {"sizeLimit": f"{volume.scratch_mib}Mi"}}
    return {"name": volume.name, **source}


def _mount(volume: RuntimeVolume) -> Document:
    mount: Document = {"name": volume.name, "mountPath": volume.mount_path}
    if volume.read_only:
        mount["readOnly"] = True
    if volume.sub_path:
        mount["subPath"] = volume.sub_path
    return mount


def _sidecar(sidecar: RuntimeSidecar, volumes: Iterable[RuntimeVolume]) -> Document:
    """Return an init container that starts before the job's container and ends after it."""
    amounts = {"cpu": f"{sidecar.cpu_milli}m", "memory": f"{sidecar.memory_mib}Mi"}
    env: list[Document] = [{"name": OPENS_GPUS, "value": "void"}]
    env += _env(sidecar.env, sidecar.secret_env, {})
    made: Document = {
        "name": sidecar.name,
        "image": sidecar.image,
        "restartPolicy": "Always",
        "resources": {"requests": amounts, "limits": {"memory": amounts["memory"]}},
        "securityContext": HARDENED,
        "env": env,
    }
    if sidecar.command:
        made["command"] = list(sidecar.command)
    if sidecar.args:
        made["args"] = list(sidecar.args)
    mounts = [_mount(volume) for volume in volumes if volume.name in sidecar.volumes]
    if mounts:
        made["volumeMounts"] = mounts
    return made
