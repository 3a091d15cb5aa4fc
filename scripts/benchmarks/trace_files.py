"""The folder of public traces: BERTH_TRACES, or shared/traces beside the project's folder."""

import os
from pathlib import Path
from typing import Final

from berthmaster.lab.simulate.traces import TRACES_VARIABLE

ROOT: Final = Path(__file__).resolve().parents[2]
TRACES: Final = Path(os.environ.get(TRACES_VARIABLE) or ROOT.parent / "shared" / "traces")


def traces_folder(needed: str = "") -> Path | None:
    """Return the folder. None if the file or folder ``needed`` is missing in it."""
    return TRACES if (TRACES / needed).exists() else None
