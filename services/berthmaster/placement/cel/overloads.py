"""For which types each operator and function is there, as cel-go declares them. Pure.

Only what OCM's environment has: the standard library, strings, Kubernetes' lists, patterns,
quantities and versions, ``parseJSON``. Bytes and unsigned numbers have types here, so that an
operator means the same, but nothing makes one.
"""

from collections.abc import Mapping
from typing import Final

from berthmaster.placement.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    QUANTITY,
    SEMVER,
    STRING,
    TIMESTAMP,
    UINT,
    A,
    B,
    Overload,
    Type,
    list_of,
    map_of,
    type_of,
)

Overloads = tuple[Overload, ...]
_ORDERED: Final = (BOOL, INT, UINT, DOUBLE, STRING, BYTES, TIMESTAMP, DURATION)
_SUMMED: Final = (INT, UINT, DOUBLE, DURATION)
_SAME: Final = (Overload((A, A), BOOL),)
_ORDER: Final = tuple(Overload((one, one), BOOL) for one in _ORDERED)


def _each(*types: Type) -> Overloads:
    return tuple(Overload((one, one), one) for one in types)


def _takes(*overloads: tuple[tuple[Type, ...], Type]) -> Overloads:
    return tuple(Overload(takes, gives) for takes, gives in overloads)


