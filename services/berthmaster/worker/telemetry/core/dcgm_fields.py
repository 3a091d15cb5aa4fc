"""Samples from the series of a dcgm-exporter. Pure.

An exporter repeats a GPU's series for each pod on it, and in MIG mode for each instance, so series
are grouped by (host, GPU, instance) and never summed. The exporter knows pods by name, without uid
or process, so samples have holders and no processes.

A GPU is identified by UUID, because indices may change. Example: 0 = A and 1 = B, then 0 = B alone:
B is unchanged and A is lost. A GPU missing in a later page is lost, unless an unreadable line may
concern it. A GPU without a UUID is unhealthy, because no pod can be matched. A host missing in a
later page is simply not reported.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from berthmaster.lib.messages.telemetry import GpuHolder, GpuReading, MigInstance
from berthmaster.worker.telemetry.core.gpu_health import Signs, throttle_names, verdict
from berthmaster.worker.telemetry.core.plausible import (
    BYTES_PER_S,
    CLOCK_MHZ,
    COUNT,
    MEMORY_MIB,
    PERCENT,
    POWER_W,
    SHARE,
    TEMPERATURE_C,
    XID,
)
from berthmaster.worker.telemetry.core.pod_resources import merged
from berthmaster.worker.telemetry.core.slices import of_slices
from berthmaster.worker.telemetry.core.source import NodeReading, SourceFailed, percent
from berthmaster.worker.telemetry.core.xid import outweighs

DEV: Final = "DCGM_FI_DEV_"
GPU_UTIL: Final = f"{DEV}GPU_UTIL"
MEM_COPY_UTIL: Final = f"{DEV}MEM_COPY_UTIL"
FB_TOTAL: Final = f"{DEV}FB_TOTAL"
FB_USED: Final = f"{DEV}FB_USED"
FB_FREE: Final = f"{DEV}FB_FREE"
FB_RESERVED: Final = f"{DEV}FB_RESERVED"
SM_CLOCK: Final = f"{DEV}SM_CLOCK"
MEM_CLOCK: Final = f"{DEV}MEM_CLOCK"
GPU_TEMP: Final = f"{DEV}GPU_TEMP"
POWER_USAGE: Final = f"{DEV}POWER_USAGE"
POWER_LIMIT: Final = f"{DEV}POWER_MGMT_LIMIT"
ENFORCED_LIMIT: Final = f"{DEV}ENFORCED_POWER_LIMIT"
XID_ERRORS: Final = f"{DEV}XID_ERRORS"
ECC_CORRECTED: Final = f"{DEV}ECC_SBE_VOL_TOTAL"
ECC_UNCORRECTED: Final = f"{DEV}ECC_DBE_VOL_TOTAL"
REMAP_PENDING: Final = f"{DEV}ROW_REMAP_PENDING"
REMAP_FAILURE: Final = f"{DEV}ROW_REMAP_FAILURE"
THROTTLE: Final = f"{DEV}CLOCK_THROTTLE_REASONS"  # until DCGM 3
EVENT_REASONS: Final = f"{DEV}CLOCKS_EVENT_REASONS"  # since DCGM 4
ENGINE_ACTIVE: Final = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"  # 0 to 1
SM_ACTIVE: Final = "DCGM_FI_PROF_SM_ACTIVE"  # 0 to 1; not exported by default
TENSOR_ACTIVE: Final = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"  # 0 to 1
DRAM_ACTIVE: Final = "DCGM_FI_PROF_DRAM_ACTIVE"  # 0 to 1
PCIE_SENT: Final = "DCGM_FI_PROF_PCIE_TX_BYTES"  # a second
PCIE_RECEIVED: Final = "DCGM_FI_PROF_PCIE_RX_BYTES"

WANTED: Final = frozenset(
    {
        GPU_UTIL, MEM_COPY_UTIL, FB_TOTAL, FB_USED, FB_FREE, FB_RESERVED, SM_CLOCK, MEM_CLOCK,
        GPU_TEMP, POWER_USAGE, POWER_LIMIT, ENFORCED_LIMIT, XID_ERRORS, ECC_CORRECTED,
        ECC_UNCORRECTED, REMAP_PENDING, REMAP_FAILURE, THROTTLE, EVENT_REASONS, ENGINE_ACTIVE,
        SM_ACTIVE, TENSOR_ACTIVE, DRAM_ACTIVE, PCIE_SENT, PCIE_RECEIVED,
    }
)  # fmt: skip

# DCGM writes unknown values as numbers from here on; counts of bytes have a blank of 64 bits.
_BLANK: Final = 0x7FFFFFF0
_BLANK_BYTES: Final = 1 << 47
_BYTES: Final = frozenset({PCIE_SENT, PCIE_RECEIVED})
_BOUNDS: Final = MappingProxyType(
    {
        **dict.fromkeys((GPU_UTIL, MEM_COPY_UTIL), PERCENT),
        **dict.fromkeys((FB_TOTAL, FB_USED, FB_FREE, FB_RESERVED), MEMORY_MIB),
        **dict.fromkeys((SM_CLOCK, MEM_CLOCK), CLOCK_MHZ),
        GPU_TEMP: TEMPERATURE_C,
        **dict.fromkeys((POWER_USAGE, POWER_LIMIT, ENFORCED_LIMIT), POWER_W),
        XID_ERRORS: XID,
        **dict.fromkeys((ECC_CORRECTED, ECC_UNCORRECTED, REMAP_PENDING, REMAP_FAILURE), COUNT),
        **dict.fromkeys((THROTTLE, EVENT_REASONS), COUNT),
        **dict.fromkeys((ENGINE_ACTIVE, SM_ACTIVE, TENSOR_ACTIVE, DRAM_ACTIVE), SHARE),
        **dict.fromkeys((PCIE_SENT, PCIE_RECEIVED), BYTES_PER_S),
    }
)
# Fields of an instance's series that describe the whole GPU.
_OF_THE_GPU: Final = WANTED - {
    GPU_UTIL, MEM_COPY_UTIL, FB_TOTAL, FB_USED, FB_FREE, FB_RESERVED, ENGINE_ACTIVE, SM_ACTIVE,
    TENSOR_ACTIVE, DRAM_ACTIVE,
}  # fmt: skip
MAX_NAME_CHARS: Final = 253  # Kubernetes' own limit
MAX_GPUS: Final = 1024  # of a node, there or lost
MAX_UUID_CHARS: Final = 128
MAX_MODEL_CHARS: Final = 256
_NO_MORE: Final = "dcgm-exporter does not report it any more"
_NOT_READ: Final = "lines of dcgm-exporter's page that may be about it cannot be read"
_SEVERAL_INDICES: Final = "dcgm-exporter reports it under several indices"
_SHARED_INDEX: Final = "dcgm-exporter reports another GPU under its index"


class Series(NamedTuple):
    """One line of the exposition."""

    name: str
    labels: Mapping[str, str]
    value: float


class Parsed(NamedTuple):
    """A page, taken apart."""

    series: Sequence[Series]
    skipped: int = 0  # unreadable lines
    named: tuple[str, ...] = ()  # the first of them
    cut_short: bool = False  # the page ends in the middle of a line

    def may_tell_of(self, index: int, uuid: str) -> bool:
        """Return whether an unreadable line may concern this GPU."""
        if self.cut_short or len(self.named) < self.skipped:
            return True
        marks = [mark for mark in (uuid, f'gpu="{index}"') if mark]
        return any(mark in line for line in self.named for mark in marks)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Return the unreadable lines, described."""
        if not self.skipped:
            return ()
        first = repr(self.named[0][:80]) if self.named else "the last, which has no end"
        return (
            f"lines of dcgm-exporter's page: {self.skipped} cannot be read, the first: {first}",
        )


