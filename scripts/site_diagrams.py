"""Adds mermaid.js to the site, so that its diagrams need no other host. A hook of mkdocs.yml.

The theme loads mermaid.js from a CDN where a page has a diagram and no ``mermaid`` of its own. So
the build fetches the npm package once, into ``build``, and each page with a diagram names
the copy. Without npm or network, pages stay as the theme makes them.
"""

import hashlib
import logging
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "mermaid@11.6.0"
SHA256: Final = "3a93016a73dc82ba890d919f9bbb176f3da9d98341650c0b517f2595cc68fef8"
SCRIPT: Final = "assets/mermaid.min.js"
COPY: Final = ROOT / "build" / PACKAGE / "mermaid.min.js"
LIMIT_S: Final = 60.0

log = logging.getLogger("mkdocs.hooks.diagrams")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add mermaid.js to the files of the site."""
    try:
        if not COPY.is_file():
            fetch(COPY)
    except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        log.info("Diagrams load mermaid.js from a CDN: %s", error)
    else:
        files.append(File.generated(config, SCRIPT, abs_src_path=str(COPY)))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the copy in each page with a diagram, before the theme's own script runs."""
    if not COPY.is_file() or 'class="mermaid"' not in output:
        return output
    url = get_relative_url(SCRIPT, page.url)
    return output.replace("</head>", f'<script defer src="{url}"></script></head>', 1)


def fetch(copy: Path) -> None:
    """Fetch the package by npm, which uses the registry and proxy of this machine.

    Raises OSError without npm or with other content, SubprocessError if npm fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        argv = ["npm", "pack", "--silent", "--pack-destination", scratch, PACKAGE]
        subprocess.run(argv, check=True, capture_output=True, timeout=LIMIT_S)
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as content:
            source = content.extractfile("package/dist/mermaid.min.js")
            text = source.read() if source else b""
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise OSError(f"{PACKAGE} has another mermaid.min.js than the one tested")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(text)
