"""Expressions checked and evaluated by Google's CEL for C++, with OCM's functions.

CEL uses two environments. The checker's environment declares each function with the types of
cel-go, and compiles. The evaluation's environment implements the functions and runs the compiled
program, without custom types. Example: ``quantity("1")`` has type ``kubernetes.Quantity`` in the
checker and is a map in the evaluation.

Both environments declare the global functions in the container ``berth``. So ``int("1")`` means
``berth.int``, and the library's own ``int``, which accepts ``" 1"``, is never called.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel

from berthmaster.hub.placement.cel.errors import WRONG, NoValue, WrongType
from berthmaster.hub.placement.cel.functions import functions
from berthmaster.hub.placement.cel.question import (
    CelAnswer,
    ClusterAnswer,
    ClusterInput,
    Question,
    too_costly,
)

MAX_CHARS: Final = 8192  # maximum length of an expression
CLUSTER: Final = "managedCluster"
_Q: Final = "kubernetes.Quantity"
_S: Final = "kubernetes.Semver"
_T: Final = "timestamp"
_D: Final = "duration"
_BASIC: Final = ("int", "double", "bool", "string", "bytes", "uint")
# name -> (types of the arguments, type of the result); ~A is any type, the same everywhere.
_Declared = Mapping[str, Sequence[tuple[str, str]]]
_GLOBAL: Final[_Declared] = {
    "int": [(one, "int") for one in ("int", "double", "string", "uint", _T, _D)],
    "double": [(one, "double") for one in ("double", "int", "string", "uint")],
    "string": [(one, "string") for one in _BASIC],
    "bool": [("bool", "bool"), ("string", "bool")],
    "timestamp": [(_T, _T), ("int", _T), ("string", _T)],
    "duration": [(_D, _D), ("string", _D)],
    "quantity": [("string", _Q)],
    "isQuantity": [("string", "bool")],
    "sign": [(_Q, "int")],
    "semver": [("string", _S)],
    "isSemver": [("string", "bool")],
    "strings.quote": [("string", "string")],
}
_METHODS: Final[_Declared] = {
    "scores": [("dyn,string", "list<dyn>")],
    "parseJSON": [("string", "dyn")],
    "charAt": [("string,int", "string")],
    "substring": [("string,int", "string"), ("string,int,int", "string")],
    "replace": [("string,string,string", "string"), ("string,string,string,int", "string")],
    "split": [("string,string", "list<string>"), ("string,string,int", "list<string>")],
    "join": [("list<string>", "string"), ("list<string>,string", "string")],
    "format": [("string,list<dyn>", "string")],
    **{one: [("string", "string")] for one in ("trim", "lowerAscii", "upperAscii", "reverse")},
    "find": [("string,string", "string")],
    "findAll": [("string,string", "list<string>"), ("string,string,int", "list<string>")],
    **{
        one: [("string,string", "int"), ("string,string,int", "int"), ("list<~A>,~A", "int")]
        for one in ("indexOf", "lastIndexOf")
    },
    "sum": [(f"list<{one}>", one) for one in ("int", "uint", "double")],
    "min": [(f"list<{one}>", one) for one in _BASIC],
    "max": [(f"list<{one}>", one) for one in _BASIC],
    "isSorted": [(f"list<{one}>", "bool") for one in _BASIC],
    "isInteger": [(_Q, "bool")],
    "asInteger": [(_Q, "int")],
    "asApproximateFloat": [(_Q, "double")],
    "add": [(f"{_Q},{_Q}", _Q), (f"{_Q},int", _Q)],
    "sub": [(f"{_Q},{_Q}", _Q), (f"{_Q},int", _Q)],
    "isGreaterThan": [(f"{_Q},{_Q}", "bool"), (f"{_S},{_S}", "bool")],
    "isLessThan": [(f"{_Q},{_Q}", "bool"), (f"{_S},{_S}", "bool")],
    "compareTo": [(f"{_Q},{_Q}", "int"), (f"{_S},{_S}", "int")],
    "major": [(_S, "int")],
    "minor": [(_S, "int")],
    "patch": [(_S, "int")],
}
# The library's own strings implement these. Declaring a method in both places is an error.
_NATIVE: Final = (
    *("charAt", "substring", "replace", "join", "trim", "lowerAscii", "upperAscii", "reverse"),
    "strings.quote",
)
_GIVES: Final = {"timestamp": cel.Type.TIMESTAMP, "duration": cel.Type.DURATION}
# Prefixes of the library's errors for an operation on a value of the wrong type.
_WRONG: Final = (
    WRONG,
    "No matching overloads",
    "Invalid map key type",
    "duplicate key in map",
    "Applying SELECT",
    "Invalid container type",
    "invalid regular expression",
    "clause can only be used",
    "precision specifier",
)
# The library's getMilliseconds returns the milliseconds of the last second, cel-go's all of them.
_LESS: Final = """
stdlib:
  exclude_functions:
  - {name: getMilliseconds, overloads: [{id: duration_to_milliseconds}]}
