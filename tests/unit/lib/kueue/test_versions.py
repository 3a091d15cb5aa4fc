"""What Kueue's versions know, as far as the doctor says."""

import pytest

from berthmaster.lib.kueue.versions import ENDED_JOBS, WORKER_CLIENTS, Version


@pytest.mark.parametrize(
    ("version", "known", "on"),
    [
        ((0, 17, 9), False, False),
        ((0, 18, 7), False, False),
        ((0, 18, 8), True, False),
        ((0, 19, 3), False, False),
        ((0, 19, 4), True, False),
        ((0, 20, 0), True, True),
        ((1, 0, 0), True, True),
    ],
)
def test_gate_is_known_from_each_minors_patch_on(version: Version, known: bool, on: bool) -> None:
    assert (WORKER_CLIENTS.known(version), WORKER_CLIENTS.on(version, {})) == (known, on)
    assert WORKER_CLIENTS.on(version, {WORKER_CLIENTS.name: True}) is known
    assert not WORKER_CLIENTS.on(version, {WORKER_CLIENTS.name: False})


def test_since_lists_the_first_versions() -> None:
    assert ENDED_JOBS.since == "0.18.7, 0.19.3 and 0.20"
