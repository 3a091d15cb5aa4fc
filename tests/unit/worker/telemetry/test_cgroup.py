import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.worker.telemetry.core.cgroup import pod_uid

UID = "6bd8f2f5-1a3c-4d0e-9f67-0a1b2c3d4e5f"
UID_ = UID.replace("-", "_")
ID = "4c9a" * 16
STATIC = "0123456789abcdef0123456789abcdef"  # a static pod's uid is the hash of its file

IN_THE_POD = {
    "v1, cgroupfs, guaranteed": f"11:memory:/kubepods/pod{UID}/{ID}",
    "v1, cgroupfs, burstable": f"4:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}",
    "v1, cgroupfs, best effort": f"1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}",
    "v1, many hierarchies, some without": "\n".join(
        ["12:rdma:/", f"11:devices:/kubepods/burstable/pod{UID}/{ID}", "0::/"]
    ),
    "v1, systemd, docker": (
        "9:cpuset:/kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{UID_}.slice/docker-{ID}.scope"
    ),
    "v2, cgroupfs": f"0::/kubepods/besteffort/pod{UID}/{ID}",
    "v2, systemd, containerd": (
        "0::/kubepods.slice/kubepods-besteffort.slice/"
        f"kubepods-besteffort-pod{UID_}.slice/cri-containerd-{ID}.scope"
    ),
    "v2, systemd, guaranteed, cri-o": (
        f"0::/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope/container"
    ),
    "kubelet on systemd, runtime on cgroupfs": (
        "0::/system.slice/containerd.service/"
        f"kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}"
    ),
    "kind": (
        f"0::/docker/{ID}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope"
    ),
    "kind on cgroupfs": f"0::/docker/{ID}/kubelet/kubepods/burstable/pod{UID}/{ID}",
    "seen from another namespace": f"0::/../../kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope",
    "the pod's own group": f"0::/kubepods/burstable/pod{UID}",
    "a container that imitates another pod below its own group": (
        f"0::/kubepods/burstable/pod{UID}/{ID}/kubepods/pod{UID.replace('6', '7')}/{ID}"
    ),
    "a last line without its end": f"0::/kubepods/pod{UID}/{ID}\n",
}

NOT_IN_A_POD = {
    "nothing": "",
    "a login": "0::/user.slice/user-1000.slice/session-3.scope",
    "plain docker": f"0::/system.slice/docker-{ID}.scope",
    "a service": "0::/system.slice/kubelet.service",
    "the root": "0::/",
    "cri-o's monitor": f"0::/kubepods.slice/kubepods-pod{UID_}.slice/crio-conmon-{ID}.scope",
    "cri-o's monitor on cgroupfs": f"4:cpu:/kubepods/pod{UID}/crio-conmon-{ID}",
    "a pod without kubepods above it": f"0::/user.slice/pod{UID}/{ID}",
    "a uid that is none": f"0::/kubepods/burstable/podfoo/{ID}",
    "a uid cut short": f"0::/kubepods/pod{UID[:-1]}/{ID}",
    "a uid with more after it": f"0::/kubepods/pod{UID}0/{ID}",
    "no line of cgroups": f"/kubepods/pod{UID}/{ID}",
}


@pytest.mark.parametrize("text", IN_THE_POD.values(), ids=IN_THE_POD)
def test_the_uid_is_read_from(text: str) -> None:
    assert pod_uid(text) == UID


@pytest.mark.parametrize("text", NOT_IN_A_POD.values(), ids=NOT_IN_A_POD)
def test_no_pod_is_seen_in(text: str) -> None:
    assert pod_uid(text) is None


def test_a_static_pod_keeps_its_hash_as_it_is() -> None:
    assert pod_uid(f"0::/kubepods/burstable/pod{STATIC}/{ID}") == STATIC


@given(st.text())
def test_any_text_has_an_answer(text: str) -> None:
    assert pod_uid(text) is None or len(pod_uid(text) or "") in (32, 36)


@given(st.uuids(), st.sampled_from(["", "-burstable", "-besteffort"]))
def test_both_drivers_tell_the_same_uid(uid: object, qos: str) -> None:
    cgroupfs = f"0::/kubepods{qos.replace('-', '/')}/pod{uid}/{ID}"
    systemd = f"0::/kubepods.slice/kubepods{qos}-pod{str(uid).replace('-', '_')}.slice/x.scope"
    assert pod_uid(cgroupfs) == pod_uid(systemd) == str(uid)
