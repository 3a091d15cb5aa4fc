"""From the text of /proc/PID/cgroup to the uid of the pod that the process belongs to.

NVML knows processes, Kubernetes knows pods, and the path of a control group is the only thing that
both leave behind. Its shape depends on the version of cgroups, on the driver that kubelet uses and
on the container runtime::

    version 1      9:memory:PATH          one line a hierarchy, all naming the same pod
    version 2      0::PATH
    cgroupfs       /kubepods/burstable/pod<uid>/<container>
    systemd        /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/
                   cri-containerd-<container>.scope          dashes of the uid as underscores
    mixed          /system.slice/containerd.service/kubepods-pod<uid>.slice:cri-containerd:<id>
    kind, others   a prefix before kubepods, such as kubelet-

The outermost pod counts: what a container builds below its own group is the tenant's text and may
imitate all of this. Pure.
"""

import re
from typing import Final

MAX_CHARS: Final = 64 * 1024  # the kernel writes a few hundred

# A uid is a UUID; a static pod's is the hash of its file, 32 digits without dashes.
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_ROOT = r"(?:[A-Za-z0-9_.-]+-)?kubepods"
_QOS: Final = frozenset({"burstable", "besteffort"})  # guaranteed pods stand right below kubepods
_IS_ROOT: Final = re.compile(rf"{_ROOT}\Z")
_CGROUPFS: Final = re.compile(rf"pod({_UID})\Z")
_SYSTEMD: Final = re.compile(rf"{_ROOT}(?:-burstable|-besteffort)?-pod({_UID})\.slice(?::.*)?\Z")
# cri-o's monitor is in the pod's group and no process of the pod.
_MONITOR: Final = "crio-conmon-"


def pod_uid(text: str) -> str | None:
    """Return the pod's uid as Kubernetes spells it; None outside of pods."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and (uid := _uid_in(parts[2].split("/"))):
            return uid
    return None


def _uid_in(segments: list[str]) -> str | None:
    for place, segment in enumerate(segments):
        found = _SYSTEMD.match(segment) or (
            _CGROUPFS.match(segment) if _below_kubepods(segments, place) else None
        )
        if found:
            below = segments[place + 1 : place + 2]
            return None if below and below[0].startswith(_MONITOR) else _dashed(found[1])
    return None


def _below_kubepods(segments: list[str], place: int) -> bool:
    """Return whether the segment is directly below kubepods or a service class."""
    above = segments[:place]
    if above and above[-1] in _QOS:
        above.pop()
    return bool(above) and bool(_IS_ROOT.match(above[-1]))


def _dashed(uid: str) -> str:
    return uid.replace("_", "-")
