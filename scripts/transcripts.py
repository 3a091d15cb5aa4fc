"""Writes the output of commands into pages, from a run: `python -m scripts.transcripts`.

A block ```` ```console ```` holds lines ``$ command``, each with its output behind it. All blocks
run in the order of PAGES and of each page, in one folder with one `berth up`. A YAML block behind a
paragraph that names a file, such as "Write the file `train.yaml`", is that file.

Times, numbers and the choice among equal clusters differ from run to run. So the pages are equal to
a run if each command prints the same words (``words``).
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
PAGES: Final = (
    "start/first-job.md",
    "users/job-file.md",
    "users/choose-gpus.md",
    "users/logs.md",
    "users/watch-jobs.md",
    "users/usage.md",
    "operators/queues.md",
    "operators/monitoring.md",
)
CONSOLE: Final = re.compile(r"^( *)```console\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
FILE: Final = re.compile(
    r"`(?P<name>[\w.-]+\.ya?ml)`[^\n`]*:?[^\n]*\n\n(?P<indent> *)```yaml\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
WIDTH: Final = 96
LIMIT_S: Final = 180.0
# What differs from run to run: clusters and GPU models of the emulated fleet, units of time.
VARIES: Final = re.compile(
    r"\b([agptv]\d\w*(-\w+)*|\d[\d.,:%-]*\w*|ms|UTC|\w*\.berth\S*)\b", re.IGNORECASE
)


# Measured use of a job's GPUs: shown only if telemetry came while it ran.
LATE: Final = re.compile(r"^(GPUs {2,}.*|nothing was measured of these jobs' GPUs)$", re.MULTILINE)
# The cluster with one GPU is busy until its cluster reports the end of the last job.
BUSY: Final = re.compile(r"^\S+ +busy: no room now *\n?", re.MULTILINE)
EMPTY_TABLE: Final = re.compile(r"^LEFT OUT +WHY *\n*\Z", re.MULTILINE)


class Step(NamedTuple):
    """One command of a page and what the page shows behind it."""

    command: str
    output: str


def files(text: str) -> dict[str, str]:
    """Return the files that a page tells its reader to write."""
    return {each["name"]: textwrap.dedent(each["text"]) for each in FILE.finditer(text)}


def steps(text: str) -> list[Step]:
    """Return the commands of a page with their outputs."""
    return [step for block in CONSOLE.finditer(text) for step in _of_block(block[2])]


def _of_block(block: str) -> Iterator[Step]:
    _, *parts = re.split(r"^\$ ", textwrap.dedent(block), flags=re.MULTILINE)
    for part in parts:
        command, _, output = part.partition("\n")
        yield Step(command, output.strip("\n"))


def words(output: str) -> set[str]:
    """Return the words of an output that a second run prints, too."""
    kept = EMPTY_TABLE.sub("", BUSY.sub("", LATE.sub("", output)))
    return set(re.findall(r"[A-Za-z]{3,}", VARIES.sub(" ", kept)))


def run(command: str, folder: Path, env: Mapping[str, str]) -> str:
    """Return what a command prints, without spaces at the ends of lines."""
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**env, "COLUMNS": str(WIDTH), "TZ": "UTC"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return "\n".join(line.rstrip() for line in done.stdout.rstrip("\n").split("\n"))


def played(text: str, folder: Path, env: Mapping[str, str]) -> list[Step]:
    """Return the page's commands with the outputs of a run. Writes the page's files first."""
    for name, content in files(text).items():
        (folder / name).write_text(content)
    return [Step(step.command, run(step.command, folder, env)) for step in steps(text)]


def rewritten(text: str, new: list[Step]) -> str:
    """Return the page with these outputs."""
    left = iter(new)

    def block(found: re.Match[str]) -> str:
        lines = ["```console"]
        for _ in _of_block(found[2]):
            step = next(left)
            lines += [f"$ {step.command}", *(step.output.split("\n") if step.output else ())]
        return textwrap.indent("\n".join([*lines, "```"]), found[1])

    return CONSOLE.sub(block, text)


@contextmanager
def up(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run `berth up` in a folder. Yields the environment of commands beside it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    log = folder / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["berth", "up"], cwd=folder, env=env, stdout=output, stderr=output
        )
    try:
        wait = f"until grep -q 'Up after' {log}; do sleep 0.1; done"
        subprocess.run(["sh", "-c", wait], timeout=LIMIT_S, check=True)
        yield env
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT_S)


def main() -> None:
    """Write the outputs of a run into all pages."""
    with tempfile.TemporaryDirectory() as scratch, up(Path(scratch)) as env:
        for name in PAGES:
            page = DOCS / name
            text = page.read_text()
            page.write_text(rewritten(text, played(text, Path(scratch), env)))


if __name__ == "__main__":
    main()
