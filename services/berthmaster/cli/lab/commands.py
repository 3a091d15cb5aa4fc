"""`berth lab [start] | show | stop`: a hub and three workers with Kueue on this machine.

    berth lab && berth tour gpus && berth tour labels

`start` compiles missing programs, starts a supervisor that owns all processes, and returns once
every worker has a score. With `--foreground` the lab ends with the command.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from berthmaster.cli.output.errors import complain
from berthmaster.cli.session import EXIT_ABSENT, EXIT_FAILED, DefaultGroup, Output
from berthmaster.lab.sandbox.state import (
    LabRuns,
    LabState,
    clear,
    is_held,
    lab_folder,
    running,
)
from berthmaster.lib.runtime.process_setup import end_with_parent

if TYPE_CHECKING:
    from berthmaster.cli.lab.progress import Progress

STOP_LIMIT_S: Final = 30.0
SUPERVISE_LOG: Final = "supervise.log"
_POLL_S: Final = 0.05

_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder of the lab; else berth/lab in the user's state folder.",
)


class NotUp(Exception):
    """The lab did not start. The text says why."""


@click.group(cls=DefaultGroup)
def lab() -> None:
    """Run a hub and three workers with the real Kueue on this machine."""


@lab.command()
@_folder
@click.option("--foreground", is_flag=True, help="Keep the command; Ctrl-C stops the lab.")
@_json
def start(folder: Path | None, foreground: bool, as_json: bool) -> None:
    """Build missing programs, start the lab, and print its kubeconfig."""
    from berthmaster.cli.lab.progress import Progress

    folder = (folder or lab_folder(os.environ)).absolute()
    output = Output(as_json=as_json)
    if (state := running(folder)) is not None:
        _show(output, state)
        return
    try:
        with Progress() as progress:
            _build(progress)
            supervisor = _launch(folder, foreground)
            try:
                state = _follow(supervisor, progress)
            except BaseException:
                _end(supervisor, folder)
                raise
    except LabRuns as error:
        complain(f"{error}; wait for it, or `berth lab stop`")
        sys.exit(EXIT_FAILED)
    except NotUp as error:
        complain(str(error))
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        complain("stopped; nothing is left running")
        sys.exit(128 + signal.SIGINT)
    _show(output, state)
    if foreground:
        _stay(supervisor, folder)


def _build(progress: "Progress") -> None:
    """Compile missing programs. Raises NotUp."""
    try:
        from berthmaster.lab.controlplane.build import build
        from berthmaster.lab.controlplane.compiling import BuildFailed, Unavailable
    except ModuleNotFoundError as error:
        complain(f"{error.name} is not installed; pip install 'berthmaster[all]'")
        sys.exit(EXIT_ABSENT)
    try:
        build(tell=progress.compiling)
    except (BuildFailed, Unavailable, ValueError) as error:
        raise NotUp(str(error)) from error


def _launch(folder: Path, foreground: bool) -> "subprocess.Popen[bytes]":
    """Start the supervisor. Until the lab is up, the kernel ends it with this process."""
    clear(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    argv = [sys.executable, "-m", "berthmaster.lab.sandbox.supervise", str(folder)]
    with (folder / SUPERVISE_LOG).open("wb") as log:
        return subprocess.Popen(
            [*argv, *(["--foreground"] if foreground else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # a closed terminal does not end the lab
            preexec_fn=end_with_parent(),  # noqa: PLW1509 # takes no lock
        )


def _follow(supervisor: "subprocess.Popen[bytes]", progress: "Progress") -> LabState:
    """Show each step until the lab is up. Raises NotUp."""
    assert supervisor.stdout is not None
    for line in supervisor.stdout:
        said: dict[str, Any] = msgspec.json.decode(line)
        if "ready" in said:
            return msgspec.convert(said["ready"], LabState)
        if "error" in said:
            raise NotUp(str(said["error"]))
        progress.step(str(said["step"]), int(said["done"]), int(said["of"]))
    raise NotUp(f"the supervisor ended with {supervisor.wait()}")


def _end(supervisor: "subprocess.Popen[bytes]", folder: Path) -> None:
    """End a supervisor of this command, and remove its folder's content."""
    supervisor.kill()
    supervisor.wait()
    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the content. Killed processes may still write for a moment."""
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while clear(folder) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _stay(supervisor: "subprocess.Popen[bytes]", folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = supervisor.wait()
        complain(f"the supervisor ended with {code}")
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        pass
    finally:
        _end(supervisor, folder)


@lab.command()
@_folder
@_json
def show(folder: Path | None, as_json: bool) -> None:
    """Print the kubeconfig and the addresses of the running lab."""
    folder = (folder or lab_folder(os.environ)).absolute()
    if (state := running(folder)) is None:
        complain(f"no lab runs in {folder}; `berth lab` starts one")
        sys.exit(EXIT_FAILED)
    _show(Output(as_json=as_json), state)


@lab.command()
@_folder
@_json
def stop(folder: Path | None, as_json: bool) -> None:
    """End all processes of the lab and remove its data; compiled programs stay."""
    folder = (folder or lab_folder(os.environ)).absolute()
    state = running(folder)
    if state is not None:
        os.kill(state.pid, signal.SIGKILL)
    elif is_held(folder):
        complain(f"a lab starts in {folder} now: end it with Ctrl-C where it was started")
        sys.exit(EXIT_FAILED)
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while is_held(folder) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    _remove(folder)
    text = "The lab has ended." if state else f"No lab ran in {folder}."
    Output(as_json=as_json).document({"ended": state is not None}, lambda: text)


def _show(output: Output, state: LabState) -> None:
    from berthmaster.cli.lab.screen import screen

    output.document(state, lambda: screen(state))
