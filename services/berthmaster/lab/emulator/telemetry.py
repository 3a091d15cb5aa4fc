"""Telemetry of emulated GPUs: depends on their load, noise and age. Pure.

A GPU's samples approach a target set by its load: work heats a GPU, heat slows it, and age adds
memory errors. A dead GPU is reported as lost, without measurements, as by a driver.
"""

from collections.abc import Sequence
from typing import Final

from berthmaster.lab.emulator.chance import uniform
from berthmaster.lab.emulator.fleets import gpu_clock_mhz, gpu_power_w
from berthmaster.lab.emulator.kubelet import EmulatedNode
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry

FELL_OFF_THE_BUS: Final = 79  # XID
IDLE_C: Final = 32.0
SLOWS_AT_C: Final = 83.0
_LAG: Final = 0.2  # fraction of the way to its target that a temperature moves per interval
_MULTIPLIER: Final = 6364136223846793005
_INCREMENT: Final = 1442695040888963407
_MASK: Final = (1 << 64) - 1


class NodeModel:
    def __init__(self, cluster: str, node: EmulatedNode, uuids: Sequence[str], seed: int) -> None:
        self._cluster = cluster
        self._node = node
        self._uuids = tuple(uuids)
        self._power_w = gpu_power_w(node.spec.model)
        self._clock_mhz = gpu_clock_mhz(node.spec.model)
        self._noise = int(uniform(seed, "noise", cluster, node.spec.name) * _MASK) | 1
        count = node.spec.gpus
        self._celsius = [IDLE_C] * count
        # Age 0 to 1, most GPUs young: drives heat and memory errors.
        self._age = [uniform(seed, "age", cluster, node.spec.name, i) ** 3 for i in range(count)]
        self._ecc = [int(age * 200) for age in self._age]

    def _random(self) -> float:
        """Return the next number of a linear congruential sequence, which is good enough for
        noise."""
        self._noise = (self._noise * _MULTIPLIER + _INCREMENT) & _MASK
        return self._noise / (_MASK + 1)

    def telemetry(
        self, *, epoch: int, counter: int, now_s: float, interval_s: float
    ) -> NodeTelemetry:
        node = self._node
        return NodeTelemetry(
            cluster=self._cluster,
            node=node.spec.name,
            epoch=epoch,
            counter=counter,
            observed_at_s=now_s,
            interval_s=interval_s,
            source="emulated",
            gpus=tuple(self._reading(index) for index in range(node.spec.gpus)),
        )

    def _reading(self, index: int) -> GpuReading:
        node = self._node
        if node.gpu_back_s[index]:
            return GpuReading(
                index=index,
                uuid=self._uuids[index],
                model=node.spec.model,
                health="lost",
                health_reason="fell off the bus",
                xid=FELL_OFF_THE_BUS,
            )
        load = (1000 - node.gpu_free_milli[index]) / 1000
        busy = load * (0.78 + 0.22 * self._random())
        age = self._age[index]
        target_c = IDLE_C + (46.0 + 10.0 * age) * busy
        celsius = self._celsius[index] = (
            self._celsius[index] + _LAG * (target_c - self._celsius[index]) + self._random() - 0.5
        )
        slowed = celsius > SLOWS_AT_C
        if load and self._random() < 0.002 * age:
            self._ecc[index] += 1
        total_mib = node.memory_per_gpu_mib
        clock_mhz = self._clock_mhz * ((0.85 if slowed else 1.0) if load else 0.2)
        return GpuReading(
            index=index,
            uuid=self._uuids[index],
            model=node.spec.model,
            health="degraded" if self._ecc[index] > 250 else "ok",
            health_reason="many corrected memory errors" if self._ecc[index] > 250 else "",
            memory_total_mib=total_mib,
            memory_used_mib=int(total_mib * min(1.0, 0.02 + 0.9 * load)),
            utilization_percent=round(100 * min(1.0, busy), 1),
            memory_bandwidth_percent=round(60 * min(1.0, busy), 1),
            power_w=round(self._power_w * (0.12 + 0.85 * min(1.0, busy)), 1),
            power_limit_w=self._power_w,
            temperature_c=round(celsius, 1),
            sm_clock_mhz=int(clock_mhz),
            throttle_reasons=("sw_thermal_slowdown",) if slowed else (),
            ecc_corrected=self._ecc[index],
            ecc_uncorrected=0,
        )