@dataclass
class _Device:
    """Series of one GPU."""

    index: int
    uuid: str = ""
    model: str = ""
    values: dict[str, float] = field(default_factory=dict)
    instances: dict[str, "_Instance"] = field(default_factory=dict)
    holders: set[tuple[str, str, str, str]] = field(default_factory=set)  # instance, pod …
    fault: str = ""  # why its values are not trusted

    @property
    def key(self) -> str:
        return self.uuid or f"#{self.index}"


@dataclass
class _Instance:
    """Series of one MIG instance, by GPU instance number."""

    profile: str
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class _Known:
    """Memory of a GPU between scrapes."""

    uuid: str
    model: str
    index: int
    device_xid: int | None = None
    device_xid_at_s: float = 0.0


class DcgmReadings:
    """Turns one scrape after the other into readings."""

    def __init__(self, node: str) -> None:
        self._node = node  # "" = each Hostname is its own node
        self._known: dict[str, dict[str, _Known]] = {}  # by host and identity of the GPU

    def take(self, page: Parsed, now_s: float) -> tuple[NodeReading, ...]:
        """Return the samples of one scrape. Raises SourceFailed without any GPU of the node."""
        refused: list[str] = []
        hosts = _gather(page.series, refused)
        if not hosts:
            unread = "".join(f"; {lack}" for lack in page.lacks)
            raise SourceFailed(f"no {DEV}… series of any GPU there; is it a dcgm-exporter?{unread}")
        if self._node:
            hosts = {self._node: _pick(hosts, self._node)}
        made = [
            NodeReading(host, self._readings(host, hosts[host], page, now_s))
            for host in sorted(hosts)
        ]
        # The host of an unreadable line is unknown; usually there is one host.
        made[0] = made[0]._replace(
            lacks=page.lacks, lines_skipped=page.skipped, refused=tuple(refused)
        )
        return tuple(made)

    def _readings(
        self, host: str, devices: Sequence[_Device], page: Parsed, now_s: float
    ) -> tuple[GpuReading, ...]:
        known = self._known.setdefault(host, {})
        there = {device.key for device in devices}
        free = _Indices(devices)
        made: list[GpuReading] = []
        for device in sorted(devices, key=lambda one: one.key):
            one = known.get(device.key)
            if one is None:
                _replaced(known, there, device.index)
                one = known[device.key] = _Known(device.uuid, device.model, device.index)
            one.model = device.model or one.model
            one.index = free.take(device.index)
            if one.index != device.index:
                device.fault = device.fault or _SHARED_INDEX
            made.append(_reading(one.index, device, one, now_s))
        absent = [key for key in known if key not in there]
        for key in absent[: max(0, len(known) - MAX_GPUS)]:
            del known[key]
        for key, one in known.items():
            if key in there:
                continue
            unread = page.may_tell_of(one.index, one.uuid)
            one.index = free.take(one.index)
            made.append(
                GpuReading(
                    index=one.index,
                    uuid=one.uuid,
                    model=one.model,
                    health="degraded" if unread else "lost",
                    health_reason=_NOT_READ if unread else _NO_MORE,
                )
            )
        return tuple(sorted(made, key=lambda reading: reading.index))


