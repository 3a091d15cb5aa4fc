"""Read the ConfigMaps named by Berthmaster's AdmissionChecks: a selector of clusters, or the error.

The last result stays valid while the API server does not answer, or has just started without the
service's rights. Neither says anything about the ConfigMap.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from berthmaster.hub.multikueue.core.deciding.checks import SELECTOR_KEY, parameters_of
from berthmaster.hub.multikueue.core.known.hub import Hub
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.denials import Denials
from berthmaster.lib.kube.errors import NO_ANSWER, Forbidden, KubernetesError, NotFound
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import CONFIG_MAPS
from berthmaster.lib.kube.selector import Selector, SelectorError, parse_selector
from berthmaster.lib.kueue.multikueue import AdmissionCheck

EVERY_S: Final = 5.0


class ConfigMap(Object, frozen=True):
    """Texts under keys."""

    data: dict[str, str] | None = None


class Parameters:
    """Polls the ConfigMaps: a request per check, and none without checks."""

    def __init__(
        self,
        client: Client,
        hub: Hub,
        namespace: str,
        found: Callable[[str, Selector | str], None],
    ) -> None:
        self._client = client
        self._hub = hub
        self._namespace = namespace
        self._found = found
        self._denials = Denials()
        self._last: dict[str, Selector] = {}  # by ConfigMap

    async def run(self) -> None:
        known: dict[str, AdmissionCheck] = {}
        due_s = 0.0
        now = asyncio.get_running_loop().time
        while True:
            checks = {
                name: check for name, check in self._hub.checks.items() if check.for_dispatcher
            }
            specs = {name: check.spec for name, check in checks.items()}
            if now() >= due_s or specs != {name: check.spec for name, check in known.items()}:
                due_s = now() + EVERY_S
                known = checks
                for name, check in sorted(checks.items()):
                    self._found(name, await self._read(check))
            await asyncio.sleep(0.2)

    async def _read(self, check: AdmissionCheck) -> Selector | str:
        name, wrong = parameters_of(check)
        if wrong:
            return wrong
        path = CONFIG_MAPS.path(namespace=self._namespace, name=name)
        where = f"ConfigMap {self._namespace}/{name}"
        try:
            found = await self._client.get(path, ConfigMap)
        except NotFound:
            return f"{where} does not exist"
        except KubernetesError as error:
            if name in self._last and self._passes(name, error):
                return self._last[name]
            return f"{where} cannot be read: {error}"
        self._denials.allowed(name)
        text = (found.data or {}).get(SELECTOR_KEY)
        if text is None:
            return f"{where} has no key {SELECTOR_KEY}"
        try:
            self._last[name] = parse_selector(text)
        except SelectorError as error:
            return f"{where}: {error}"
        return self._last[name]

    def _passes(self, name: str, error: KubernetesError) -> bool:
        """Return whether a retry soon may succeed."""
        if isinstance(error, Forbidden):
            now_s = asyncio.get_running_loop().time()
            return self._denials.pause_s(name, error, now_s) is not None
        return isinstance(error, NO_ANSWER)
