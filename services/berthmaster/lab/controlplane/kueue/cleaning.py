"""Cleanup of a plane, despite finalizers and a slow API server."""

from __future__ import annotations

import contextlib
import http
from collections.abc import Callable

from berthmaster.lab.controlplane.api import Api, ApiError
from berthmaster.lab.controlplane.patience import wait_until


def patiently(work: Callable[[], None]) -> None:
    """Retry, because a restarted API server rejects some requests for seconds (429)."""

    def done() -> bool:
        try:
            work()
        except ApiError as error:
            if error.status not in (
                http.HTTPStatus.TOO_MANY_REQUESTS,
                http.HTTPStatus.SERVICE_UNAVAILABLE,
            ):
                raise
            return False
        return True

    wait_until(done, "an API server that answers", poll_s=0.2)


def remove_all(api: Api, path: str, prefix: str) -> None:
    """Delete every object with this prefix, and its finalizers, because no manager is left for
    them."""
    for each in api.items(path):
        name = each["metadata"]["name"]
        if not name.startswith(prefix):
            continue
        with contextlib.suppress(ApiError):  # already deleted
            api.delete(f"{path}/{name}")
        with contextlib.suppress(ApiError):
            api.merge(f"{path}/{name}", {"metadata": {"finalizers": None}})
