"""The page's colours, as people see them who tell few hues apart, in both themes.

Machado, Oliveira and Fernandes (2009), "A Physiologically-based Model for Simulation of Color
Vision Deficiency": a matrix on linear RGB for each kind, here the full deficiency. Distances are of
CIE 1976 L*a*b*; 2.3 is what a person just notices, and cells lie side by side.
"""

import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from berthmaster.control.dashboard.static_files import FOLDER

Color = NDArray[np.float64]

SIGHTS: Final = {
    "all hues": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
    "no hue": np.array([[0.2126, 0.7152, 0.0722]] * 3),
}
TO_XYZ: Final = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)
WHITE: Final = TO_XYZ.sum(axis=1)
STEP: Final = 8.0  # between two stops of a scale, in lightness alone
APART: Final = 15.0  # between what is to be told apart where nothing else but a mark differs


def themes() -> dict[str, dict[str, str]]:
    text = Path(FOLDER / "style.css").read_text()
    found = re.findall(r'\[data-theme="(\w+)"\] \{(.*?)\}', text, re.DOTALL)
    return {name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", body)) for name, body in found}


def seen(color: str, sight: str) -> Color:
    """L*, a*, b* of a colour such as "#1d5672"."""
    rgb = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = (TO_XYZ @ np.clip(SIGHTS[sight] @ linear, 0, 1)) / WHITE
    fx, fy, fz = (t ** (1 / 3) if t > (6 / 29) ** 3 else t * 841 / 108 + 4 / 29 for t in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_scale_rises_in_lightness_for_every_eye(theme: str, sight: str) -> None:
    colors = themes()[theme]
    for scale in ("heat", "hot"):
        light = [seen(colors[f"{scale}-{at}"], sight)[0] for at in range(5)]
        steps = [after - before for before, after in pairwise(light)]
        if theme == "light":
            steps = [-step for step in steps]
        assert min(steps) >= STEP, (scale, np.round(light, 1))


@pytest.mark.parametrize("sight", [sight for sight in SIGHTS if sight != "no hue"])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_what_is_well_degraded_lost_or_unknown_looks_otherwise(theme: str, sight: str) -> None:
    colors = themes()[theme]
    health = {name: seen(colors[name], sight) for name in ("lost", "degraded", "unknown")}
    health["well"] = seen(colors["heat-2"], sight)  # as js/colors.js has it
    near = {
        (one, other): round(float(np.linalg.norm(health[one] - health[other])), 1)
        for one, other in combinations(health, 2)
    }
    assert min(near.values()) >= APART, near
    words = [seen(colors[name], sight) for name in ("good", "bad")]
    assert np.linalg.norm(words[0] - words[1]) >= APART
