"""Which modules are mutated: those that import-linter's contract `pure` holds.

The contract names cores and the modules beside them, and forbids I/O, clocks and chance to all that
these import as well. So what they import of ours is pure too and is mutated with them, but for the
messages, which are types.
"""

import fnmatch
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = "berthmaster"
NOT_MUTATED = ("messages",)


def pure_modules(root: Path = ROOT) -> dict[str, Path]:
    """{module: its file}, by name."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    named: list[str] = next(each for each in contracts if each["id"] == "pure")["source_modules"]
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    pure = {
        module
        for module in graph.modules
        for pattern in named
        if fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, f"{pattern}.*")
    }
    for module in tuple(pure):
        pure |= graph.find_upstream_modules(module)
    found = {}
    for module in sorted(pure):
        if module == PACKAGE or module.split(".")[1] in NOT_MUTATED:
            continue
        path = root / "services" / Path(*module.split("."))
        found[module] = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found
