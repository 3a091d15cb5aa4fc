"""Notices at the end of `berth wait`: a command, or a POST of JSON to a URL.

Both run where `berth wait` runs, with its rights. With a key the body is signed, so that the
receiver can verify the sender.
"""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from berthmaster.lib.runtime.webhook import RETRIED, headers_of

TRIES: Final = 4
TRY_LIMIT_S: Final = 10.0
PAUSE_S: Final = 1.0  # seconds, doubled with each try


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one workload at the end of the wait."""

    tenant: str
    id: str
    state: str
    cluster: str = ""
    reason: str = ""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    outcome: str  # "ok", "failed" or "too_late"
    text: str  # one line for users, shown by chat services
    workloads: tuple[Ending, ...]


class NotSent(Exception):
    """The notice was not accepted. The text gives the reason."""


def notice_of(endings: Sequence[Ending], outcome: str) -> Notice:
    """Return the notice with a text and all workloads."""
    names = ", ".join(f"{one.id} {one.state}" for one in endings[:5])
    more = f" and {len(endings) - 5} more" if len(endings) > 5 else ""
    return Notice(outcome=outcome, text=f"{names}{more}", workloads=tuple(endings))


def url_fault(url: str) -> str:
    """Return why the URL is unusable, or ""."""
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        right = False
    return "" if right else "right is an address such as https://hooks.example/berth"


def run_command(command: str, notice: Notice) -> int:
    """Run the command in a shell with the notice on standard input, and return its exit code."""
    variables = {
        "BERTH_OUTCOME": notice.outcome,
        "BERTH_WORKLOADS": " ".join(one.id for one in notice.workloads),
        "BERTH_STATES": " ".join(one.state for one in notice.workloads),
    }
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        check=False,
        input=msgspec.json.encode(notice),
        env={**os.environ, **variables},
    )
    return done.returncode


def post(
    url: str, notice: Notice, key: bytes = b"", *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Send the notice, with a few retries. Raises NotSent."""
    body = msgspec.json.encode(notice)
    opener = urllib.request.build_opener(_NoRedirect)
    why = ""
    for number in range(TRIES):
        if number:
            sleep(PAUSE_S * 2 ** (number - 1))
        request = urllib.request.Request(
            url, data=body, headers=dict(headers_of(body, key)), method="POST"
        )
        try:
            with opener.open(request, timeout=TRY_LIMIT_S):
                return
        except urllib.error.HTTPError as error:
            why = f"it answers {error.code}"
            error.close()
            if error.code not in RETRIED:
                break
        except (OSError, ValueError) as error:
            why = str(getattr(error, "reason", error))
    raise NotSent(why)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: a notice signed for one receiver goes to no other."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None