"""
# Errors when an expression exceeds a limit of the library or of the process.
_COSTLY: Final = ("Iteration budget exceeded", "RESOURCE_EXHAUSTED")
_PLACE: Final = re.compile(r"<input>:(\d+):(\d+): (.*)")
_OURS: Final = re.compile(r"berth\.| \(in container 'berth'\)")
_HUGE: Final = re.compile(r"\b[0-9.]+[eE]\+?[0-9]{3,}")
_HALF: Final = re.compile(r"\\C")
_VARIABLES: Final = {CLUSTER: cel.Type.Map(cel.Type.STRING, cel.Type.DYN)}


class Refused(Exception):
    """The text is not an expression that can be evaluated here."""


class _Costly(Exception):
    """An expression exceeded a limit."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _config(extensions: str, declared: str = "") -> Any:
    listed = "".join(f"- {{name: {one}}}\n" for one in extensions.split())
    return cel.NewEnvConfigFromYaml(f"name: berth\n{_LESS}extensions:\n{listed}{declared}")


def _declarations() -> Iterator[str]:
    yield "functions:\n"
    for table, method in ((_GLOBAL, False), (_METHODS, True)):
        for name, overloads in table.items():
            yield f"- name: {name if method else f'berth.{name}'}\n  overloads:\n"
            for number, (takes, gives) in enumerate(overloads):
                target, *rest = (_type(one) for one in takes.split(","))
                first = f", target: {target}" if method else ""
                listed = ", ".join(rest if method else [target, *rest])
                yield f"  - {{id: {name}_{number}{first}, args: [{listed}]"
                yield f", return: {_type(gives)}}}\n"


def _type(written: str) -> str:
    if written.startswith("list<"):
        return f"{{type_name: list, params: [{_type(written[5:-1])}]}}"
    if written.startswith("~"):
        return f"{{type_name: {written[1:]}, is_type_param: true}}"
    return f"{{type_name: {written}}}"


class Language:
    """Answers questions in this process, limited only by each question's budget."""

    def __init__(self) -> None:
        self._scores: Mapping[str, list[tuple[str, int]]] = {}
        self._name = ""  # name of the current cluster
        self._looked: dict[str, None] = {}
        self._programs = lru_cache(maxsize=512)(self._compiled)
        plain = dict.fromkeys("abcd", cel.Type.DYN)
        self._strings = cel.NewEnv(config=_config("strings optional regex"), variables=plain)
        self._written = lru_cache(maxsize=64)(self._strings.compile)
        self._checker = cel.NewEnv(
            config=_config("optional", "".join(_declarations())),
            variables=_VARIABLES,
            container="berth",
        )
        self._runner = cel.NewEnv(
            config=_config("optional"),
            variables=_VARIABLES,
            extensions=[cel.CelExtension("berth", list(self._implemented()))],
        )

    def answer(self, question: Question, mark: Callable[[int], None] = lambda _: None) -> CelAnswer:
        """Return the answer.

        ``answer`` calls ``mark`` with the number of each expression before compiling or evaluating.
        """
        programs: list[Any] = []
        refused: dict[int, str] = {}
        for number, text in enumerate(question.texts):
            mark(number)
            try:
                programs.append(self._programs(text))
            except Refused as error:
                refused[number] = str(error)
        if refused:
            return CelAnswer(refused=refused)
        answers: list[ClusterAnswer] = []
        why: dict[int, str] = {}
        began_s = time.thread_time()
        spent_s = 0.0
        for cluster in question.clusters:
            asking = _Asking(self, programs, cluster, why, mark)
            try:
                answers.append(asking.answer(question.predicates))
            except _Costly as costly:
                return too_costly(costly.number, time.thread_time() - began_s)
            spent_s = time.thread_time() - began_s
            if spent_s > question.budget_s:
                return too_costly(asking.dearest, spent_s)
        return CelAnswer(tuple(answers), why, spent_s=spent_s)

    def look_at(self, cluster: ClusterInput) -> dict[str, None]:
        """Set the cluster that ``scores`` reads, and return the set that collects looked-up
        names."""
        metadata = cluster.document.get("metadata") or {}
        self._name, self._scores, self._looked = metadata.get("name", ""), cluster.scores, {}
        return self._looked

    def given(self, cluster: ClusterInput) -> Any:
        """Return the variables of a cluster's evaluations, converted once."""
        return self._runner.Activation({CLUSTER: cluster.document})

    def _compiled(self, text: str) -> Any:
        if len(text) > MAX_CHARS:
            raise Refused(f"{len(text)} characters, at most {MAX_CHARS}")
        if "managedFields" in text:
            raise Refused("metadata.managedFields are not kept here")
        if _HALF.search(text):
            raise Refused("a pattern has \\C, which is half a character")
        if any(float(one) == float("inf") for one in _HUGE.findall(text) if one.count(".") < 2):
            raise Refused("a number beyond a double")
        try:
            checked = self._checker.compile(text)
        except (RuntimeError, ValueError, LookupError) as error:
            raise Refused(_problem(str(error))) from None
        gives = checked.return_type().name().lower()
        if gives not in ("bool", "dyn"):
            raise Refused(f"the expression is a {gives}, not true or false")
        return self._runner.deserialize(checked.serialize())

    def _native(self, text: str, *values: Any) -> Any:
        found = self._written(text).eval(data=dict(zip("abcd", values, strict=False)))
        if found.type() == cel.Type.ERROR:
            raise NoValue(str(found.plain_value()))
        return found.plain_value()

    def _implemented(self) -> Iterator[Any]:
        made = {**functions(self._native), "scores": self._scores_of}
        made |= {name: self._calling(name) for name in _NATIVE}
        for table, method in ((_GLOBAL, False), (_METHODS, True)):
            for name, overloads in table.items():
                counts = sorted({takes.count(",") + 1 for takes, _ in overloads})
                yield cel.FunctionDecl(
                    name if method else f"berth.{name}",
                    [
                        cel.Overload(
                            f"{name}_{count}",
                            return_type=_GIVES.get(name, cel.Type.DYN),
                            parameters=[cel.Type.DYN] * count,
                            is_member=method,
                            impl=made[name],
                        )
                        for count in counts
                    ],
                )

    def _calling(self, name: str) -> Callable[..., Any]:
        def called(*values: Any) -> Any:
            if name == "strings.quote":
                return self._native("strings.quote(a)", *values)
            return self._native(f"a.{name}({', '.join('bcd'[: len(values) - 1])})", *values)

        return called

    def _scores_of(self, cluster: Any, resource: Any) -> list[dict[str, Any]]:
        """Return ``managedCluster.scores("name")``: all written scores, expired or not, as OCM
        does."""
        metadata = cluster.get("metadata") if isinstance(cluster, Mapping) else None
        if not isinstance(metadata, Mapping) or metadata.get("name") != self._name:
            raise WrongType("scores of what is not the cluster")
        if not isinstance(resource, str):
            raise WrongType("scores takes a name")
        self._looked[resource] = None
        found = self._scores.get(resource)
        if found is None:
            raise NoValue(f"no AddOnPlacementScore {resource[:64]!r}")
        return [{"name": name, "value": value} for name, value in found]


