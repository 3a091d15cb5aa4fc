"""The manager of one plane as a process: the stand-in, or the real one when KUEUE_BIN names it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.controlplane.kueue import real
from tests.controlplane.plane import Plane
from tests.controlplane.processes import Process
from tests.support import warm

HUB = "hub"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How managers run. What a real one has as a constant it ignores (marked)."""

    dispatcher: str = "AllAtOnce"  # AllAtOnce, Incremental, or the name of somebody else's
    dispatch_step: int = 3
    dispatch_round_s: float = 300.0  # stand-in only
    policy: bool = True  # the API server clears nominations: deploy/kubernetes/nominations
    merge_patch_gate: bool = False  # Kueue's other way, which preemption turns into a trap
    worker_lost_timeout_s: float = 900.0
    collect_s: float = 60.0
    batch_s: float = 1.0  # stand-in only
    elastic_jobs: bool = True  # it knows Jobs whose number of pods changes; the stand-in never
    frameworks: tuple[str, ...] = ("batch/job",)  # what it manages; the stand-in only Jobs
    # Resource -> DeviceClasses whose claimed devices count as it; the stand-in counts no claims.
    device_classes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


def is_real(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the real manager was asked for. Raises ValueError when only half of it is named."""
    program, crds = environment.get("KUEUE_BIN"), environment.get("KUEUE_CRDS")
    if bool(program) != bool(crds):
        raise ValueError(
            "KUEUE_BIN (a program) and KUEUE_CRDS (a folder) go together: set both or none"
        )
    return bool(program)


def manager(plane: Plane, options: Options) -> Process:
    """The manager of a plane, not started yet. Its log and files lie in the plane's folder."""
    folder = plane.folder / "kueue"
    folder.mkdir(exist_ok=True)
    role = HUB if plane.role == HUB else "worker"
    if is_real():
        return real.manager(plane, role, options.__dict__, Path(os.environ["KUEUE_BIN"]))
    return standin(plane, role, options)


def standin(plane: Plane, role: str, options: Options) -> Process:
    """Our own, in a process of its own."""
    argv = [
        f"--kubeconfig={plane.kubeconfig_for('kueue-manager', ('system:masters',))}",
        f"--role={role}",
        f"--dispatcher={options.dispatcher}",
        f"--dispatch-step={options.dispatch_step}",
        f"--dispatch-round-s={options.dispatch_round_s}",
        f"--worker-lost-timeout-s={options.worker_lost_timeout_s}",
        f"--collect-s={options.collect_s}",
        f"--batch-s={options.batch_s}",
    ]
    if options.merge_patch_gate:
        argv.append("--merge-patch-gate")
    environment = {"PATH": os.environ.get("PATH", "")}
    log = plane.folder / "kueue" / "manager.log"
    name = f"{plane.name}: kueue stand-in"
    return Process(name, argv, log, environment, module=warm.MANAGER)
