"""`berth serve` as a process: what it says when there is nothing to serve, and what it loads."""

import json
import subprocess
import sys
from pathlib import Path

from berthmaster.services import SERVICES
from tests.support.patience import hang_s


def berth(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "berthmaster.cli.main", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=hang_s(),
    )


def test_unknown_service_is_a_usage_error() -> None:
    told = berth("serve", "skorer")
    assert told.returncode == 2
    assert "No such command 'skorer'" in told.stderr
    assert "Try 'berth serve --help' for help." in told.stderr


def test_help_of_serve_lists_the_services() -> None:
    told = berth("serve", "--help")
    assert told.returncode == 0
    assert " ".join(told.stdout.split()).endswith(f"Services: {', '.join(SERVICES)}")


def test_serving_loads_nothing_of_the_terminal() -> None:
    probe = (
        "import sys; sys.argv = ['berth', 'serve', '--help']\n"
        "from berthmaster.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'rich', 'nats', 'numpy'} & set(sys.modules)))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=hang_s()
    )
    assert told.stdout.splitlines()[-1] == "[]"


def test_a_seed_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    creds = tmp_path / "gateway.creds"
    creds.write_text("nonsense\n")
    told = berth("serve", "gateway", "--nats-creds-file", str(creds), "--http-port", "-1")
    assert told.returncode == 3
    lines = [json.loads(line) for line in told.stderr.splitlines()]
    (why,) = [line["why"] for line in lines if line["event"] == "cannot_start"]
    assert why.startswith(f"{creds} holds no credentials: right are a user's JWT and its nkey seed")
    assert "Traceback" not in told.stderr


def test_no_password_is_shown_when_nobody_is_there(tmp_path: Path) -> None:
    for flags in ([], ["--json"]):
        told = berth("top", "--once", "--server", "nats://me:hunter2@127.0.0.1:1", *flags)
        assert told.returncode == 4
        assert "nats://<hidden>@127.0.0.1:1" in told.stderr
        assert "hunter2" not in told.stdout + told.stderr