def _replaced(known: dict[str, _Known], there: Collection[str], index: int) -> None:
    """Forget an absent GPU whose index a new GPU has."""
    for key, one in list(known.items()):
        if key not in there and one.index == index:
            del known[key]


class _Indices:
    """Gives each GPU of a node a unique index, its own if possible."""

    def __init__(self, devices: Iterable[_Device]) -> None:
        self._wanted = {device.index for device in devices}
        self._taken: set[int] = set()

    def take(self, index: int) -> int:
        """Return this index, or the first unused and unwanted one."""
        if index in self._taken:
            unfit = self._taken | self._wanted
            index = next(n for n in range(len(unfit) + 1) if n not in unfit)
        self._taken.add(index)
        return index


def _gather(series: Iterable[Series], refused: list[str]) -> dict[str, list[_Device]]:
    """Return the GPUs of each host. ``refused``: collects impossible values."""
    hosts: dict[str, dict[str, _Device]] = {}
    for one in series:
        labels = one.labels
        if one.name not in WANTED or not labels.get("gpu"):
            continue
        host = labels.get("Hostname") or labels.get("hostname") or ""
        uuid = labels.get("UUID") or labels.get("uuid") or ""
        uuid = uuid if len(uuid) <= MAX_UUID_CHARS else ""
        found = _Device(int(labels["gpu"]), uuid)
        of_host = hosts.setdefault(host, {})
        if found.key not in of_host and len(of_host) == MAX_GPUS:
            refused.append(f"GPUs of {host[:64]} are more than {MAX_GPUS}: {found.key}")
            continue
        device = of_host.setdefault(found.key, found)
        if device.index != found.index:
            device.fault = _SEVERAL_INDICES
        device.model = (labels.get("modelName") or "")[:MAX_MODEL_CHARS] or device.model
        if pod := _pod(labels):
            device.holders.add((labels.get("GPU_I_ID") or "", *pod))
        blank = _BLANK_BYTES if one.name in _BYTES else _BLANK
        if not math.isfinite(one.value) or one.value >= blank:
            continue
        if not _BOUNDS[one.name].hold(one.value):
            refused.append(f"{one.name} of GPU {found.index} is {one.value:g}")
            continue
        if number := labels.get("GPU_I_ID"):
            instance = device.instances.setdefault(
                number, _Instance(labels.get("GPU_I_PROFILE") or "")
            )
            instance.values[one.name] = one.value
            if one.name in _OF_THE_GPU:
                device.values.setdefault(one.name, one.value)
        else:
            device.values[one.name] = one.value
    return {host: _with_nameless(devices) for host, devices in hosts.items()}