class _Asking:
    """Evaluates a question's predicates for one cluster."""

    def __init__(
        self,
        language: Language,
        programs: Sequence[Any],
        cluster: ClusterInput,
        why: dict[int, str],
        mark: Callable[[int], None],
    ) -> None:
        self.dearest = 0  # number of the expression with the highest CPU time
        self._most_s = -1.0
        self._programs = programs
        self._predicates = cluster.predicates
        self._looked = language.look_at(cluster)
        self._given = language.given(cluster)
        self._meant = self._wrong = 0
        self._why = why
        self._mark = mark

    def answer(self, predicates: Sequence[Sequence[int]]) -> ClusterAnswer:
        """Evaluate the predicates in order until the first that selects the cluster.

        Within a predicate, evaluation stops at the first expression that does not hold.
        """
        selected = any(
            all(self._holds(number) for number in predicates[one]) for one in self._predicates
        )
        return ClusterAnswer(selected, self._meant, self._wrong, tuple(self._looked))

    def _holds(self, number: int) -> bool:
        self._mark(number)
        began_s = time.thread_time()
        value, problem = _value(self._programs[number], self._given)
        took_s = time.thread_time() - began_s
        if took_s > self._most_s:
            self.dearest, self._most_s = number, took_s
        if problem is not None and any(one in problem for one in _COSTLY):
            raise _Costly(number)
        if problem is None or not any(one in problem for one in _WRONG):
            self._meant |= 1 << number
            return value
        self._wrong |= 1 << number
        self._why.setdefault(number, problem[:300])
        return False


def _value(program: Any, given: Any) -> tuple[bool, str | None]:
    """Return (whether the expression holds, reason for a missing value)."""
    try:
        found = program.eval(given)
    except (RuntimeError, ValueError, LookupError) as error:
        return False, str(error)
    kind = found.type()
    if kind == cel.Type.BOOL:
        return bool(found.value()), None
    if kind == cel.Type.ERROR:
        return False, str(found.value())
    if kind == cel.Type.NULL:
        return False, "the expression is null, neither true nor false"
    return False, f"{WRONG}the expression is a {kind.name().lower()}, not true or false"


def _problem(told: str) -> str:
    """Return the checker's first problem, with its position."""
    found = _PLACE.search(told)
    if found is None:
        return told.split("\n", maxsplit=1)[0][:300]
    line, column, problem = found.groups()
    where = f"line {line}, " if line != "1" else ""
    return f"at {where}character {column}: {_OURS.sub('', problem)[:300]}"
