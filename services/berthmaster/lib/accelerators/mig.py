"""MIG profiles and the boards that support them: the part of a board in a slice. Pure.

``profile("1g.10gb.me")`` is one compute slice with 10 GB and the media engines. On an H100 this
profile has 1 of 7 compute slices and 1 of 8 memory slices, on an A100 with 40 GB 2 of 8.

Rules:

- Resources, labels and the driver spell one suffix in three ways: ``.me``, ``-me``, ``+me``. All
  are one profile. No board has both the driver's ``+me`` and its ``-me``.
- Other spellings are no profile: ``profile`` returns None, and callers report the name.
- ``least_boards`` returns the minimum number of boards for a set of slices. ``spread`` lays the
  slices out on a number of boards.

Source: NVIDIA, "MIG User Guide", supported profiles; the default configuration of mig-parted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

SUFFIX: Final = r"[-.+](?:me(?:[-.+]all)?|gfx)"
WORDS: Final = rf"(?:[1-7]c\.)?[1-7]g\.[1-9][0-9]{{0,2}}gb(?:{SUFFIX})?"
_PROFILE: Final = re.compile(rf"(?:([1-7])c\.)?([1-7])g\.([1-9][0-9]{{0,2}})gb({SUFFIX})?\Z")
_NAMED_GB: Final = re.compile(r"([1-9][0-9]{1,2})gb?\b")


class Profile(NamedTuple):
    """A profile, parsed from its name."""

    compute: int  # compute slices of a pod
    slices: int  # compute slices of the GPU instance, perhaps shared by several compute instances
    memory_gb: int  # of the GPU instance, rounded as in the name
    suffix: str = ""  # me, me.all or gfx

    @property
    def name(self) -> str:
        """The common spelling of a profile, such as 1g.10gb.me."""
        part = f"{self.compute}c." if self.compute != self.slices else ""
        suffix = f".{self.suffix}" if self.suffix else ""
        return f"{part}{self.slices}g.{self.memory_gb}gb{suffix}"

    @property
    def memory_mib(self) -> int:
        """The memory of the GPU instance."""
        return self.memory_gb * 1024


@lru_cache(maxsize=1024)
def profile(name: str) -> Profile | None:
    """Parse a profile's name. Return None for any other name."""
    found = _PROFILE.match(name)
    if found is None:
        return None
    slices = int(found[2])
    compute = int(found[1] or slices)
    if compute > slices:
        return None
    suffix = re.sub(r"[-+]", ".", (found[4] or "")[1:])
    return Profile(compute, slices, int(found[3]), suffix)


@lru_cache(maxsize=1024)
def one_spelling(name: str) -> str:
    """Return the profile's common spelling. Other names stay unchanged."""
    found = profile(name)
    return found.name if found is not None else name


# NVIDIA spells these with -me, on RTX PRO boards.
_WITHOUT_MEDIA: Final = ("1g.24gb.me", "2g.48gb.me", "1g.16gb.me", "2g.32gb.me")


def in_resource(name: str) -> str:
    """Return the profile as the device plugin spells a resource after nvidia.com/mig-."""
    found = one_spelling(name)
    return name if found in _WITHOUT_MEDIA and name.endswith("-me") else found


# ---- boards


MOST_SLICES: Final = 7  # of one board


class Board(NamedTuple):
    """The slices of a board."""

    compute: int = 7
    memory: int = 8
    memory_gb: int = 0  # of the whole board, as its profiles count memory; 0 = unknown
    media: int = 1  # maximum slices with the suffix me on one board

    def memory_slices(self, of: Profile) -> int | None:
        """Return the memory slices of a GPU instance, or None if the board lacks the profile."""
        sizes = _SIZES[self.compute].get(of.slices)
        if sizes is None:
            return None
        if not self.memory_gb:
            return sizes[0]
        wanted = round(of.memory_gb * self.memory / self.memory_gb)
        return wanted if wanted in sizes else None


# By compute slices of a board: profile's compute slices -> possible numbers of memory slices.
_SIZES: Final[Mapping[int, Mapping[int, tuple[int, ...]]]] = {
    7: {1: (1, 2), 2: (2,), 3: (4,), 4: (4,), 7: (8,)},
    4: {1: (1,), 2: (2,), 4: (4,)},
    2: {1: (1,), 2: (2,)},
}
_SEVENTHS: Final = Board()
_QUARTERS: Final = Board(4, 4)
_HALVES: Final = Board(2, 2)

