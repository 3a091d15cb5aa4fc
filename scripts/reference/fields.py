"""Tables of fields from a JSON Schema: name, type with bounds, default, meaning."""

from collections.abc import Mapping
from typing import Any

import msgspec

from scripts.reference.markdown import cell, table

Schema = Mapping[str, Any]


def fields_table(part: Schema, *, without: frozenset[str] = frozenset()) -> str:
    """Return the table of an object's fields. Arrays and references name the object inside."""
    required = part.get("required", ())
    rows = (
        (
            f"`{name}`",
            cell(_type(field)),
            "required" if name in required else _default(field),
            cell(field.get("description", "")),
        )
        for name, field in part["properties"].items()
        if name not in without
    )
    return table(("field", "type", "default", "meaning"), rows) + "\n"


def _default(field: Schema) -> str:
    return f"`{msgspec.json.encode(field['default']).decode()}`" if "default" in field else ""


def _type(field: Schema) -> str:
    """Return type and bounds in words."""
    if "anyOf" in field:
        return _type(next(each for each in field["anyOf"] if each.get("type") != "null"))
    if "$ref" in field or "allOf" in field:
        return _struct(field)
    if "enum" in field:
        return "one of " + ", ".join(f"`{each}`" if each else '`""`' for each in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = str(field["type"])
    low, high = (field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum"))
    if low is not None and high is not None:
        above = "above " if "exclusiveMinimum" in field else ""
        return f"{kind}, {above}{low:,.0f} to {high:,.0f}"
    if kind == "array":
        inside = _struct(field.get("items", {}))
        of = f" of {inside}" if inside != "object" else ""
        return f"list{of}, at most {field['maxItems']}" if "maxItems" in field else f"list{of}"
    if kind == "object":
        return f"map, at most {field['maxProperties']}" if "maxProperties" in field else "map"
    return f"{kind}, at most {field['maxLength']} characters" if "maxLength" in field else kind


def _struct(field: Schema) -> str:
    """Return the name of the struct that a field or an item refers to."""
    for each in (field, *field.get("allOf", ())):
        if "$ref" in each:
            return str(each["$ref"]).rpartition("/")[2].removeprefix("Strict")
    return "object"
