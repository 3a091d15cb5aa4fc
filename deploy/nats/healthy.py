"""The container's health check: 0 if nats-server says that it is well.

A server that left off writing (its disk was full) begins again only when it is started
anew. Where there is room again it is ended here, and whoever runs the container starts it.
A certificate that is newer than what the server has read is read by a signal.
"""

import datetime as dt
import json
import os
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

NEEDS_RESTART = ("write error", "JetStream not enabled")
ROOM_BYTES = 16 * 1024 * 1024


def has_room(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            os.posix_fallocate(trial.fileno(), 0, ROOM_BYTES)
    except OSError:
        return False
    return True


def read_newer(url: str, certificate: str, pid: int) -> None:
    """Have the server read a certificate that was written since it read its configuration."""
    with urllib.request.urlopen(f"{url}/varz", timeout=4) as answer:
        loaded = json.load(answer)["config_load_time"]
    # Whole seconds: Python 3.11 reads no nanoseconds.
    loaded_s = dt.datetime.fromisoformat(loaded[:19] + "+00:00").timestamp()
    if Path(certificate).stat().st_mtime > loaded_s + 1:
        os.kill(pid, signal.SIGHUP)


def main(url: str, folder: str, pid: int, certificate: str = "") -> str:
    """What is amiss."""
    try:
        if certificate:
            read_newer(url, certificate, pid)
        with urllib.request.urlopen(f"{url}/healthz", timeout=4):
            return ""
    except urllib.error.HTTPError as error:
        why = error.read(64 * 1024).decode(errors="replace")
        if any(words in why for words in NEEDS_RESTART) and has_room(folder):
            os.kill(pid, signal.SIGTERM)
        return why
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]) or 0)
