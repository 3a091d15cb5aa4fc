"""A ManagedCluster as expressions see it, in the form of Open Cluster Management's own types. Pure.

OCM decodes a cluster into Go types and shows expressions the encoded result. A field without
``omitempty`` is then always present: ``hubAcceptsClient`` false, ``message`` empty, ``conditions``
null if missing. An empty field with ``omitempty`` is absent. Quantities are canonical and times in
UTC. Without this conversion, an expression with ``has(…)`` or ``== ""`` would choose other clusters
here than in OCM. The tables follow cluster/v1 of OCM's API v1.3.0. Fields outside the tables stay
as received, so that expressions can read newer fields at once.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final, NamedTuple

from berthmaster.lib.kube.quantity import QuantityError, parse_quantity

Read = Callable[[Any], Any]
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_PARTS: Final = re.compile(
    r"[+-]?(\d*)(?:\.(\d*))?(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII
)
_WITH_EXPONENT: Final = re.compile(r"[^a-zA-Z]*[eE][+-]?\d+", re.ASCII)


class Field(NamedTuple):
    """How to convert a field, and whether an empty field is present."""

    read: Read
    always: bool = False


# ---- kinds of fields


def _as_it_is(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    return "" if value is None else value


def _flag(value: Any) -> Any:
    return False if value is None else value


def _time(value: Any) -> Any:
    """Return a time in UTC and whole seconds, or null if missing."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return value
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at.tzinfo else value


def _struct(fields: Mapping[str, Field]) -> Read:
    def read(value: Any) -> Any:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            return value
        made = {key: one for key, one in value.items() if key not in fields}
        for name, field in fields.items():
            one = field.read(value.get(name))
            if one or field.always:
                made[name] = one
        return made

    return read


def _list(of: Read) -> Read:
    def read(value: Any) -> Any:
        return [of(one) for one in value] if isinstance(value, list) else value

    return read


def _amounts(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: canonical(amount) for name, amount in value.items()}


def canonical(amount: Any) -> Any:
    """Return a quantity in Kubernetes' canonical form: the largest suffix without a fraction."""
    if amount is None:
        return "0"
    text = str(amount)
    negative = text.startswith("-")
    try:
        value = parse_quantity(text.removeprefix("-"))
    except QuantityError:
        return amount  # unchanged: OCM could not read such a cluster at all
    if _kept(text):
        return text
    if text.endswith("i") and value >= 1024 and value.denominator == 1:
        told = _scaled(value, 1024, _BINARY)
    elif _WITH_EXPONENT.fullmatch(text):
        told = _with_exponent(value)
    else:
        told = _scaled(_nano(value) * 10**9, 1000, _DECIMAL)
    return f"-{told}" if negative and value else told


def _kept(text: str) -> bool:
    """Return whether Kubernetes' quick check accepts a text as canonical.

    ``1.500`` and ``+5`` stay unchanged.
    """
    match = _PARTS.fullmatch(text)
    if match is None:
        return False
    whole, part, suffix, power = match[1].lstrip("0") or "0", match[2] or "", match[3], match[4]
    digits = whole + part
    if suffix and suffix.endswith("i"):
        exponent = 10 * _BINARY.index(suffix)
        few = len(whole) + exponent * 3 // 10 + 1 <= 15
        return few and not part and int(whole) % 8 != 0
    scale = int(power) if power else 3 * (_DECIMAL.index(suffix or "") - _DECIMAL.index(""))
    scale -= len(part)
    few = len(digits) <= 18 and scale >= -9
    return few and scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"


def _nano(value: Fraction) -> Fraction:
    """Round up to the smallest fraction of a quantity."""
    parts = value * 10**9
    return Fraction(-(-parts.numerator // parts.denominator), 10**9)


def _scaled(value: Fraction, base: int, suffixes: tuple[str, ...]) -> str:
    """Write a whole number of the first suffix, in the largest suffix without a fraction."""
    number, at = value.numerator, 0
    if not number:
        return "0"
    while number % base == 0 and at < len(suffixes) - 1:
        number //= base
        at += 1
    return f"{number}{suffixes[at]}"


def _with_exponent(value: Fraction) -> str:
    number, exponent = (_nano(value) * 10**9).numerator, -9
    if not number:
        return "0"
    while number % 1000 == 0:
        number //= 1000
        exponent += 3
    return f"{number}e{exponent}" if exponent else str(number)


# ---- types


_CONDITION: Final = _struct(
    {
        "type": Field(_text, always=True),
        "status": Field(_text, always=True),
        "observedGeneration": Field(_as_it_is),
        "lastTransitionTime": Field(_time, always=True),
        "reason": Field(_text, always=True),
        "message": Field(_text, always=True),
    }
)
_SPEC: Final = _struct(
    {
        "managedClusterClientConfigs": Field(
            _list(_struct({"url": Field(_text, always=True), "caBundle": Field(_as_it_is)}))
        ),
        "hubAcceptsClient": Field(_flag, always=True),
        "leaseDurationSeconds": Field(_as_it_is),
        "taints": Field(
            _list(
                _struct(
                    {
                        "key": Field(_text, always=True),
                        "value": Field(_as_it_is),
                        "effect": Field(_text, always=True),
                        "timeAdded": Field(_time, always=True),
                    }
                )
            )
        ),
    }
)
_STATUS: Final = _struct(
    {
        "conditions": Field(_list(_CONDITION), always=True),
        "capacity": Field(_amounts),
        "allocatable": Field(_amounts),
        "version": Field(_struct({"kubernetes": Field(_as_it_is)}), always=True),
        "clusterClaims": Field(
            _list(_struct({"name": Field(_as_it_is), "value": Field(_as_it_is)}))
        ),
        "managedNamespaces": Field(
            _list(
                _struct(
                    {
                        "name": Field(_text, always=True),
                        "clusterSet": Field(_text, always=True),
                        "conditions": Field(_list(_CONDITION)),
                    }
                )
            )
        ),
    }
)


def document(
    metadata: dict[str, Any], spec: dict[str, Any] | None, status: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the value of ``managedCluster``. ``metadata`` has no empty fields."""
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": metadata,
        "spec": _SPEC(spec),
        "status": _STATUS(status),
    }
