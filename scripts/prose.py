"""Measures how documentation and docstrings read: `python -m scripts.prose [PATH…] [--check]`.

Sentences are found by regular expressions. Code and tables are left out. So the figures are
approximate, and say nothing about truth or use.

::

    mean    words a sentence
    over30  percent of sentences above 30 words
    wh      percent that begin with who, what, whoever, that or it
    pron    pronouns per 1,000 words
    semi    semicolons per 100 sentences
    long    lines of prose above 100 characters

`--check` exits with 1 where a figure of all docs, or of all docstrings and comments, exceeds its
limit in LIMITS.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PATHS: Final = (
    *("docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
    *("services", "scripts"),
)
MAX_LINE: Final = 100
MIN_SENTENCES: Final = 8  # of a file that is listed: below, its figures are chance
LIMITS: Final[Mapping[str, Mapping[str, float]]] = {
    "all docs": {"mean": 17.0, "over30": 8.0, "wh": 3.0, "pron": 60.0, "long": 0.0},
    "all docstrings and comments": {"over30": 8.0, "wh": 3.0, "pron": 60.0, "long": 0.0},
}
COLUMNS: Final = ("sentences", "mean", "over30", "wh", "pron", "semi", "long")
HEADS: Final = frozenset(("who", "whom", "whose", "whoever", "what", "whatever", "that", "it"))
PRONOUNS: Final = frozenset(
    (
        *("it", "its", "itself", "they", "them", "their", "theirs", "this", "that", "these"),
        *("those", "who", "whom", "whose", "whoever", "what", "whatever", "which", "he", "him"),
        *("his", "nobody", "somebody", "anybody", "everybody", "one", "ones", "such", "none"),
        "others",
    )
)
FENCE: Final = re.compile(r"^\s*(```|~~~).*?^\s*\1\s*$", re.DOTALL | re.MULTILINE)
SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_A-Z0-9])")
WORD: Final = re.compile(r"[A-Za-z][A-Za-z'\u2019-]*")
ITEM: Final = re.compile(r"^\s*([-*+]|\d+[.)])\s+")
NO_PROSE: Final = re.compile(r"^\s*\||^#{1,6}\s|^(    |\t)\S")
DIRECTIVE: Final = re.compile(r"#\s*(noqa|type:|pragma|!|ruff|mypy)")


class Text(NamedTuple):
    """Prose of one file."""

    name: str
    kind: str  # "all docs", or "all docstrings and comments"
    prose: str
    long_lines: int = 0


def plain(markdown: str) -> str:
    """Return the prose of a Markdown text: no code, tables, headings or link targets."""
    lines = []
    for line in FENCE.sub("\n\n", markdown).split("\n"):
        if ITEM.match(line):
            lines += ["", ITEM.sub("", line)]
        elif NO_PROSE.match(line):
            lines.append("")
        else:
            lines.append(line)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines))


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence with at least two."""
    found: list[list[str]] = []
    for paragraph in re.split(r"\n\s*\n", text):
        flat = re.sub(r"`[^`]*`", " code ", " ".join(paragraph.split()))
        flat = re.sub(r"\b(e\.g|i\.e|etc|vs|cf)\.", r"\1", flat)
        flat = re.sub(r"(\w)\.(\w)", r"\1\2", flat)
        words = (WORD.findall(each) for each in SENTENCE_END.split(flat))
        found += [each for each in words if len(each) > 1]
    return found


def measure(text: str, long_lines: int = 0) -> dict[str, float]:
    """Return the figures of COLUMNS; all 0 for a text without sentences."""
    found = sentences(text)
    count = max(1, len(found))
    words = [word.lower() for sentence in found for word in sentence]
    return {
        "sentences": float(len(found)),
        "mean": len(words) / count,
        "over30": 100 * sum(len(sentence) > 30 for sentence in found) / count,
        "wh": 100 * sum(sentence[0].lower() in HEADS for sentence in found) / count,
        "pron": 1000 * sum(word in PRONOUNS for word in words) / max(1, len(words)),
        "semi": 100 * text.count(";") / count,
        "long": float(long_lines),
    }


def of_python(source: str) -> str:
    """Return docstrings and comments of a module, each a paragraph."""
    found = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    block, last = "", -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            if token.start[0] != last + 1:
                found.append(block)
                block = ""
            block, last = f"{block} {token.string.lstrip('# ')}", token.start[0]
    return "\n\n".join(plain(each) for each in [*found, block])


def read(file: Path) -> Text | None:
    """Return the prose of a file, or None for a file that is neither Markdown nor Python."""
    if file.suffix == ".md":
        raw = file.read_text()
        lines = FENCE.sub("", raw).split("\n")
        over = sum(len(each) > MAX_LINE and not each.lstrip().startswith("|") for each in lines)
        return Text(str(file), "all docs", plain(raw), over)
    if file.suffix == ".py":
        return Text(str(file), "all docstrings and comments", of_python(file.read_text()))
    return None


def files(paths: Iterable[Path]) -> list[Path]:
    """Return the files, and those in folders, in order."""
    return [
        file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
    ]


def totals(texts: Sequence[Text]) -> dict[str, dict[str, float]]:
    """Return the figures of all files of each kind together."""
    kinds = dict.fromkeys(text.kind for text in texts)
    return {
        kind: measure(
            "\n\n".join(text.prose for text in texts if text.kind == kind),
            sum(text.long_lines for text in texts if text.kind == kind),
        )
        for kind in kinds
    }


def beyond(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a line for each figure above its limit."""
    return [
        f"{kind}: {name} {figures[kind][name]:.1f} > {limit:g}"
        for kind, limits in LIMITS.items()
        if kind in figures
        for name, limit in limits.items()
        if figures[kind][name] > limit
    ]


def row(name: str, figures: Mapping[str, float]) -> str:
    """Return one line of the table."""
    return f"{name[-60:]:60}" + "".join(f"{figures[column]:10.1f}" for column in COLUMNS)


def main(argv: list[str]) -> int:
    """Print the table. Return 1 if `--check` finds a figure above its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, help="files and folders; default: docs and services"
    )
    parser.add_argument("--worst", type=int, default=15, help="number of files shown; default 15")
    parser.add_argument("--check", action="store_true", help="exit with 1 above a limit")
    asked = parser.parse_args(argv)
    paths = asked.paths or [ROOT / name for name in PATHS]
    texts = [text for file in files(paths) if (text := read(file)) is not None]
    each = [(text.name, measure(text.prose, text.long_lines)) for text in texts]
    listed = [(name, figures) for name, figures in each if figures["sentences"] >= MIN_SENTENCES]
    listed.sort(key=lambda one: -(one[1]["pron"] + 4 * one[1]["mean"]))
    print(f"{'':60}" + "".join(f"{column:>10}" for column in COLUMNS))
    figures_of = totals(texts)
    for name, figures in [*listed[: asked.worst], *figures_of.items()]:
        print(row(name, figures))
    wrong = beyond(figures_of)
    if asked.check and wrong:
        print("\n".join(wrong))
    return 1 if asked.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
