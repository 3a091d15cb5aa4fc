"""Whose a process is, as long as it is that process: numbers are given away again."""

import random
from typing import NamedTuple

import pytest

from berthmaster.worker.telemetry.core.pods import (
    AGAIN_S,
    CHECKS,
    LOOK_UPS,
    MAX_REMEMBERED,
    REMEMBER_S,
    Pods,
)
from tests.unit.worker.telemetry.fake_proc import FakeProc

UID = "6bd8f2f5-1a3c-4d0e-9f67-0a1b2c3d4e5f"
OTHER = "0a1b2c3d-1a3c-4d0e-9f67-6bd8f2f54e5f"
ID = "4c9a" * 16


def in_pod(uid: str) -> str:
    return f"0::/kubepods/burstable/pod{uid}/{ID}"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_process_is_looked_up_once_and_again_when_its_number_was_given_away() -> None:
    proc, clock = FakeProc({7: in_pod(UID)}), Clock()
    pods = Pods(proc, clock)
    for _ in range(5):
        pods.begin()
        assert [pods.pod_of(7), pods.pod_of(7)] == [UID, UID]
        clock.now_s += 1
    assert proc.looked_up == [7]

    # It has ended, and its number belongs to another pod's process, started later.
    proc.groups[7], proc.starts[7] = in_pod(OTHER), 2
    pods.begin()
    assert pods.pod_of(7) == OTHER
    assert proc.looked_up == [7, 7]

    # And to a login shell.
    proc.groups[7], proc.starts[7] = "0::/user.slice", 3
    pods.begin()
    assert pods.pod_of(7) is None


def test_a_number_that_is_given_away_while_it_is_looked_up_is_nobodys() -> None:
    class Changing(FakeProc):
        def cgroup(self, pid: int) -> str:
            self.starts[pid] = 2
            return super().cgroup(pid)

    pods = Pods(Changing({7: in_pod(UID)}), Clock())
    pods.begin()
    assert pods.pod_of(7) is None
    assert pods.unreadable == 1


def test_a_process_that_has_ended_meanwhile_has_no_pod_and_is_looked_up_again_later() -> None:
    proc, clock = FakeProc({}), Clock()
    pods = Pods(proc, clock)
    pods.begin()
    assert (pods.pod_of(7), pods.unreadable) == (None, 1)
    proc.groups[7] = in_pod(UID)
    pods.begin()
    assert (pods.pod_of(7), pods.unreadable) == (None, 1)
    clock.now_s += AGAIN_S
    pods.begin()
    assert (pods.pod_of(7), pods.unreadable) == (UID, 0)

    # /proc itself goes in the middle: nothing that was known counts any more.
    del proc.groups[7]
    pods.begin()
    assert pods.pod_of(7) is None


def test_of_very_many_processes_each_is_checked_in_turn() -> None:
    proc = FakeProc({pid: in_pod(UID) for pid in range(4 * CHECKS)})
    pods = Pods(proc, Clock())

    def a_round() -> list[str | None]:
        pods.begin()
        return [pods.pod_of(pid) for pid in range(4 * CHECKS)]

    a_round()
    for _ in range(6):
        proc.checked.clear()
        assert set(a_round()) == {UID}
        assert len(proc.checked) <= CHECKS
    proc.starts = dict.fromkeys(range(4 * CHECKS), 2)
    proc.groups = dict.fromkeys(range(4 * CHECKS), in_pod(OTHER))
    rounds = [a_round() for _ in range(6)]
    assert set(rounds[-1]) == {OTHER}  # all were found out, without a wait of REMEMBER_S
    assert rounds[0].count(OTHER) <= CHECKS


def test_look_ups_are_bounded_a_round_and_go_on_in_the_next() -> None:
    pods = Pods(FakeProc({pid: in_pod(UID) for pid in range(LOOK_UPS + 10)}), Clock())
    pods.begin()
    assert [pods.pod_of(pid) for pid in range(LOOK_UPS + 10)].count(None) == 10
    assert pods.left_out == 10
    pods.begin()
    assert {pods.pod_of(pid) for pid in range(LOOK_UPS + 10)} == {UID}
    assert pods.left_out == 0


def test_what_is_remembered_is_bounded_in_time_and_number() -> None:
    proc, clock = FakeProc(dict.fromkeys(range(MAX_REMEMBERED + 1), in_pod(UID))), Clock()
    pods = Pods(proc, clock)
    for pid in range(MAX_REMEMBERED + 1):
        if pid % LOOK_UPS == 0:
            pods.begin()
        assert pods.pod_of(pid) == UID
    assert len(pods._known) <= MAX_REMEMBERED
    last = MAX_REMEMBERED
    proc.groups[last] = in_pod(OTHER)  # moved, which nothing does
    clock.now_s += REMEMBER_S
    pods.begin()
    assert pods.pod_of(last) == OTHER


