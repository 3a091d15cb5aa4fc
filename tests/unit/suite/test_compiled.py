"""What is compiled is what mypyc can compile, all of it, and what comes out is found again."""

import ast
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from scripts import compiled
from scripts.compiled import INTERPRETED, SERVICES, copyable, fingerprint, modules, sources, tree

# Bases that mypyc knows, beside classes of compiled modules: it takes others for plain objects,
# and where they are written in C a process ends in the middle of something else.
KNOWN = {"Enum", "Exception", "IntEnum", "NamedTuple", "Protocol", "StrEnum", "TypedDict"}
KNOWN |= {"Sequence"}  # of collections.abc: written in Python, and has nothing of its own


def classes(name: str) -> list[ast.ClassDef]:
    parsed = ast.parse((SERVICES / name).read_text())
    return [node for node in ast.walk(parsed) if isinstance(node, ast.ClassDef)]


def test_no_class_is_compiled_that_would_come_out_wrong() -> None:
    ours = {each.name for name in modules() for each in classes(name)}
    wrong = [
        f"{name}: {each.name}"
        for name in modules()
        for each in classes(name)
        if each.keywords
        or not {ast.unparse(base).partition("[")[0] for base in each.bases} <= KNOWN | ours
    ]
    assert wrong == []


def test_no_interpreted_class_derives_from_a_compiled_one() -> None:
    ours = {each.name for name in modules() for each in classes(name)}
    others = {str(file.relative_to(SERVICES)) for file in SERVICES.rglob("*.py")} - {*modules()}
    wrong = [
        f"{name}: {each.name}"
        for name in sorted(others)
        for each in classes(name)
        if {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in each.bases} & ours
    ]
    assert wrong == []


def test_no_import_of_a_compiled_module_may_fail() -> None:
    tried = [
        name
        for name in modules()
        for node in ast.parse((SERVICES / name).read_text()).body
        if isinstance(node, ast.Try)
    ]
    assert tried == []


def test_what_is_left_out_is_there_and_has_its_reason() -> None:
    for name in sorted(INTERPRETED):
        source = (SERVICES / "berthmaster" / name).read_text()
        structs = [each for each in classes(f"berthmaster/{name}") if each.keywords]
        frozen = [e for e in classes(f"berthmaster/{name}") if "msgspec.Struct" in ast.unparse(e)]
        gates = any("Gate" in each.name for each in classes(f"berthmaster/{name}"))
        assert structs or frozen or gates or "except ImportError" in source, name


def test_the_name_of_a_build_follows_from_all_that_it_is_made_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made_of = {str(file.relative_to(SERVICES)) for file in sources()}
    assert set(modules()) <= made_of
    assert "berthmaster/messages/workload.py" in made_of  # for its types
    assert "berthmaster/engine/scoring/_cards.pyi" in made_of
    assert "berthmaster/cli/__init__.py" not in made_of
    before = fingerprint()
    assert fingerprint() == before
    own = tmp_path / "compiled.py"
    own.write_text(Path(compiled.__file__).read_text() + "# changed\n")
    monkeypatch.setattr(compiled, "__file__", str(own))
    assert fingerprint() != before


def test_classes_get_a_decorator_and_lines_keep_their_numbers() -> None:
    for name in modules():
        source = (SERVICES / name).read_text()
        made = copyable(source)
        assert made.count("\n") == source.count("\n")
        marked = [
            each.name
            for each in ast.parse(made).body
            if isinstance(each, ast.ClassDef)
            and any("mypyc_attr" in ast.unparse(d) for d in each.decorator_list)
        ]
        assert marked == [
            each.name
            for each in ast.parse(source).body
            if isinstance(each, ast.ClassDef)
            and not {ast.unparse(b) for b in each.bases} & (KNOWN - {"Exception", "Sequence"})
        ]
    with pytest.raises(ValueError, match="line 3 should be blank"):
        copyable('"""A module."""\n\nimport os\nX = os.name\n\n\nclass A:\n    """."""\n'[16:])


def test_a_tree_has_sources_and_compiled_modules_side_by_side(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (made / "berthmaster" / "lifecycle").mkdir(parents=True)
    (made / "berthmaster" / "lifecycle" / "fold.cpython-311-x86_64-linux-gnu.so").touch()
    seen = tree(made, tmp_path)
    names = {file.name for file in (seen / "berthmaster" / "lifecycle").iterdir()}
    assert {"fold.py", "fold.cpython-311-x86_64-linux-gnu.so", "workload.py"} <= names
    assert (seen / "berthmaster" / "lifecycle" / "fold.py").samefile(
        SERVICES / "berthmaster" / "lifecycle" / "fold.py"
    )
    assert not list(seen.rglob("__pycache__"))


def test_without_a_compiler_a_command_runs_interpreted_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def none() -> Path:
        raise compiled.CannotCompile("no gcc")

    monkeypatch.setattr(compiled, "folder", none)
    assert compiled.main(["--", "sh", "-c", "echo ran; exit 3"]) == 3
    told = capfd.readouterr()
    assert told.out == "ran\n"
    assert "it runs interpreted:\nno gcc" in told.err
    assert compiled.main([]) == 1
    assert compiled.main(["what"]) == 2


def test_an_environment_without_mypy_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(compiled, "version", none)
    assert compiled.main([]) == 1
    assert "has no mypy" in capsys.readouterr().err
