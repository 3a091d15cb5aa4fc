"""Settings of the device plugin, as in `berth serve shares --help`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from berthmaster.lib.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class SharesSettings(CommonSettings):
    way: Literal["auto", "mps", "intercept", "time-slicing"] = setting(
        "auto",
        help=(
            "auto: mps if this machine has nvidia-cuda-mps-control, else time-slicing; mps: "
            "limits of compute and memory for each pod, exit code 3 without that program; "
            "intercept: limits by a library in the pods' processes, experimental; time-slicing:"
            " no limits, under another resource name"
        ),
    )
    burst_milli: int = setting(
        0,
        least=0,
        most=1000,
        help=(
            "with way intercept: thousandths of a GPU's compute that a share may use beyond its"
            " own while neighbours are idle; 0 = none"
        ),
    )
    kubelet_dir: Path = setting(
        Path("/var/lib/kubelet"),
        help=(
            "the kubelet's folder with device-plugins and pod-resources; in a container, "
            "mounted from the host"
        ),
    )
    state_dir: Path = setting(
        Path("/run/berthmaster/shares"),
        help=(
            "folder for pipes and shared memory of the MPS daemons and for the plugin's lock; "
            "in a container, mounted from the same path of the host, and its shm also as "
            "/dev/shm, because pods mount its folders"
        ),
    )
    devices_dir: Path = setting(
        Path("/dev"), help="folder of the host with device files such as nvidia0"
    )
