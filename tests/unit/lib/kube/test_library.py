"""kubernetes_asyncio is there in parts: what services use of it, and the rest for whoever asks."""

import subprocess
import sys

from tests.support.patience import hang_s

STORY = """
import sys
from berthmaster.lib.kube import client, loader, plugin, config
kinds = [m for m in sys.modules if m.startswith("kubernetes_asyncio.client.models.")]
apis = [m for m in sys.modules if m.startswith("kubernetes_asyncio.client.api.")]
assert (kinds, apis) == ([], []), (len(kinds), len(apis))

from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.client.configuration import Configuration as same
assert Configuration is same and ApiClient.__name__ == "ApiClient"
assert "kubernetes_asyncio.client.models.v1_pod" not in sys.modules

import kubernetes_asyncio
meta = kubernetes_asyncio.client.models.V1ObjectMeta(name="a")
pod = kubernetes_asyncio.client.V1Pod(metadata=meta)
assert pod.metadata.name == "a"
assert kubernetes_asyncio.client.Configuration is same
assert kubernetes_asyncio.watch.Watch.__name__ == "Watch"
try:
    kubernetes_asyncio.client.Nothing
except AttributeError as error:
    assert "Nothing" in str(error)
else:
    raise AssertionError("a name that nobody has was had")
"""


def test_classes_of_kinds_are_there_for_who_asks_and_cost_nobody_else() -> None:
    """In a process of its own, since this one may have had them long ago."""
    command = [sys.executable, "-W", "error", "-c", STORY]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=hang_s())
    assert (done.returncode, done.stderr) == (0, "")
