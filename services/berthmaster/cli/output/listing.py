"""The shared forms of listing commands: `-o wide|json|yaml|csv|name`, one renderer for all.

Each command has its own table for users. The other forms follow from the messages alone.
"""

import csv
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import msgspec

from berthmaster.cli.session import Output
from berthmaster.lib.runtime.visible_text import visible, visible_json

if TYPE_CHECKING:
    from rich.console import RenderableType

Form = Literal["wide", "json", "yaml", "csv", "name"]
WIDEST: Final = 2000
FORMS: Final = ("wide", "json", "yaml", "csv", "name")


def form_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the flag -o, as the argument ``form``."""
    option = click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMS),
        help="Output format. wide: more columns; json, yaml, csv: all fields; name: names only.",
    )
    return option(function)


def write_list(
    out: Output,
    form: Form | None,
    document: object,
    items: Sequence[msgspec.Struct],
    name: Callable[[Any], str],
    shown: Callable[[bool], "RenderableType"],
) -> None:
    """Write a list in one form.

    ``document`` is the content of JSON and YAML. ``items`` are the rows of CSV, each with a
    ``name``. ``shown`` returns the table, with more columns if True.
    """
    match form:
        case "json":
            Output(as_json=True).document(document, lambda: "")
        case "yaml":
            out.write(as_yaml(document).encode().rstrip(b"\n"))
        case "csv":
            out.write(as_csv(items).encode().rstrip(b"\n"))
        case "name":
            for item in items:
                out.write(visible(name(item), keep="").encode())
        case "wide" if not out.as_json:
            # Write full width: lines wrapped by the terminal are readable, folded cells are not.
            from rich.console import Console

            Console(highlight=False, width=WIDEST).print(shown(True))
        case _:
            out.document(document, lambda: shown(False))


def as_yaml(document: object) -> str:
    """Return the document as YAML, with the content of the JSON form."""
    import yaml

    body = msgspec.json.encode(document)
    raw = visible_json(body) == body  # else PyYAML escapes all text beyond ASCII
    text: str = yaml.safe_dump(msgspec.json.decode(body), sort_keys=False, allow_unicode=raw)
    return text


def as_csv(items: Sequence[msgspec.Struct]) -> str:
    """Return a header and a line per item, with JSON in cells of lists and structs."""
    fields = list(dict.fromkeys(field for item in items for field in item.__struct_fields__))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    for item in items:
        writer.writerow([_cell(getattr(item, field, None)) for field in fields])
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return cell_text(value) if isinstance(value, str) else str(value)
    return visible_json(msgspec.json.encode(value)).decode()


def cell_text(text: str) -> str:
    """Return a text for a CSV cell.

    A text that a spreadsheet reads as a formula gets a quote. Terminal control characters become
    escapes, because any user may choose names.
    """
    shown = visible(text)
    return f"'{shown}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else shown