# The first row that matches a model's name is used. GB apply unless name or labels state them.
_BOARDS: Final[tuple[tuple[re.Pattern[str], Board], ...]] = tuple(
    (re.compile(rf"\b(?:{words})\b"), board)
    for words, board in (
        (r"a30x?", _QUARTERS._replace(memory_gb=24)),
        (r"rtx pro 6000", _QUARTERS._replace(memory_gb=96, media=4)),
        (r"rtx pro 5000", _HALVES._replace(memory_gb=48, media=2)),
        (r"rtx pro 4500", _HALVES._replace(memory_gb=32, media=2)),
        (r"a100x", _SEVENTHS._replace(memory_gb=80)),
        (r"a[18]00", _SEVENTHS),
        (r"h[18]00 nvl", _SEVENTHS._replace(memory_gb=94)),
        (r"h[18]00", _SEVENTHS._replace(memory_gb=80)),
        (r"gh200", _SEVENTHS._replace(memory_gb=96)),
        (r"h20 3e", _SEVENTHS._replace(memory_gb=141)),
        (r"h20", _SEVENTHS._replace(memory_gb=96)),
        (r"h200", _SEVENTHS._replace(memory_gb=141)),
        (r"gb200", _SEVENTHS._replace(memory_gb=186)),
        (r"b200", _SEVENTHS._replace(memory_gb=180)),
        (r"g?b300", _SEVENTHS._replace(memory_gb=269)),
    )
)


@lru_cache(maxsize=1024)
def board_of(model: str, memory_mib: int = 0) -> Board:
    """Return the slices of a model by its name, and by a whole board's memory (0 = unknown).

    An unknown model has sevenths, like all large boards.
    """
    words = " ".join(re.findall(r"[a-z0-9]+", model.lower()))
    board = next((board for row, board in _BOARDS if row.search(words)), _SEVENTHS)
    if memory_mib:
        return board._replace(memory_gb=round(memory_mib / 1024))
    # A GH200 names its CPU memory in GB, and a differing GPU memory in G.
    own = words.replace("480gb", "")
    named = _NAMED_GB.search(own)
    return board._replace(memory_gb=int(named[1])) if named is not None else board


def fitting(board: Board, slices: Iterable[tuple[Profile, int]]) -> Board:
    """Return the board, with unknown memory if some profile does not match the board.

    In that case neither name nor label gives the size of the slices.
    """
    if all(board.memory_slices(of) is not None for of, _ in slices):
        return board
    return board._replace(memory_gb=0)


# ---- slices on boards

_UNIT: Final = 420  # of one slice of a board, divisible by every fraction of a slice


class _Size(NamedTuple):
    """An amount of a board, in units of its slices."""

    compute: int
    memory: int


def _size_of(of: Profile, board: Board) -> _Size:
    """Return the amount of a board in a slice.

    A compute instance gets its part of the GPU instance's memory. A profile unknown to the board
    counts by its name, at most the whole board.
    """
    memory = board.memory_slices(of)
    if memory is None:
        memory = min(board.memory, _SIZES[7].get(of.slices, (of.slices,))[0])
    compute = min(of.compute, board.compute)
    return _Size(compute * _UNIT, memory * _UNIT * of.compute // of.slices)


def milli_of(of: Profile, board: Board) -> int:
    """Return the thousandths of a board's compute in a slice, rounded down."""
    return min(of.compute, board.compute) * 1000 // board.compute


def least_boards(board: Board, slices: Iterable[tuple[Profile, int]]) -> int:
    """Return the minimum number of boards for these slices."""
    compute = memory = media = all_media = most = 0
    for of, count in slices:
        size = _size_of(of, board)
        compute += size.compute * count
        memory += size.memory * count
        # No slice spans two boards: a board holds two slices with 3 of 7.
        a_board = min(board.compute * _UNIT // size.compute, board.memory * _UNIT // size.memory)
        most = max(most, -(-count // a_board))
        media += count if of.suffix == "me" else 0
        all_media += count if of.suffix == "me.all" else 0
    return max(
        most,
        -(-compute // (board.compute * _UNIT)),
        -(-memory // (board.memory * _UNIT)),
        -(-media // board.media),
        all_media,
    )


@lru_cache(maxsize=1024)
def spread(board: Board, slices: tuple[tuple[Profile, int], ...], boards: int) -> Sequence[int]:
    """Lay the slices out on a number of boards, evenly if possible.

    Return each board's thousandths of compute in slices, or nothing if the slices do not fit.
    """
    sizes = sorted(
        (size for of, count in slices for size in [_size_of(of, board)] * count), reverse=True
    )
    loads = _laid_out(board, sizes, boards, evenly=True)
    if not loads:
        loads = _laid_out(board, sizes, boards, evenly=False)
    return [load.compute * 1000 // (board.compute * _UNIT) for load in loads]


def _laid_out(
    board: Board, sizes: Sequence[_Size], boards: int, *, evenly: bool
) -> Sequence[_Size]:
    most = _Size(board.compute * _UNIT, board.memory * _UNIT)
    loads = [_Size(0, 0)] * boards
    for size in sizes:
        fit = [
            at
            for at, load in enumerate(loads)
            if load.compute + size.compute <= most.compute
            and load.memory + size.memory <= most.memory
        ]
        if not fit:
            return ()
        at = min(fit, key=loads.__getitem__) if evenly else fit[0]
        loads[at] = _Size(loads[at].compute + size.compute, loads[at].memory + size.memory)
    return loads
