"""A stand-in for nvidia-cuda-mps-control: a daemon with ``-f``, else one command on standard input.

Only what `berth serve shares` uses: where the pipes are, who answers there, and that a daemon ends
by SIGTERM. It holds nobody to anything.
"""

import os
import socket
import stat
import sys
from pathlib import Path


def install(folder: Path) -> None:
    """Make it a program of its real name in a folder for PATH."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def _daemon(control: Path) -> None:
    (control.parent / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(control))
        listening.listen()
        while True:
            asking, _ = listening.accept()
            with asking:
                asking.recv(1024)
                asking.sendall(b"100.0\n")


def _ask(control: Path) -> int:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(control))
        except OSError:
            print("Cannot find MPS control daemon process")
            return 1
        asking.sendall(sys.stdin.buffer.read())
        print(asking.recv(1024).decode(), end="")
    return 0


if __name__ == "__main__":
    place = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control"
    if sys.argv[1:] == ["-f"]:
        _daemon(place)
    sys.exit(_ask(place))
