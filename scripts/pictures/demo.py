"""docs/images/demo.svg: one moment of `berth demo`, as it stands on the screen.

python -m scripts.pictures.demo
"""

import asyncio
import io
import re
import time
from pathlib import Path

from rich.console import Console

from berthmaster.cli.demo import screen as progress
from berthmaster.cli.demo.commands import DemoRun
from berthmaster.cli.session import Output
from berthmaster.lib.supervisor.plan import UpOptions
from berthmaster.lib.supervisor.stack import Stack, ephemeral_folder

AT_S = 14.0
DURATION_S = 24.0
JOBS = 520
WIDTH = 100
TARGET = Path(__file__).parents[2] / "docs" / "images" / "demo.svg"
_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # fetched from elsewhere: readers have one


class Photographer(DemoRun):
    """Plays the demo and keeps one frame of it."""

    picture = ""

    async def _show(self, began_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + AT_S - time.monotonic()))
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        left_s = DURATION_S - AT_S
        console.print(
            progress.live(
                self._fleet.rows(0),
                self._stats.summary(),
                self._placements()[-8:],
                head=f"Berthmaster demo: {left_s:.0f} s to go, Ctrl-C ends it",
                held=self._stats.held_by_cluster(),
                width=WIDTH,
                ascii_only=False,
            )
        )
        svg = console.export_svg(title="scripts/demo", unique_id="demo")
        self.picture = _FONT.sub("", svg)
        await asyncio.sleep(DURATION_S)


async def _play(folder: Path) -> str:
    options = UpOptions(folder=folder, nodes=64, speed=60.0, sync="default")
    began_s = time.monotonic()
    async with Stack(options, announce=False) as stack:
        output = Output(as_json=True)
        demo_run = Photographer(stack, output, DURATION_S, JOBS, began_s, live=True)
        await demo_run.play(asyncio.Event())
        return demo_run.picture


def main() -> None:
    """Take the picture."""
    with ephemeral_folder() as folder:
        TARGET.write_text(asyncio.run(_play(Path(folder))))


if __name__ == "__main__":
    main()
