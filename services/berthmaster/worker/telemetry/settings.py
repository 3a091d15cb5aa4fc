"""Settings of the telemetry agent, as in `berth serve telemetry --help`."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from berthmaster.lib.door_client.worker_settings import WorkerSettings, cluster_problem
from berthmaster.lib.runtime.settings import setting


def _page(text: str) -> str:
    right = "http://HOST:PORT/metrics, or https"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return right
    return "" if parts.scheme in ("http", "https") and parts.hostname and port != 0 else right


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings(WorkerSettings):
    """One agent: cluster, source and interval."""

    node: str = setting(
        "",
        check=lambda text: cluster_problem(text) if text else "",
        help=(
            "name of this node in its cluster; empty = the host name; with source dcgm each "
            "Hostname label is a node of its own"
        ),
    )
    source: Literal["auto", "nvml", "dcgm", "emulated"] = setting(
        "auto",
        help=(
            "auto: the NVIDIA driver, else a dcgm-exporter, else exit code 3; nvml: the driver;"
            " dcgm: a dcgm-exporter, also if not up yet; emulated: emulated GPUs"
        ),
    )
    interval_s: float = setting(
        1.0,
        least=0.1,
        most=300,
        help="seconds between two messages; the driver updates utilization about once a second",
    )
    proc: Path = setting(
        Path("/proc"),
        help=(
            "folder of processes, to find their pods; in a container, the host's /proc, "
            "mounted, or shared process ids"
        ),
    )
    cgroup: Path = setting(
        Path("/sys/fs/cgroup"),
        help="root of this node's control groups (version 2), which say what pods use of CPU, "
        "memory and disks; in a container the host's, mounted. Without it /proc is read instead",
    )
    kubelet: Path = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        help="the kubelet's PodResources socket with the GPUs of containers, owned by root",
    )
    dcgm_url: str = setting(
        "http://127.0.0.1:9400/metrics",
        check=_page,
        help="URL of the dcgm-exporter; the default is its default port on this node",
    )
    dcgm_fleet: bool = setting(
        False,
        help=(
            "dcgm-url names a headless Service: read every exporter behind it; one such agent "
            "serves a cluster"
        ),
    )

    @property
    def node_name(self) -> str:
        """The name of this node, told or found."""
        return self.node or socket.gethostname()
