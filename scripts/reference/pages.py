"""All generated pages by path. Each generator is a module with ``page() -> str``."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from scripts import services, settings, versions
from scripts.generated import ROOT
from scripts.reference import cli, errors, messages, metrics, permissions, request, states

REFERENCE: Final = ROOT / "docs" / "reference"


@cache
def pages() -> Mapping[Path, str]:
    """Return the text of every generated page, and of pages with a generated table."""
    return {
        REFERENCE / "request.md": request.page(),
        REFERENCE / "states.md": states.page(),
        REFERENCE / "errors.md": errors.page(),
        REFERENCE / "cli.md": cli.page(),
        REFERENCE / "metrics.md": metrics.page(),
        REFERENCE / "permissions.md": permissions.page(),
        **{REFERENCE / "messages" / f"{name}.md": text for name, text in messages.pages()},
        settings.PAGE: settings.page(),
        versions.PAGE: versions.page(),
        **services.pages(),
    }
