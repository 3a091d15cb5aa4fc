"""YAML from outside, read as JSON values. Pure.

All YAML that this project reads goes through `documents` or `document`: jobs of `berth submit -f`,
kubeconfigs and the Configuration in Kueue's ConfigMap. Values are dict, list, str, int, float,
bool, None and, for a plain scalar such as 2026-11-24, date and datetime.

Rules:

- Aliases, merge keys and tags are refused. Example: ten lines of `l1: {<<: [*l0, *l0]}` take
  PyYAML's own constructor minutes, and three of aliases become gigabytes.
- A key that is no text, or occurs twice in a mapping, is refused. Readers disagree on which of two
  applies.
- Depth, number of values and length of numbers have limits, so time is linear in the text.
- A refusal names the line and never the text there, which may be a secret.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 2_000_000
MAX_NUMBER_CHARS: Final = 64  # of a plain scalar that reads as a number or a time
_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Final = yaml.resolver.Resolver()
_SCALARS: Final = yaml.constructor.SafeConstructor()
_TEXT: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"
_NULL: Final = "tag:yaml.org,2002:null"


class NotYaml(ValueError):
    """The text is no YAML. ``problem`` is the parser's message. ``line``: 0 = unknown."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"{problem} (line {line})" if line else problem)
        self.problem = problem
        self.line = line


class Refused(NotYaml):
    """The text is YAML with a refused construct. ``problem`` contains nothing of the text."""


def document(data: bytes | str) -> Any:
    """Return the one value of a text; None = empty. Raises NotYaml."""
    found = documents(data)
    if len(found) > 1:
        raise NotYaml("expected a single document")
    return found[0] if found else None


def documents(data: bytes | str) -> list[Any]:
    """Return the value of each document. Raises NotYaml."""
    try:
        return list(_Reader(data))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise NotYaml(problem, mark.line + 1 if mark is not None else 0) from None
    except UnicodeError:
        raise NotYaml("it is no Unicode text") from None


class _Reader:
    """Builds values from a parser's events, without recursion."""

    def __init__(self, data: bytes | str) -> None:
        self._events = yaml.parse(data, Loader=_PARSER)
        self._open: list[dict[str, Any] | list[Any]] = []
        self._keys: list[str | None] = []  # of each open mapping, the key whose value comes next
        self._values = 0

    def __iter__(self) -> Iterator[Any]:
        for event in self._events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                yield from self._put(self._scalar(event), event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._begin(event, {} if kind is yaml.MappingStartEvent else [])
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._keys.pop()
                yield from self._put(self._open.pop(), event)
            elif kind is yaml.AliasEvent:
                raise _refused("YAML aliases are not accepted", event)

    def _begin(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        if event.tag is not None:
            raise _refused("YAML tags are not accepted", event)
        if len(self._open) >= MAX_DEPTH:
            raise _refused(f"nested deeper than {MAX_DEPTH}", event)
        self._open.append(value)
        self._keys.append(None)

    def _put(self, value: Any, event: Any) -> Iterator[Any]:
        """Add a value to the innermost open collection, or yield it as a whole document."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise _refused(f"more than {MAX_VALUES:,} values", event)
        if not self._open:
            yield value
            return
        around = self._open[-1]
        if isinstance(around, list):
            around.append(value)
        elif (key := self._keys[-1]) is None:
            if not isinstance(value, str):  # numbers can be crafted to have all the same hash
                raise _refused("a key is no text; put it in quotes", event)
            if value in around:
                raise _refused("a key stands twice", event)
            self._keys[-1] = value
        else:
            around[key] = value
            self._keys[-1] = None

    def _scalar(self, event: Any) -> Any:
        if event.tag is not None:
            raise _refused("YAML tags are not accepted", event)
        text = event.value
        if not event.implicit[0]:
            return text
        tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
        if tag == _TEXT:
            return text
        if tag == _NULL:
            return None
        if tag == _MERGE:
            raise _refused("YAML merge keys are not accepted", event)
        if len(text) > MAX_NUMBER_CHARS:
            raise _refused(f"a number of more than {MAX_NUMBER_CHARS} characters", event)
        try:
            return _SCALARS.construct_object(yaml.ScalarNode(tag, text))
        except (yaml.YAMLError, ValueError, ArithmeticError):
            raise _refused("a scalar that is none of its kind; put it in quotes", event) from None


def _refused(problem: str, event: Any) -> Refused:
    return Refused(problem, event.start_mark.line + 1)
