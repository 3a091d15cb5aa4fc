"""What a hub lacks, and what of that a check of a Placement may be told."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from berthmaster.hub.admission.core.index import NOT_SERVED
from berthmaster.hub.admission.watch import HubWatch, watched
from berthmaster.lib.kube.controller.aside import SetAside
from berthmaster.lib.kube.resources import PLACEMENTS
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings, load
from tests.support.patience import until
from tests.unit.lib.kube.stage import Stage


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is asked often and believed soon."""
    monkeypatch.setattr("berthmaster.hub.admission.watch.SURE_S", 0.1)


@asynccontextmanager
async def mirroring(stage: Stage) -> AsyncIterator[tuple[HubWatch, Health]]:
    settings = load(CommonSettings, "admission")
    log, health = Log("admission", stream=io.BytesIO()), Health()
    ctx = Context("admission", settings, log=log, metrics=Metrics("admission"), health=health)
    async with await stage.client() as client:
        mirrors = HubWatch(
            ctx,
            client,
            watched("kueue-system"),
            SetAside(),
            on_object=lambda *_: None,
            absent_s=0.02,
            sure_s=0.1,
        )
        mirrors.start()
        try:
            yield mirrors, health
        finally:
            ctx.stopping.set()
            await asyncio.gather(*ctx.tasks)


def parts_of(health: Health) -> dict[str, Any]:
    parts: Any = health.readiness()[1]["parts"]
    return {name.removeprefix("mirror of "): part["ok"] for name, part in parts.items()}


@pytest.mark.parametrize("allowed", [True, False])
def test_placements_may_be_lacking_and_kueues_kinds_may_not(allowed: bool) -> None:
    async def story() -> None:
        async with Stage() as stage:  # which serves nothing of what is looked for
            stage.allowed = allowed
            async with mirroring(stage) as (mirrors, health):
                assert (mirrors.absent, mirrors.complete) == ("", False)
                await until(lambda: len(mirrors.lacking) == 2)
                assert mirrors.lacking == ["placements", "placementdecisions"]
                told = NOT_SERVED if allowed else "cannot be read: not allowed: "
                assert mirrors.absent.startswith(told)
                assert mirrors.unreadable(PLACEMENTS.plural) == {}

                # Nothing can be done there, and people see that and why.
                assert not mirrors.complete
                assert mirrors.trouble.endswith(
                    "admissionchecks of kueue.x-k8s.io/v1beta2 are not served here"
                    if allowed
                    else "(admissionchecks)"
                )
                mirrors.show()
                assert parts_of(health) == {
                    "admissionchecks": False,
                    "multikueueconfigs": False,
                    "multikueueclusters": False,
                    "workloads": False,
                    "placements": True,
                    "placementdecisions": True,
                }

    asyncio.run(story())
