"""A run's curves as one SVG file: GPUs in use over time, one line per policy.

Below are bars of the mean completion and the 99th percentile of waiting. The file has only plain
shapes and text, so that any browser and any documentation page shows it.
"""

from collections.abc import Sequence
from html import escape
from typing import Final

from berthmaster.lab.simulate.figures import RunSummary

WIDTH: Final = 960
CURVE_HEIGHT: Final = 280
LEFT: Final = 130
RIGHT: Final = 20
TOP: Final = 46
BAR_HEIGHT: Final = 18
BAR_GAP: Final = 8
COLOURS: Final = (
    "#0b6e99", "#d1495b", "#edae49", "#66a182", "#5c5470", "#2e4057", "#8d96a3", "#a44a3f",
    "#3c91e6", "#9fd356", "#fa824c",
)  # fmt: skip
_UNITS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def span_text(seconds: float) -> str:
    """Return a duration as text for users."""
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def draw(summaries: Sequence[RunSummary], gpus: float, title: str) -> str:
    bars_top = TOP + CURVE_HEIGHT + 70
    row = BAR_HEIGHT + BAR_GAP
    height = bars_top + 2 * (row * len(summaries) + 50)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="13" fill="#222">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(LEFT, 22, title, size=16),
        *_curves(summaries, gpus),
        *_bars(summaries, bars_top, "Mean completion", [s.completion.mean_s for s in summaries]),
        *_bars(
            summaries,
            bars_top + row * len(summaries) + 50,
            "99th percentile of waiting",
            [s.wait.p99_s for s in summaries],
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, *, size: int = 13, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {where}>{escape(text)}</text>"


def _curves(summaries: Sequence[RunSummary], gpus: float) -> list[str]:
    bottom = TOP + CURVE_HEIGHT
    inner = WIDTH - LEFT - RIGHT
    last_s = max((at_s for s in summaries for at_s, _ in s.curve), default=0.0) or 1.0
    most = max(gpus, 1.0)
    parts = [
        f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>',
        _text(LEFT - 8, TOP + 5, f"{gpus:g} GPUs", anchor="end"),
        _text(LEFT - 8, bottom, "0", anchor="end"),
        _text(WIDTH - RIGHT, bottom + 18, span_text(last_s), anchor="end"),
        _text(LEFT, bottom + 18, "GPUs in use over time"),
    ]
    for number, summary in enumerate(summaries):
        points = " ".join(
            f"{LEFT + inner * at_s / last_s:.1f},{bottom - CURVE_HEIGHT * used / most:.1f}"
            for at_s, used in summary.curve
        )
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5">'
            f"<title>{escape(summary.policy)}</title></polyline>"
        )
    return parts


def _bars(
    summaries: Sequence[RunSummary], top: float, title: str, values: Sequence[float]
) -> list[str]:
    most = max(values, default=0.0) or 1.0
    inner = WIDTH - LEFT - RIGHT - 90
    parts = [_text(LEFT, top, title, size=14)]
    for number, (summary, value) in enumerate(zip(summaries, values, strict=True)):
        y = top + 12 + number * (BAR_HEIGHT + BAR_GAP)
        length = inner * value / most
        colour = COLOURS[number % len(COLOURS)]
        parts += [
            _text(LEFT - 8, y + 14, summary.policy, anchor="end"),
            (
                f'<rect x="{LEFT}" y="{y:.1f}" width="{length:.1f}" height="{BAR_HEIGHT}" '
                f'fill="{colour}"/>'
            ),
            _text(LEFT + length + 6, y + 14, span_text(value)),
        ]
    return parts
