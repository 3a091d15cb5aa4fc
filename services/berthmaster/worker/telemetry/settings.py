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
        help="this node's name in its cluster; empty = the host's name, and with source dcgm "
        "each Hostname label is a node of its own",
    )
    source: Literal["auto", "nvml", "dcgm", "emulated"] = setting(
        "auto",
        help="auto: the NVIDIA driver, else a dcgm-exporter, else exit code 3; nvml: the driver; "
        "dcgm: a dcgm-exporter, waited for; emulated: made-up GPUs",
    )
    interval_s: float = setting(
        1.0,
        least=0.1,
        most=300,
        help="seconds from one message to the next; 1 is as often as the driver's own samples of "
        "utilization change",
    )
    proc: Path = setting(
        Path("/proc"),
        help="where processes are looked up to find their pods; in a container the host's "
        "/proc, mounted, or share the host's process ids",
    )
    cgroup: Path = setting(
        Path("/sys/fs/cgroup"),
        help="root of this node's control groups (version 2), which say what pods use of CPU, "
        "memory and disks; in a container the host's, mounted. Without it /proc is read instead",
    )
    kubelet: Path = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        help="the kubelet's socket that tells which containers have which GPUs; it belongs to root",
    )
    dcgm_url: str = setting(
        "http://127.0.0.1:9400/metrics",
        check=_page,
        help="page of the dcgm-exporter; the default is its default port on this node",
    )
    dcgm_fleet: bool = setting(
        False,
        help="the name in dcgm-url is that of a headless Service: read every exporter behind it, "
        "each telling of its own nodes; one such agent is enough for a cluster",
    )
    emulated_gpus: int = setting(
        8, least=0, most=64, help="A100 GPUs that source emulated makes up"
    )

    @property
    def node_name(self) -> str:
        """The name of this node, told or found."""
        return self.node or socket.gethostname()
