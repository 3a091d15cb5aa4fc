"""Any instance of a message's type, for laws that hold for all of them."""

import functools
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from berthmaster.lib.messages.explain import type_of

MAX_ITEMS = 3  # of every list and map: laws need few, and messages hold lists of lists
MAX_CHARS = 20
LARGEST_INTEGER = 2**53  # JSON readers in other languages have no larger one

Text = st.text(max_size=MAX_CHARS)


def messages(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Every instance that its decoder accepts, small ones."""
    return _of(type_of(kind))


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType():
            return _struct(info.cls)
        case inspect.StrType():
            return _text(info)
        case inspect.IntType():
            return _integer(info)
        case inspect.FloatType():
            return _float(info)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.BytesType():
            return st.binary(max_size=MAX_CHARS)
        case inspect.LiteralType():
            return st.sampled_from(sorted(info.values, key=str))
        case inspect.EnumType():
            return st.sampled_from(info.cls)
        case inspect.UnionType():
            return st.one_of([_of(t) for t in info.types])
        case inspect.VarTupleType():
            items = st.lists(_of(info.item_type), min_size=info.min_length or 0, max_size=MAX_ITEMS)
            return items.map(tuple)
        case inspect.DictType():
            return st.dictionaries(_of(info.key_type), _of(info.value_type), max_size=MAX_ITEMS)
        case _:
            raise TypeError(f"no strategy for {info}")


@functools.cache
def _struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    info = type_of(kind)
    assert isinstance(info, inspect.StructType)
    required = {f.name: _of(f.type) for f in info.fields if f.required}
    optional = {f.name: _of(f.type) for f in info.fields if not f.required}
    fields = st.fixed_dictionaries(required, optional=optional)
    return fields.map(lambda values: kind(**values))


def _text(info: inspect.StrType) -> st.SearchStrategy[str]:
    longest = min(info.max_length or MAX_CHARS, MAX_CHARS)
    if info.pattern is None:
        return st.text(min_size=info.min_length or 0, max_size=longest)
    if info.pattern.startswith("^U"):
        return st.from_regex(r"U[A-Z2-7]{55}", fullmatch=True)  # a public nkey
    # The only other pattern that messages have; the decoder refuses what does not fit it.
    return st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)


def _integer(info: inspect.IntType) -> st.SearchStrategy[int]:
    low = info.ge if info.ge is not None else -LARGEST_INTEGER
    high = info.le if info.le is not None else LARGEST_INTEGER
    return st.integers(int(low), int(high))


def _float(info: inspect.FloatType) -> st.SearchStrategy[float]:
    low = info.ge if info.ge is not None else info.gt
    return st.floats(
        min_value=low,
        max_value=info.le,
        exclude_min=info.gt is not None,
        allow_nan=False,
        allow_infinity=False,
    )
