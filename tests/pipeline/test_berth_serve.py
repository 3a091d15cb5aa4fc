"""`berth serve` as a process: what it says when there is nothing to serve, and what it loads."""

import subprocess
import sys

LIST = "{gateway,resolver,scorer,archivist,telemetry,emulator}"


def berth(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "berthmaster.cli.main", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_a_service_that_does_not_exist_is_told_with_those_that_do() -> None:
    told = berth("serve", "skorer")
    assert told.returncode == 2
    assert told.stderr.splitlines() == [
        "no service 'skorer'",
        f"usage: berth serve {LIST} [--help | flags]",
    ]


def test_help_of_serve_lists_the_services() -> None:
    told = berth("serve", "--help")
    assert (told.returncode, told.stdout) == (0, f"usage: berth serve {LIST} [--help | flags]\n")


def test_serving_loads_nothing_of_the_terminal() -> None:
    probe = (
        "import sys; sys.argv = ['berth', 'serve', '--help']\n"
        "from berthmaster.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'click', 'rich', 'nats', 'numpy'} & set(sys.modules)))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=30
    )
    assert told.stdout.splitlines()[-1] == "[]"
