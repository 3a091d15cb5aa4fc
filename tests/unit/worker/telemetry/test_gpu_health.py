import pytest

from berthmaster.worker.telemetry.core.gpu_health import (
    RECOVERY,
    XID_SETTLES_S,
    Signs,
    throttle_names,
    verdict,
)
from berthmaster.worker.telemetry.core.xid import XIDS, Severity, look_up

VERDICTS = {
    "no sign at all": (Signs(), ("ok", "")),
    "everything measured and in order": (
        Signs(
            ecc_uncorrected=0,
            retirement_failed=False,
            retirement_pending=False,
            recovery_action=0,
            throttle_reasons=("gpu_idle", "sw_power_cap", "sw_thermal_slowdown"),
        ),
        ("ok", ""),
    ),
    "a program's own fault": (Signs(xid=31), ("ok", "")),
    "a double-bit error": (Signs(xid=48), ("degraded", "XID 48: double-bit memory error")),
    "a GPU off the bus, whatever its driver asks for": (
        Signs(xid=79, recovery_action=2, ecc_uncorrected=2),
        ("lost", "XID 79: the GPU has fallen off the bus"),
    ),
    "an XID that nobody knows": (
        Signs(xid=9001),
        ("degraded", "XID 9001: not known to this agent"),
    ),
    "errors that ECC did not correct": (
        Signs(ecc_uncorrected=2),
        ("degraded", "2 uncorrected memory errors"),
    ),
    "rows that wait for a reset": (
        Signs(retirement_pending=True),
        ("degraded", "memory waits to be retired: the GPU needs a reset"),
    ),
    "rows that could not be remapped, which is worse than waiting": (
        Signs(retirement_pending=True, retirement_failed=True),
        ("degraded", "memory rows could not be remapped: the GPU needs replacing"),
    ),
    "a driver that asks for a reset, whatever else": (
        Signs(recovery_action=1, xid=48, ecc_uncorrected=2),
        ("degraded", "the driver asks for a reset of the GPU"),
    ),
    "an action of a newer driver": (
        Signs(recovery_action=42),
        ("degraded", "the driver asks for recovery action 42"),
    ),
    "a GPU without a name": (Signs(named=False), ("degraded", "its source reports no UUID of it")),
    "heat": (
        Signs(throttle_reasons=("hw_slowdown", "hw_thermal_slowdown")),
        ("degraded", "slowed down by heat"),
    ),
    "a power supply that gives too little": (
        Signs(throttle_reasons=("hw_slowdown", "hw_power_brake")),
        ("degraded", "slowed down by the power supply"),
    ),
}


@pytest.mark.parametrize(("signs", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_on(signs: Signs, expected: tuple[str, str]) -> None:
    assert verdict(signs, now_s=0.0) == expected


def test_an_xid_is_forgiven_when_the_driver_asks_for_nothing_for_a_while() -> None:
    content = Signs(xid=94, xid_at_s=1000.0, recovery_action=0)
    assert verdict(content, now_s=1000.0 + XID_SETTLES_S)[0] == "degraded"
    assert verdict(content, now_s=1001.0 + XID_SETTLES_S) == ("ok", "")


def test_an_xid_is_never_forgiven_where_the_driver_cannot_say_what_it_needs() -> None:
    mute = Signs(xid=94, xid_at_s=1000.0, recovery_action=None)
    assert verdict(mute, now_s=1e9)[0] == "degraded"


def test_throttle_reasons_have_names_and_unknown_bits_keep_their_number() -> None:
    assert throttle_names(0) == ()
    assert throttle_names(0x1) == ("gpu_idle",)
    assert throttle_names(0x48 | 1 << 40) == ("hw_slowdown", "hw_thermal_slowdown", "0x10000000000")


def test_what_kubernetes_device_plugins_pass_over_is_passed_over_here() -> None:
    # The device plugin's own list of XIDs that say nothing about the device.
    assert {look_up(number).severity for number in (13, 31, 43, 45, 68, 109)} == {Severity.PASSING}


def test_every_xid_has_a_meaning_of_one_line() -> None:
    assert all(entry.meaning and entry.meaning.isprintable() for entry in XIDS.values())
    assert sorted(RECOVERY) == list(range(1, 8))
