"""Compiles what decides with mypyc, for where it ships: images, benchmarks, tests of real servers.

    python -m scripts.compiled                 prints a folder of .so files; built if there is none
    python -m scripts.compiled -- COMMAND…     runs a command with those modules in front

Decisions take a sixth to two fifths less time then, and come out the same. A checkout runs
interpreted, so that what is edited is what runs: nothing is compiled beside the sources. The folder
is kept under $XDG_CACHE_HOME/berthmaster by the hash of what it is made from; a command sees it
through a tree of links to the sources and to the compiled modules.

What mypyc cannot do decides what is not compiled: a class that is a msgspec.Struct or derives from
one written in C (it takes no class keywords and knows no foreign layout), one from which an
interpreted class derives (what that says instead of an attribute goes unseen), and an import that
may fail. tests/unit/suite/test_compiled.py holds the list to that.
"""

import ast
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SERVICES: Final = ROOT / "services"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berthmaster"
PACKAGES: Final = (
    "engine/fitting",
    "engine/fleet",
    "engine/queueing",
    "engine/scoring",
    "engine/scoring/parts",
    "fleetview",
    "resolver/deciding",
    "resolver/known",
)
MODULES: Final = (
    "lifecycle/faults.py",
    "lifecycle/fold.py",
    "lifecycle/parts.py",
    "lifecycle/remains.py",
    "lifecycle/sizes.py",
)
INTERPRETED: Final = frozenset(
    {
        # They have structs.
        "engine/fleet/capped.py",
        "engine/fleet/cluster_view.py",
        "engine/fleet/clusters.py",
        "engine/queueing/learned.py",
        "engine/scoring/profiles.py",
        "engine/scoring/sampled.py",
        "engine/scoring/track_record.py",
        "fleetview/problems.py",
        "fleetview/rows.py",
        "resolver/known/part_ends.py",
        "resolver/known/stored.py",
        "resolver/known/told.py",
        # Its import of the C module may fail.
        "engine/scoring/compiled.py",
        # Gates of other packages, which are interpreted, derive from the first.
        "fleetview/gate.py",
        "resolver/deciding/gate.py",
    }
)
KEPT: Final = 4  # builds; older ones are removed
BUILD_LIMIT_S: Final = 1200.0


class CannotCompile(Exception):
    """There is no compiler, or it failed; the text says which."""


def modules() -> list[str]:
    """What is compiled, as paths under services/."""
    home = SERVICES / "berthmaster"
    files = [file for each in PACKAGES for file in sorted((home / each).glob("*.py"))]
    files += [home / each for each in MODULES]
    names = [str(file.relative_to(home)) for file in files if file.name != "__init__.py"]
    return [f"berthmaster/{name}" for name in names if name not in INTERPRETED]


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def sources() -> list[Path]:
    """What the compiled modules are made from: themselves and, for the types, all that they
    import."""
    found: dict[Path, None] = {}
    left = [SERVICES / name for name in modules()]
    while left:
        file = left.pop()
        if file in found:
            continue
        found[file] = None
        for name in _imports(file):
            plain = SERVICES / name.replace(".", "/")
            some = (plain.with_suffix(".py"), plain.with_suffix(".pyi"), plain / "__init__.py")
            left += [each for each in some if each.is_file()]
    return sorted(found)


