"""kill -9 at each step: no orphan and no gap; two replicas: one acts."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.credentialing import Rig, calling
from tests.support.patience import hang_s


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(planes, namespace, tmp_path)
    yield made
    made.clean()


def said(rig: Rig, line: str, since: int) -> bool:
    """Whether a line stands in the log behind what was there."""
    return line in rig.log.read_text()[since:]


def test_killed_after_each_step_of_making_and_renewing_it_leaves_one_token(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    door = worker.proxy(delay_s=0.05)  # so that the next step is in the middle of its calls
    rig.bootstrap(east, worker, via=door)
    rig.profile(east)
    for step in ("lease gained", "step=Prepare", "step=Mint", "step=Publish", "step=Register"):
        since = len(rig.log.read_text()) if rig.log.exists() else 0
        rig.start("--renew-after-s", "5")
        # What a life before has reached is not done again: then the next renewal's step will do.
        rig.until(lambda: said(rig, step, since) or rig.held(east), step)  # noqa: B023
        rig.kill()
    rig.start("--renew-after-s", "5")
    rig.until(lambda: rig.held(east), "access is there")
    with calling(rig, east, worker) as caller:
        for step in ("step=Mint", "step=Publish", "step=Sweep"):
            since = len(rig.log.read_text())
            rig.until(lambda: said(rig, step, since), step)  # noqa: B023
            rig.kill()
            rig.start("--renew-after-s", "5")
        rig.until(lambda: len(caller.serials) >= 4, "it goes on")
    assert caller.failures == []
    rig.kill()

    # A last life that renews nothing: it sweeps what the others left.
    rig.start()
    rig.until(lambda: rig.bound(worker) == [rig.serial(east)], "one token is left, the one in use")


def test_killed_in_the_middle_of_removal_it_finishes_in_the_next_life(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    door = worker.proxy()
    for number, step in enumerate(("told", "step=Unregister", "step=Revoke")):
        east = rig.cluster(f"east{number}")
        rig.bootstrap(east, worker, via=door)
        rig.profile(east)
        rig.start()
        rig.until(lambda: rig.held(east), "access is there")  # noqa: B023
        since = len(rig.log.read_text())
        door.delay_s = 0.1
        rig.forget(east)
        if step == "told":
            time.sleep(0.05)
        else:
            rig.until(lambda: said(rig, step, since), step)  # noqa: B023
        rig.kill()
        door.delay_s = 0.0
        rig.start()
        rig.until(
            lambda: rig.secret(east) is None and rig.registered(east) is None,  # noqa: B023
            "the hub is clean",
        )
        rig.until(lambda: rig.left(worker) == [], "the worker is clean")
        rig.kill()


def test_removed_while_nobody_was_there_it_is_revoked_by_the_next_life(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.bootstrap(east, worker)
    rig.profile(east)
    since = 0
    rig.start()
    rig.until(lambda: said(rig, "step=Mint", since), "minted and perhaps not yet published")
    rig.kill()
    rig.forget(east)
    rig.start()
    rig.until(lambda: rig.left(worker) == [], "nothing is left")
    rig.until(lambda: rig.secret(east) is None and rig.registered(east) is None, "nor on the hub")


def test_killed_at_random_while_it_renews_nobody_is_ever_refused(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.bootstrap(east, worker)
    rig.profile(east)
    rig.start("--renew-after-s", "3")
    rig.until(lambda: rig.held(east), "access is there")
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with calling(rig, east, worker) as caller:
        for _ in range(6):
            time.sleep(chance.uniform(0.5, 4.5))
            rig.kill()
            rig.start("--renew-after-s", "3")
        before = len(caller.serials)
        rig.until(lambda: len(caller.serials) > before, "it renews on")
    assert caller.failures == []
    rig.kill()
    rig.start()
    rig.until(lambda: rig.bound(worker) == [rig.serial(east)], "no orphan")


def test_stopped_in_the_middle_of_a_step_it_ends_well_and_the_next_life_goes_on(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    door = worker.proxy(delay_s=1.5)  # a step of several calls takes longer than an end may
    rig.bootstrap(east, worker, via=door)
    rig.profile(east)
    rig.start()
    rig.until(lambda: said(rig, "lease gained", 0), "it acts")
    time.sleep(2)
    assert rig.stop() == 0, rig.words()
    assert "died" not in rig.words()
    door.delay_s = 0.0
    rig.start()
    rig.until(lambda: rig.held(east), "access is there")
    rig.until(lambda: rig.bound(worker) == [rig.serial(east)], "one token")


def test_a_second_replica_stands_by_and_takes_over(rig: Rig) -> None:
    worker = rig.planes.workers[0]
    east = rig.cluster("east")
    rig.bootstrap(east, worker)
    rig.profile(east)
    rig.start("--renew-after-s", "4")
    rig.until(lambda: rig.held(east), "access is there")
    first, port = rig.process, rig.port
    rig.port = 0
    rig.start("--renew-after-s", "4")
    with calling(rig, east, worker) as caller:
        rig.until(lambda: len(caller.serials) >= 2, "renewed with two of them")
        assert rig.log.read_text().count("lease gained") == 1
        assert first is not None
        first.terminate()
        assert first.wait(hang_s()) == 0
        rig.until(lambda: rig.log.read_text().count("lease gained") == 2, "the second leads")
        before = len(caller.serials)
        rig.until(lambda: len(caller.serials) > before, "and renews")
    assert caller.failures == []
    rig.port = port
