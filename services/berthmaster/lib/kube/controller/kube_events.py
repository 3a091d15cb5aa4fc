"""Kubernetes Events of a core, logged and queued for the API server."""

import os
import socket
from typing import Any

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.events import EventKind, Recorder, Subject
from berthmaster.lib.runtime.service import Context

MAX_INSTANCE_CHARS = 128


def instance_of(service: str) -> str:
    """Return a replica's name for Events and leases."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}"[:MAX_INSTANCE_CHARS]


class KubeEvents:
    def __init__(
        self, ctx: Context[Any], client: Client, controller: str, *, quiet: bool = False
    ) -> None:
        """``controller``: name after ``berthmaster.io/``. ``quiet``: only log, if read-only."""
        self._ctx = ctx
        self._quiet = quiet
        self._recorder = Recorder(
            client,
            controller=f"berthmaster.io/{controller}",
            instance=instance_of(controller),
            log=ctx.log,
            now=ctx.now,
        )

    @property
    def dropped(self) -> int:
        return self._recorder.dropped

    def start(self) -> None:
        """Write published Events until the service stops, then the rest."""
        self._ctx.spawn(self._recorder.run(self._ctx.stopping), name="events for people")

    def publish(self, event: KubeEvent) -> None:
        """Log and queue an Event, and return at once."""
        about = Subject(event.resource, event.metadata)
        kind: EventKind = "Warning" if event.warning else "Normal"
        if not self._quiet:
            self._recorder.tell(about, kind, event.reason, event.note)
        name, namespace = event.metadata.name, event.metadata.namespace
        self._ctx.log.info(
            "kubernetes event queued",
            kind=kind,
            about=f"{event.resource.kind} {namespace}/{name}"
            if namespace
            else f"{event.resource.kind} {name}",
            reason=event.reason,
            note=event.note,
        )
