"""Copy everything that decisions depend on, for experiments.

Mutable objects are copied once, however many references exist. Immutable ones (strings, frozen
structs, tuples of such) are shared, so a copy costs little more than its maps and arrays. The
copier works on any object.
"""

import copy
import functools
from collections import deque
from collections.abc import Generator, Iterable
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
import numpy as np

T = TypeVar("T")

_ATOMS: Final = (NoneType, int, float, complex, str, bytes, tuple, frozenset, type, FunctionType)
_CONTAINERS: Final = (dict, list, set, deque, bytearray)
# A bound method belongs to its object, so a copied object needs a method of its own.
_BOUND: Final = (MethodType, BuiltinMethodType)
_NEVER_SHARED: Final = (np.ndarray, memoryview, Generator, *_BOUND, *_CONTAINERS)


def fork(original: T, *, sharing: tuple[type, ...] = ()) -> T:
    """Return the copy. ``sharing``: further types to share. Raises TypeError for a running
    generator.
    """
    made: T = _Copier(sharing).copy(original)
    return made


class _Copier:
    def __init__(self, sharing: tuple[type, ...]) -> None:
        self._sharing = frozenset(sharing)
        self._made: dict[int, Any] = {}  # by id of the original, which lives until the copy is done

    def copy(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind in self._sharing or _shared(kind):
            return value
        made = self._made.get(id(value))
        if made is None:
            made = self._fresh(value, kind)
        return made

    def _fresh(self, value: Any, kind: Any) -> Any:
        if isinstance(value, Generator):
            raise TypeError("a generator that is under way cannot be copied")
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, memoryview):
            made = self._made[id(value)] = memoryview(self.copy(value.obj))  # of the copy
            return made
        if isinstance(value, dict):
            return self._map(value)
        if isinstance(value, _CONTAINERS):
            return self._sequence(value)
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self.copy(value.__self__))
        if isinstance(value, BuiltinMethodType):  # also a function of its module
            of = value.__self__
            return value if isinstance(of, ModuleType) else getattr(self.copy(of), value.__name__)
        made = self._made[id(value)] = copy.copy(value) if _is_struct(kind) else kind.__new__(kind)
        for name in _names(kind) if kind.__dictoffset__ == 0 else (*_names(kind), *vars(value)):
            held = getattr(value, name, _ABSENT)
            if held is not _ABSENT:
                assign = setattr if _is_struct(kind) else object.__setattr__
                assign(made, name, self._attribute(held))
        return made

    def _attribute(self, value: Any) -> Any:
        """Of an object: a tuple of arrays, say, is taken apart; tuples elsewhere are values."""
        if type(value) is tuple and not self._all_shared(value):
            return tuple(self.copy(each) for each in value)
        return self.copy(value)

    def _map(self, value: dict[Any, Any]) -> Any:
        made = self._made[id(value)] = value.copy()  # keeps the class
        if not self._all_shared(value.values()):
            for key, held in value.items():
                made[key] = self.copy(held)
        return made

    def _all_shared(self, values: Iterable[Any]) -> bool:
        kinds = set(map(type, values)) - self._sharing
        return all(map(_shared, kinds))

    def _sequence(self, value: Any) -> Any:
        made = self._made[id(value)] = copy.copy(value)
        if isinstance(made, list | deque) and not self._all_shared(value):
            for index, held in enumerate(value):
                made[index] = self.copy(held)
        return made

    def _array(self, value: Any) -> Any:
        """Copy an array. A view becomes a view of the copied base."""
        base = value.base
        if isinstance(base, np.ndarray):
            whole = self.copy(base)
            offset = _address(value) - _address(base)
            made = np.ndarray(value.shape, value.dtype, whole, offset, value.strides)
        else:
            made = value.copy()
        self._made[id(value)] = made
        return made


_ABSENT: Final = object()


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@functools.cache
def _shared(kind: Any) -> bool:
    """Whether values of this type are never changed in place."""
    if issubclass(kind, (*_ATOMS, np.generic)):
        return True
    if _is_struct(kind):
        return bool(kind.__struct_config__.frozen)
    if issubclass(kind, _NEVER_SHARED):
        return False
    if hasattr(kind, "__members__"):
        return True  # an enum
    return not kind.__dictoffset__ and not _names(kind)  # functions, types, decoders


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    """Return attributes that may hold mutable values, besides the instance's dictionary."""
    if _is_struct(kind):
        fields = msgspec.structs.fields(kind)
        return tuple(field.name for field in fields if not _plain(field.type))
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = [n for each in slots for n in ((each,) if isinstance(each, str) else each)]
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def _plain(annotation: Any) -> bool:
    """Return whether a field of this type can only hold shared values."""
    origin = get_origin(annotation)
    if origin is None:
        return isinstance(annotation, type) and _shared(annotation)
    if isinstance(origin, type) and issubclass(origin, tuple | frozenset):
        return True
    if isinstance(origin, type) and issubclass(origin, _CONTAINERS):
        return False
    return origin is Literal or all(map(_plain, get_args(annotation)))
