"""What a screen of 80 columns without colour shows, as text."""

import io

from rich.console import Console, RenderableType


def screen(shown: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
