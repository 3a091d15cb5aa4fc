"""Settings of the device plugin, as in `berth serve shares --help`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from berthmaster.lib.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class SharesSettings(CommonSettings):
    way: Literal["auto", "mps", "intercept", "time-slicing"] = setting(
        "auto",
        help="auto: mps where this machine has nvidia-cuda-mps-control, else time-slicing; mps: "
        "each pod is held to its compute and memory, and without that program exit code 3; "
        "intercept: a library in the pods' processes holds them, which is experimental; "
        "time-slicing: pods take turns and nothing holds them, offered under another resource",
    )
    burst_milli: int = setting(
        0,
        least=0,
        most=1000,
        help="way intercept: thousandths of a GPU's compute that a share may use beyond its own "
        "while its neighbours leave them; 0 = none",
    )
    kubelet_dir: Path = setting(
        Path("/var/lib/kubelet"),
        help="the kubelet's folder, with device-plugins and pod-resources in it; in a container "
        "mounted from the host",
    )
    state_dir: Path = setting(
        Path("/run/berthmaster/shares"),
        help="folder of the MPS daemons' pipes and shared memory, and of the lock that keeps a "
        "second plugin away; in a container mounted from the same path of the host, and its shm "
        "also as /dev/shm, as pods mount folders of it",
    )
    devices_dir: Path = setting(
        Path("/dev"), help="folder of the host with the GPUs' device files, as nvidia0"
    )