# Whole machines, against an oracle that knows who was put where


class Process(NamedTuple):
    pid: int
    text: str  # of its control groups
    uid: str | None  # whose it is


VERSION_1 = ("memory", "cpu,cpuacct", "devices", "pids", "blkio", "name=systemd", "freezer")
QOS = ("", "burstable", "besteffort")


def grown(chance: random.Random) -> list[Process]:
    """The processes of one machine: pods of one kubelet and runtime, and everything beside them."""
    version = chance.choice((1, 2))
    driver = chance.choice(("cgroupfs", "systemd"))
    runtime = chance.choice(("cri-containerd", "crio", "docker"))
    above, prefix = chance.choice(
        (("", ""), ("", ""), (f"/docker/{_id(chance)}/kubelet", "kubelet-"), ("/../..", ""))
    )
    below = chance.choice(("", "", "/init", "/kubepods/pod" + _uid(chance), "/user.slice"))
    found: list[Process] = []
    pid = 1
    for _ in range(chance.randint(1, 5)):
        uid, qos = _uid(chance), chance.choice(QOS)
        if driver == "cgroupfs":
            group = f"{above}/kubepods{'/' * bool(qos)}{qos}/pod{uid}"
        else:
            root, dash = f"{prefix}kubepods", f"-{qos}" if qos else ""
            slices = f"/{root}.slice" + (f"/{root}{dash}.slice" if qos else "")
            group = f"{above}{slices}/{root}{dash}-pod{uid.replace('-', '_')}.slice"
        for _ in range(chance.randint(1, 3)):
            container = _id(chance)
            own = f"/{container}" if driver == "cgroupfs" else f"/{runtime}-{container}.scope"
            for deep in ("", below):
                pid += chance.randint(1, 9)
                found.append(Process(pid, _told(chance, version, group + own + deep), uid))
        if runtime == "crio":  # its monitor is in the pod's group, and none of its processes
            monitor = f"crio-conmon-{_id(chance)}"
            last = f"/{monitor}" if driver == "cgroupfs" else f"/{monitor}.scope"
            pid += 1
            found.append(Process(pid, _told(chance, version, group + last), None))
    for group in (
        "/",
        "/user.slice/user-1000.slice/session-3.scope",
        f"/system.slice/docker-{_id(chance)}.scope",
        f"/user.slice/pod{_uid(chance)}/{_id(chance)}",
        "/system.slice/kubelet.service",
    ):
        pid += 1
        found.append(Process(pid, _told(chance, version, group), None))
    return found


def _told(chance: random.Random, version: int, group: str) -> str:
    if version == 2:
        return f"0::{group}\n"
    names = chance.sample(VERSION_1, chance.randint(1, len(VERSION_1)))
    lines = [f"{number}:{name}:{group}" for number, name in enumerate(names, 2)]
    if chance.random() < 0.5:  # both versions at once: nothing is in the second one
        lines.insert(chance.randint(0, len(lines)), "0::/")
    if chance.random() < 0.3:  # a hierarchy that the runtime does not use
        lines.insert(0, "12:rdma:/")
    return "\n".join(lines) + "\n"


def _id(chance: random.Random) -> str:
    return f"{chance.getrandbits(256):064x}"


def _uid(chance: random.Random) -> str:
    digits = f"{chance.getrandbits(128):032x}"
    if chance.random() < 0.1:  # of a static pod
        return digits
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@pytest.mark.parametrize("seed", range(10))
def test_every_process_of_a_thousand_machines_is_put_down_to_its_pod(seed: int) -> None:
    """10,000 process trees in all. Between two looks some end, and others get their numbers."""
    chance = random.Random(seed)
    for _ in range(1000):
        there = {process.pid: process for process in grown(chance)}
        proc = FakeProc({pid: process.text for pid, process in there.items()})
        pods = Pods(proc, Clock())
        pods.begin()
        assert {pid: pods.pod_of(pid) for pid in there} == {p: there[p].uid for p in there}
        heirs = grown(chance)
        for pid, heir in zip(chance.sample(sorted(there), min(4, len(there))), heirs, strict=False):
            proc.starts[pid], proc.groups[pid] = 2, heir.text
            there[pid] = heir._replace(pid=pid)
        gone = chance.choice(sorted(there))
        del proc.groups[gone]
        pods.begin()
        expected = {pid: there[pid].uid if pid != gone else None for pid in there}
        assert {pid: pods.pod_of(pid) for pid in there} == expected
