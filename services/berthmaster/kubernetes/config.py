"""Kubeconfigs and a pod's own service account, as what a client needs to know. (In the making.)"""

from pathlib import Path

from berthmaster.kubernetes.access import Access


async def from_kubeconfig(path: Path | None = None, context: str = "") -> Access:
    raise NotImplementedError


async def in_cluster() -> Access:
    raise NotImplementedError


def from_kubeconfig_bytes(data: bytes, *, allow_exec: bool = False) -> Access:
    raise NotImplementedError
