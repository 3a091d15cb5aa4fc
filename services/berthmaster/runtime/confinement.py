"""Keeps a child process away from some folders, although it runs as the same user as its parent.

File modes cannot keep processes of one user apart. Landlock (Linux 5.13) can: a process gives up,
for good and for whatever it starts, opening what lies outside the places that it names. Who is
confined cannot trace, or read the memory of, anybody who is less confined. Rules name what is
allowed: so all that stands beside the hidden folders, and beside their parents, is allowed by name.
What is made there later is not, only what is made within these. Docs: kernel.org, userspace-api,
landlock.
"""

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION: Final = 1  # flag of _CREATE_RULESET: tell the version that the kernel knows
_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_WRITE, _READ, _REMOVE, _MAKE, _REFER, _TRUNCATE = 1 << 1, 1 << 2, 1 << 5, 1 << 8, 1 << 13, 1 << 14
# Loaded here, since between fork and exec nothing may be imported or locked.
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def version() -> int:
    """Of Landlock, as this kernel has it; 0 = it has none, or may not be asked."""
    if _LIBC is None:
        return 0
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, 0, _VERSION)))


class Confinement(NamedTuple):
    """What a process is not to see, but for what is shown to it."""

    hidden: tuple[Path, ...]
    shown: tuple[Path, ...] = ()  # files and folders, which must be there

    @contextlib.contextmanager
    def prepared(self) -> Iterator[Callable[[], None]]:
        """What to call between fork and exec. Without Landlock it does nothing. Raises OSError if
        something that is to be shown is not there."""
        abi = version()
        if _LIBC is None or not abi:
            yield lambda: None
            return
        ruleset = self._ruleset(abi)
        libc = _LIBC

        def between_fork_and_exec() -> None:
            libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            if libc.syscall(_RESTRICT_SELF, ruleset, 0):
                raise OSError("it cannot be confined")  # better not started than unconfined

        try:
            yield between_fork_and_exec
        finally:
            os.close(ruleset)

    def _ruleset(self, abi: int) -> int:
        files = _WRITE | _READ | (_TRUNCATE if abi >= 3 else 0)
        folders = files | _REMOVE | _MAKE | (_REFER if abi >= 2 else 0)
        assert _LIBC is not None
        attributes = _Ruleset(folders)
        made = ctypes.byref(attributes), ctypes.sizeof(attributes)
        ruleset = int(_LIBC.syscall(_CREATE_RULESET, *made, 0))
        if ruleset < 0:
            raise OSError(ctypes.get_errno(), "no Landlock ruleset can be made")
        try:
            hidden = [path.resolve() for path in self.hidden]
            for path in _beside(Path("/"), hidden):
                with contextlib.suppress(OSError):  # it went, or is not ours to open
                    _allow(ruleset, path, files, folders)
            for path in self.shown:
                _allow(ruleset, path.resolve(), files, folders)
        except BaseException:
            os.close(ruleset)
            raise
        return ruleset


def _beside(folder: Path, hidden: list[Path]) -> Iterator[Path]:
    """Everything but the hidden folders and those that lead there."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # whoever may not list it may not have much in it
    for entry in entries:
        path = Path(entry.path)
        if path in hidden or entry.is_symlink():  # what it leads to has a place of its own
            continue
        if any(path in one.parents for one in hidden):
            yield from _beside(path, hidden)
        else:
            yield path


def _allow(ruleset: int, path: Path, files: int, folders: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = _PathBeneath(folders if is_folder else files, descriptor)
        assert _LIBC is not None
        if _LIBC.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0):
            raise OSError(ctypes.get_errno(), "cannot be allowed", str(path))
    finally:
        os.close(descriptor)