def _with_nameless(devices: Mapping[str, _Device]) -> list[_Device]:
    """Assign series without a UUID to the GPU with the same index; to an unnamed GPU if none or
    several match.
    """
    named = [device for device in devices.values() if device.uuid]
    left: list[_Device] = []
    for device in devices.values():
        if device.uuid:
            continue
        same = [one for one in named if one.index == device.index]
        if len(same) != 1:
            left.append(device)
            continue
        (whole,) = same
        whole.values = device.values | whole.values
        whole.holders |= device.holders
        whole.model = whole.model or device.model
        whole.instances = device.instances | whole.instances
    return named + left


def _pod(labels: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return (namespace, pod, container) of a series, by new or old label names."""
    pod = labels.get("pod") or labels.get("pod_name") or ""
    namespace = labels.get("namespace") or labels.get("pod_namespace") or ""
    container = labels.get("container") or labels.get("container_name") or ""
    names = (namespace, pod, container)
    told = bool(pod and namespace) and max(map(len, names)) <= MAX_NAME_CHARS
    return names if told else None


def _pick(hosts: Mapping[str, list[_Device]], node: str) -> list[_Device]:
    """The series of the node we were told to be. Raises SourceFailed."""
    if node in hosts:
        return hosts[node]
    if len(hosts) == 1:  # often the exporter's own pod name
        return next(iter(hosts.values()))
    names = ", ".join(sorted(hosts)[:4])
    raise SourceFailed(
        f"none of the {len(hosts)} Hostname labels there ({names}, …) is {node!r}; "
        "--node must be one of them, or left out to report each as a node"
    )


def _reading(index: int, device: _Device, known: _Known, now_s: float) -> GpuReading:
    values = device.values
    xid = _whole(values.get(XID_ERRORS)) or None  # 0 = none since DCGM has looked
    if xid is None:
        known.device_xid = None
    elif xid != known.device_xid and outweighs(xid, known.device_xid):
        known.device_xid, known.device_xid_at_s = xid, now_s
    reasons = throttle_names(_whole(values.get(EVENT_REASONS, values.get(THROTTLE))) or 0)
    pending, failed = values.get(REMAP_PENDING), values.get(REMAP_FAILURE)
    signs = Signs(
        xid=known.device_xid,
        xid_at_s=known.device_xid_at_s,
        ecc_uncorrected=_whole(values.get(ECC_UNCORRECTED)),
        retirement_pending=None if pending is None else pending > 0,
        retirement_failed=None if failed is None else failed > 0,
        throttle_reasons=reasons,
        named=bool(device.uuid),
    )
    health, why = verdict(signs, now_s)
    if health == "ok" and device.fault:
        health, why = "degraded", device.fault
    slices = tuple(
        _mig(device.uuid, number, instance) for number, instance in sorted(device.instances.items())
    )
    return GpuReading(
        index=index,
        uuid=device.uuid,
        model=device.model,
        health=health,
        health_reason=why,
        memory_total_mib=_total_mib(values),
        memory_used_mib=_whole(values.get(FB_USED)),
        utilization_percent=_utilization(values, slices, device.model),
        sm_active_percent=_share(values, SM_ACTIVE),
        tensor_active_percent=_share(values, TENSOR_ACTIVE),
        dram_active_percent=_share(values, DRAM_ACTIVE),
        pcie_bytes_per_s=_pcie(values),
        memory_bandwidth_percent=values.get(MEM_COPY_UTIL),
        power_w=values.get(POWER_USAGE),
        power_limit_w=values.get(ENFORCED_LIMIT, values.get(POWER_LIMIT)),
        temperature_c=values.get(GPU_TEMP),
        sm_clock_mhz=_whole(values.get(SM_CLOCK)),
        memory_clock_mhz=_whole(values.get(MEM_CLOCK)),
        throttle_reasons=reasons,
        ecc_corrected=_whole(values.get(ECC_CORRECTED)),
        ecc_uncorrected=_whole(values.get(ECC_UNCORRECTED)),
        xid=xid,
        mig=slices,
        holders=merged(
            GpuHolder(
                namespace=namespace,
                pod=pod,
                container=container,
                device=f"{device.uuid}/{number}" if number else "",
            )
            for number, namespace, pod, container in sorted(device.holders)
        ),
    )


def _mig(uuid: str, number: str, instance: _Instance) -> MigInstance:
    """Return a MIG instance. Without a UUID in the exporter, its GPU's and its number
    identify it.
    """
    total_mib = _total_mib(instance.values)
    if total_mib is None:
        size = re.search(r"(\d+)gb", instance.profile)
        total_mib = int(size[1]) * 1024 if size else 0
    return MigInstance(
        uuid=f"{uuid}/{number}",
        profile=instance.profile,
        memory_mib=total_mib,
        memory_used_mib=_whole(instance.values.get(FB_USED)),
        utilization_percent=_of_instance(instance.values),
        sm_active_percent=_share(instance.values, SM_ACTIVE),
        tensor_active_percent=_share(instance.values, TENSOR_ACTIVE),
        dram_active_percent=_share(instance.values, DRAM_ACTIVE),
    )


def _total_mib(values: Mapping[str, float]) -> int | None:
    """Return the total memory as exported, or as used, free and reserved together."""
    if FB_TOTAL in values:
        return _whole(values[FB_TOTAL])
    if FB_USED in values and FB_FREE in values:
        return _whole(values[FB_USED] + values[FB_FREE] + values.get(FB_RESERVED, 0.0))
    return None


def _utilization(
    values: Mapping[str, float], slices: Sequence[MigInstance], model: str
) -> float | None:
    """Return the utilization of a GPU: from the driver, else from profiling counters, else from its
    MIG slices, since the driver does not count in MIG mode.
    """
    if GPU_UTIL in values:
        return values[GPU_UTIL]
    whole = _of_instance(values)
    return whole if whole is not None else of_slices(slices, model)


def _of_instance(values: Mapping[str, float]) -> float | None:
    """Of a MIG instance only the profiling counters know: the driver's rate is of the whole GPU, so
    beside an instance's number it says nothing of the instance."""
    return _share(values, ENGINE_ACTIVE)


def _share(values: Mapping[str, float], field: str) -> float | None:
    """In percent, of a field from 0 to 1."""
    return percent(round(values.get(field, math.nan) * 100, 1))


def _pcie(values: Mapping[str, float]) -> float | None:
    """Both directions together; None where the exporter tells one of them or none."""
    if PCIE_SENT not in values or PCIE_RECEIVED not in values:
        return None
    return values[PCIE_SENT] + values[PCIE_RECEIVED]


def _whole(value: float | None) -> int | None:
    return None if value is None or value < 0 else int(value)