OPERATORS: Final[Mapping[str, Overloads]] = {
    "==": _SAME,
    "!=": _SAME,
    **dict.fromkeys(("<", "<=", ">", ">="), _ORDER),
    "+": (
        *_each(BYTES, DOUBLE, DURATION),
        *_takes(((DURATION, TIMESTAMP), TIMESTAMP), ((TIMESTAMP, DURATION), TIMESTAMP)),
        *_each(INT, list_of(A), STRING, UINT),
    ),
    "-": (
        *_each(DOUBLE, DURATION, INT),
        *_takes(((TIMESTAMP, DURATION), TIMESTAMP), ((TIMESTAMP, TIMESTAMP), DURATION)),
        *_each(UINT),
    ),
    "*": _each(DOUBLE, INT, UINT),
    "/": _each(DOUBLE, INT, UINT),
    "%": _each(INT, UINT),
    "in": _takes(((A, list_of(A)), BOOL), ((A, map_of(A, B)), BOOL)),
    "[]": _takes(((list_of(A), INT), A), ((map_of(A, B), A), B)),
    "!": _takes(((BOOL,), BOOL)),
    "- of": _takes(((DOUBLE,), DOUBLE), ((INT,), INT)),
    "?:": _takes(((BOOL, A, A), A)),
}
_SIZED: Final = tuple(Overload((one,), INT) for one in (BYTES, list_of(A), map_of(A, B), STRING))
_TEXTS: Final = _takes(((STRING, STRING), BOOL))
_FIND: Final = _takes(((STRING, STRING), INT), ((STRING, STRING, INT), INT))
_IN_LIST: Final = _takes(((list_of(A), A), INT))
_TEXT: Final = _takes(((STRING,), STRING))
FUNCTION_TYPES: Final[Mapping[str, Overloads]] = {
    "size": _SIZED,
    "type": _takes(((A,), type_of(A))),
    "int": _takes(*(((one,), INT) for one in (INT, DOUBLE, DURATION, STRING, TIMESTAMP, UINT))),
    "double": _takes(*(((one,), DOUBLE) for one in (DOUBLE, INT, STRING, UINT))),
    "string": _takes(
        *(((one,), STRING) for one in (STRING, BOOL, BYTES, DOUBLE, DURATION, INT, TIMESTAMP, UINT))
    ),
    "bool": _takes(((BOOL,), BOOL), ((STRING,), BOOL)),
    "timestamp": _takes(*(((one,), TIMESTAMP) for one in (TIMESTAMP, INT, STRING))),
    "duration": _takes(*(((one,), DURATION) for one in (DURATION, INT, STRING))),
    "dyn": _takes(((A,), DYN)),
    "matches": _TEXTS,
    "strings.quote": _TEXT,
    "quantity": _takes(((STRING,), QUANTITY)),
    "isQuantity": _takes(((STRING,), BOOL)),
    "sign": _takes(((QUANTITY,), INT)),
    "semver": _takes(((STRING,), SEMVER)),
    "isSemver": _takes(((STRING,), BOOL)),
}
_DATE: Final = _takes(((TIMESTAMP,), INT), ((TIMESTAMP, STRING), INT))
_CLOCK: Final = (*_DATE, *_takes(((DURATION,), INT)))
_ORDERED_LIST: Final = tuple(
    Overload((list_of(one),), one)
    for one in (INT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES, UINT)
)
METHOD_TYPES: Final[Mapping[str, Overloads]] = {
    "size": _SIZED,
    **dict.fromkeys(("matches", "startsWith", "endsWith", "contains"), _TEXTS),
    "charAt": _takes(((STRING, INT), STRING)),
    "substring": _takes(((STRING, INT), STRING), ((STRING, INT, INT), STRING)),
    **dict.fromkeys(("indexOf", "lastIndexOf"), (*_FIND, *_IN_LIST)),
    "replace": _takes(((STRING, STRING, STRING), STRING), ((STRING, STRING, STRING, INT), STRING)),
    "split": _takes(((STRING, STRING), list_of(STRING)), ((STRING, STRING, INT), list_of(STRING))),
    "join": _takes(((list_of(STRING),), STRING), ((list_of(STRING), STRING), STRING)),
    "format": _takes(((STRING, list_of(DYN)), STRING)),
    **dict.fromkeys(("trim", "lowerAscii", "upperAscii", "reverse"), _TEXT),
    "find": _takes(((STRING, STRING), STRING)),
    "findAll": _takes(
        ((STRING, STRING), list_of(STRING)), ((STRING, STRING, INT), list_of(STRING))
    ),
    "parseJSON": _takes(((STRING,), DYN)),
    "sum": tuple(Overload((list_of(one),), one) for one in _SUMMED),
    **dict.fromkeys(("min", "max"), _ORDERED_LIST),
    "isSorted": tuple(Overload(one.takes, BOOL) for one in _ORDERED_LIST),
    **dict.fromkeys(
        (
            "getFullYear",
            "getMonth",
            "getDayOfYear",
            "getDayOfMonth",
            "getDate",
            "getDayOfWeek",
        ),
        _DATE,
    ),
    **dict.fromkeys(("getHours", "getMinutes", "getSeconds", "getMilliseconds"), _CLOCK),
    "isInteger": _takes(((QUANTITY,), BOOL)),
    "asInteger": _takes(((QUANTITY,), INT)),
    "asApproximateFloat": _takes(((QUANTITY,), DOUBLE)),
    **dict.fromkeys(
        ("isGreaterThan", "isLessThan"),
        _takes(((QUANTITY, QUANTITY), BOOL), ((SEMVER, SEMVER), BOOL)),
    ),
    "compareTo": _takes(((QUANTITY, QUANTITY), INT), ((SEMVER, SEMVER), INT)),
    **dict.fromkeys(
        ("add", "sub"), _takes(((QUANTITY, QUANTITY), QUANTITY), ((QUANTITY, INT), QUANTITY))
    ),
    **dict.fromkeys(("major", "minor", "patch"), _takes(((SEMVER,), INT))),
}
# What OCM offers and nobody has here, by what it belongs to.
NOT_OFFERED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bytes", "uint"), "bytes and unsigned numbers are"),
    **dict.fromkeys(
        ("optional", "hasValue", "value", "or", "orValue", "optMap", "optFlatMap"),
        "optional values are",
    ),
    **dict.fromkeys(
        ("url", "isURL", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath"),
        "URLs are",
    ),
    "getQuery": "URLs are",
    **dict.fromkeys(
        (
            *("ip", "isIP", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast"),
            *("isLinkLocalUnicast", "isGlobalUnicast", "cidr", "isCIDR", "containsIP"),
            *("containsCIDR", "prefixLength", "masked"),
        ),
        "IP addresses are",
    ),
    **dict.fromkeys(("format", "validate"), "named formats are"),
    **dict.fromkeys(("cel", "math", "sets", "base64"), "CEL's extensions are"),
}
