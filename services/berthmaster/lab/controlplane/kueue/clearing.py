"""`berth serve clearing` beside a hub's API server, as the chart has it before Kubernetes 1.36.

clearing = Clearing(planes.hub, spec)   # spec of the policy in deploy/chart/nominations.yaml
clearing.start(); clearing.kill(); clearing.start()
"""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import sys
from collections.abc import Mapping
from typing import Any

from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lib.kueue.names import CLEARING_CONFIGURATION, CLEARING_WEBHOOK
from berthmaster.lib.runtime.ports import PortClaims

PATH = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + CLEARING_CONFIGURATION
)


class Clearing:
    """The webhook's process and its configuration, with one port over restarts."""

    def __init__(self, hub: Plane, policy: Mapping[str, Any]) -> None:
        self._hub, self._policy = hub, policy
        self._claims = PortClaims()
        (self._port,) = self._claims.choose(1)
        folder = hub.folder / "clearing"
        self._authority = Authority(folder, "clearing")
        self._authority.serving("tls")
        flags = [f"--certificate-dir={folder}", f"--port={self._port}", "--http-port=-1"]
        argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", "clearing", *flags]
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder)}
        self._process = Process("clearing", argv, folder / "clearing.log", environment)

    def start(self) -> None:
        """Start the webhook, wait until it answers, and have the API server ask it."""
        if not self._process.running:
            self._process.launch()
        self._process.wait_ready(self._answers)
        self._hub.api.apply(self._configuration())

    def kill(self) -> None:
        """Kill the webhook with SIGKILL. The API server still asks it."""
        self._process.kill()

    def remove(self) -> None:
        """Delete the configuration, if it exists, and kill the webhook."""
        with contextlib.suppress(ApiError):
            self._hub.api.delete(PATH)
        self.kill()

    def _answers(self) -> bool:
        try:
            ssl.get_server_certificate((LOOPBACK, self._port), timeout=5)
        except OSError:
            return False
        return True

    def _configuration(self) -> dict[str, Any]:
        client = {
            "url": f"https://{LOOPBACK}:{self._port}/clear",
            "caBundle": base64.b64encode(self._authority.certificate_pem).decode(),
        }
        hook = {
            "name": CLEARING_WEBHOOK,
            "clientConfig": client,
            "rules": self._policy["matchConstraints"]["resourceRules"],
            "matchConditions": self._policy["matchConditions"],
            "failurePolicy": self._policy["failurePolicy"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": CLEARING_CONFIGURATION},
            "webhooks": [hook],
        }
