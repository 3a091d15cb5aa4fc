"""A reader as it was generated from the published schemas: what runs out there after we change."""

from typing import Annotated, Any, Literal, Union

import msgspec

from scripts.schema_tools.json_schema import Schema

_BOUNDS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
    "maxProperties": "max_length",
    "pattern": "pattern",
}
_SIMPLE: dict[str, Any] = {
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
    "string": str,
}


def old_reader(schema: Schema) -> msgspec.json.Decoder[Any]:
    """Decodes what the schema describes, into types made of nothing but the schema."""
    return msgspec.json.Decoder(_Types(schema).make(schema))


class _Types:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._made: dict[str, Any] = {}

    def make(self, schema: Schema) -> Any:
        if "allOf" in schema:
            (schema,) = schema["allOf"]
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            if name not in self._made:
                self._made[name] = self.make(self._root["$defs"][name])
            return self._made[name]
        if "anyOf" in schema:
            return Union[tuple(self.make(part) for part in schema["anyOf"])]  # noqa: UP007
        if "enum" in schema:
            return Literal[tuple(schema["enum"])]
        bounds = {_BOUNDS[word]: limit for word, limit in schema.items() if word in _BOUNDS}
        made = self._plain(schema)
        return Annotated[made, msgspec.Meta(**bounds)] if bounds else made

    def _plain(self, schema: Schema) -> Any:
        kind = schema["type"]
        if kind == "array":
            return tuple[self.make(schema["items"]), ...]  # type: ignore[misc]
        if kind == "object" and "properties" in schema:
            return self._struct(schema)
        if kind == "object":
            return dict[str, self.make(schema["additionalProperties"])]  # type: ignore[misc]
        return bytes if schema.get("contentEncoding") == "base64" else _SIMPLE[kind]

    def _struct(self, schema: Schema) -> type[msgspec.Struct]:
        tag = schema["properties"].get("type", {}).get("const")
        fields: list[Any] = []
        for name, field in schema["properties"].items():
            if name == "type" and tag:
                continue
            made = self.make(field)
            if name in schema["required"]:
                fields.append((name, made))
            else:
                fields.append((name, made, _default(field["default"], made)))
        return msgspec.defstruct(
            schema["title"],
            fields,
            kw_only=True,
            frozen=True,
            tag=tag,
            forbid_unknown_fields=schema.get("additionalProperties") is False,
        )


def _default(value: object, made: Any) -> Any:
    return msgspec.field(default_factory=lambda: msgspec.convert(value, made))
