"""Measurements in KubeFleet's MemberCluster: properties and free capacity. Pure.

Rules of this file:

- Each property has an observation time. A property more than three heartbeats older than the newest
  of its object is dropped, because its provider has stopped.
- One invalid quantity drops the whole object's capacity: a partial list would look like a full
  cluster.
- The scorer judges the age of the measurements, because this module has no clock.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.hub.members.core.objects import MemberCluster, ResourceUsage
from berthmaster.lib.accelerators.table import AMD, NVIDIA, TPU
from berthmaster.lib.kube.multicluster import Property
from berthmaster.lib.kube.objects import seconds
from berthmaster.lib.kube.quantity import QuantityError, milli, whole
from berthmaster.lib.messages.fleet import Amounts, HubRoom

HEARTBEAT_S: Final = 60.0  # KubeFleet's own default
MAX_HEARTBEAT_S: Final = 600.0  # maximum of its API
LAGS: Final = 3  # number of heartbeats
_GPUS: Final = (NVIDIA, AMD)
_MIB: Final = 1024 * 1024


class Measures(NamedTuple):
    properties: Sequence[Property] = ()
    room: HubRoom | None = None
    problems: Sequence[str] = ()


def measures(member: MemberCluster) -> Measures:
    status = member.status
    interval_s = _heartbeat_s(member.spec.heartbeat_period_seconds)
    problems: list[str] = []
    times = {name: _time_s(one.observation_time) for name, one in (status.properties or {}).items()}
    room = _room(status.resource_usage, interval_s, problems)
    newest_s = max([*times.values(), room.observed_at_s if room is not None else 0.0])
    kept, late = [], 0
    for name, one in sorted((status.properties or {}).items()):
        if times[name] >= newest_s - LAGS * interval_s:
            kept.append(Property(name=name, value=one.value))
        else:
            late += 1
    if late:
        problems.append(f"{late} properties left out: not observed for {LAGS} heartbeats")
    return Measures(kept, room, problems)


def _heartbeat_s(told: int | None) -> float:
    return min(float(told), MAX_HEARTBEAT_S) if told is not None and told > 0 else HEARTBEAT_S


def _time_s(text: str | None) -> float:
    try:
        return seconds(text)
    except ValueError:
        return 0.0  # an invalid time counts as oldest


def _room(usage: ResourceUsage | None, interval_s: float, problems: list[str]) -> HubRoom | None:
    if usage is None or not usage.allocatable or usage.available is None:
        return None
    observed_at_s = _time_s(usage.observation_time)
    if not observed_at_s:
        problems.append(f"resourceUsage: no observationTime, but {usage.observation_time!r}")
        return None
    try:
        return HubRoom(
            allocatable=_amounts(usage.allocatable),
            available=_amounts(usage.available),
            observed_at_s=observed_at_s,
            interval_s=interval_s,
        )
    except QuantityError as error:
        problems.append(f"resourceUsage: {error}")
        return None


def _amounts(told: Mapping[str, str | int]) -> Amounts:
    return Amounts(
        cpu_milli=milli(told.get("cpu", 0)),
        memory_mib=whole(told.get("memory", 0)) // _MIB,
        gpu_milli=1000 * sum(whole(told.get(name, 0)) for name in _GPUS),
        tpus=whole(told.get(TPU, 0)),
    )