def fingerprint() -> str:
    """Of all that decides what comes out. Raises ``CannotCompile``."""
    try:
        mypy = version("mypy")
    except PackageNotFoundError:
        raise CannotCompile(f"{sys.prefix} has no mypy: the project's environment does") from None
    digest = hashlib.sha256(f"{sys.version} {platform.machine()} {mypy}".encode())
    for file in (Path(__file__), *sources()):
        digest.update(f"{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:20]


def folder() -> Path:
    """Where the compiled modules are, as under site-packages; built if need be.

    Raises ``CannotCompile``.
    """
    kept = CACHE / "compiled"
    kept.mkdir(parents=True, exist_ok=True)
    made = kept / fingerprint()
    if made.is_dir():
        os.utime(made)
        return made
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_dir():  # another process may have done it while we waited
            with tempfile.TemporaryDirectory(dir=kept, prefix="tmp-") as scratch:
                _build(Path(scratch))
                (Path(scratch) / "out").rename(made)
            _forget(kept)
    return made


def _build(scratch: Path) -> None:
    began_s = time.monotonic()
    names = modules()
    print(f"compiled: {len(names)} modules, a minute or two", file=sys.stderr, flush=True)
    shutil.copytree(SERVICES, scratch / "services", ignore=shutil.ignore_patterns("*.so"))
    for name in names:
        module = scratch / "services" / name
        module.write_text(copyable(module.read_text()))
    (scratch / "services" / "setup.py").write_text(_SETUP.format(names=names))
    (scratch / "services" / "mypy.ini").write_text(_MYPY)
    argv = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(scratch / "out")]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            argv,
            cwd=scratch / "services",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotCompile(f"not done after {BUILD_LIMIT_S:.0f} s") from None
    if done.returncode:
        raise CannotCompile(done.stdout[-3000:].strip())
    print(f"compiled: in {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)


def copyable(source: str) -> str:
    """The same module, whose classes can be made without calling ``__init__``, as what-if copies
    what is known. mypyc wants a decorator for that (of the two that should do, ``serializable``
    never calls it, as of mypy 2.4), which no checkout and no image needs to know: so it is put here
    into blank lines, and lines keep their numbers.

    Raises ValueError where there is none.
    """
    lines = source.splitlines()
    body = ast.parse(source).body
    classes = [each for each in body if isinstance(each, ast.ClassDef) and _is_native(each)]
    if not classes:
        return source
    imports = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
    end = (imports or body)[-1 if imports else 0].end_lineno or 0  # else of the docstring
    lines[end - 1] += "; from typing import TYPE_CHECKING"
    _fill(lines, end + 1, "if TYPE_CHECKING: from mypy_extensions import mypyc_attr")
    for each in classes:
        first = min([each.lineno, *(d.lineno for d in each.decorator_list)])
        _fill(lines, first - 1, "@mypyc_attr(allow_interpreted_subclasses=True)")
    return "\n".join(lines) + "\n"


def _fill(lines: list[str], number: int, text: str) -> None:
    if lines[number - 1].strip():
        raise ValueError(f"line {number} should be blank: {lines[number - 1]}")
    lines[number - 1] = text


def _is_native(found: ast.ClassDef) -> bool:
    """Whether mypyc lays out its instances itself."""
    bases = {ast.unparse(base).partition("[")[0] for base in found.bases}
    return not bases & {"NamedTuple", "Protocol", "TypedDict", "Enum", "StrEnum", "IntEnum"}


# setuptools compiles the files of an extension one after another: here as many as there are cores.
_SETUP: Final = """\
import os
from concurrent.futures import ThreadPoolExecutor

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext


class Parallel(build_ext):
    def build_extension(self, ext):
        one_by_one = self.compiler.compile

        def compile(files, **settings):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda file: one_by_one([file], **settings), files)
                return [each for some in made for each in some]

        self.compiler.compile = compile
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = one_by_one


extensions = mypycify(
    {names!r}, opt_level="2", debug_level="0", multi_file=True, group_name="berthmaster"
)
for each in extensions:
    each.extra_compile_args += ["-ffp-contract=off", "-w"]  # scores have the same bits
setup(name="berthmaster-compiled", ext_modules=extensions, cmdclass={{"build_ext": Parallel}})
"""
_MYPY: Final = """\
[mypy]
strict = true
namespace_packages = true
explicit_package_bases = true
"""


def _forget(kept: Path) -> None:
    builds = [each for each in kept.iterdir() if re.fullmatch(r"[0-9a-f]{20}", each.name)]
    for old in sorted(builds, key=lambda each: each.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def tree(made: Path, at: Path) -> Path:
    """A folder for PYTHONPATH: links to all of services/, and the compiled modules beside them."""
    fresh = Path(tempfile.mkdtemp(dir=at, prefix="tree-"))
    for file in SERVICES.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            _link(fresh / file.relative_to(SERVICES), file)
    for file in made.rglob("*.so"):
        _link(fresh / file.relative_to(made), file)
    return fresh


def _link(name: Path, to: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.symlink_to(to)


def run(command: Sequence[str]) -> int:
    """A command with the compiled modules in front, or without them where they cannot be made."""
    with tempfile.TemporaryDirectory(prefix="berth-compiled-") as scratch:
        env = dict(os.environ)
        try:
            path = str(tree(folder(), Path(scratch)))
        except CannotCompile as error:
            print(f"compiled: not, so it runs interpreted:\n{error}", file=sys.stderr, flush=True)
        else:
            env["PYTHONPATH"] = ":".join(filter(None, (path, env.get("PYTHONPATH"))))
        return subprocess.run(command, env=env, check=False).returncode


def main(argv: Sequence[str]) -> int:
    """See above."""
    if argv[:1] == ["--"] and argv[1:]:
        return run(argv[1:])
    if argv:
        print("usage: python -m scripts.compiled [-- COMMAND…]", file=sys.stderr)
        return 2
    try:
        print(folder())
    except CannotCompile as error:
        print(f"compiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
