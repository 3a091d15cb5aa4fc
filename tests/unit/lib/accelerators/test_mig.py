"""What MIG profiles are called, and how much of which board a slice has."""

import pytest

from berthmaster.lib.accelerators.mig import (
    Board,
    Profile,
    board_of,
    in_resource,
    least_boards,
    milli_of,
    one_spelling,
    profile,
    spread,
)

A30 = "NVIDIA-A30"
A100_40 = "NVIDIA-A100-SXM4-40GB"
A100_80 = "NVIDIA-A100-SXM4-80GB"
H100 = "NVIDIA-H100-80GB-HBM3"
H200 = "NVIDIA-H200"
B200 = "NVIDIA-B200"
RTX = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"


def of(name: str) -> Profile:
    found = profile(name)
    assert found is not None, name
    return found


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        (("1g.10gb",), "1g.10gb"),
        (("1g.10gb.me", "1g.10gb-me", "1g.10gb+me"), "1g.10gb.me"),
        (("1g.24gb.me.all", "1g.24gb+me.all", "1g.24gb-me-all"), "1g.24gb.me.all"),
        (("2g.48gb.gfx", "2g.48gb-gfx", "2g.48gb+gfx"), "2g.48gb.gfx"),
        (("1c.3g.40gb+me", "1c.3g.40gb.me"), "1c.3g.40gb.me"),
        (("3c.3g.40gb", "3g.40gb"), "3g.40gb"),
    ],
)
def test_profile_all_spellings_become_one(spellings: tuple[str, ...], name: str) -> None:
    assert {profile(each) for each in spellings} == {of(name)}
    assert {one_spelling(each) for each in spellings} == {name}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "huge",
        "8g.80gb",
        "0g.10gb",
        "1g.0gb",
        "9g.1tb",
        "1g.10gb\n",
        "1G.10GB",
        "1g.10gb+",
        "1g.10gb+xx",
        "1g.10gb+me+me",
        "1g.10gb.me.",
        "1g.10gb me",
        "3c.1g.10gb",
        "mig-1g.10gb",
    ],
)
def test_profile_of_unknown_spelling_is_none(name: str) -> None:
    assert profile(name) is None
    assert one_spelling(name) == name


def test_in_resource_is_a_name_that_kubernetes_takes() -> None:
    assert in_resource("1g.10gb+me") == "1g.10gb.me"
    assert in_resource("1g.10gb-me") == "1g.10gb.me"
    assert in_resource("1g.24gb-me") == "1g.24gb-me"  # as RTX PRO boards have it


# Board, what its labels say of its memory in MiB, and how many slices of a profile it has.
HAS = [
    (A30, 24_576, {"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1}),
    (
        A100_40,
        40_960,
        {"1g.5gb": 7, "1g.5gb+me": 1, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "7g.40gb": 1},
    ),
    (A100_80, 81_920, {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1}),
    (H100, 81_559, {"1g.10gb": 7, "1g.10gb+me": 1, "1g.20gb": 4, "3g.40gb": 2, "7g.80gb": 1}),
    ("NVIDIA-H100-NVL", 95_830, {"1g.12gb": 7, "1g.24gb": 4, "3g.47gb": 2, "7g.94gb": 1}),
    ("NVIDIA-GH200-480GB", 97_871, {"1g.12gb": 7, "1g.24gb": 4, "3g.48gb": 2, "7g.96gb": 1}),
    ("NVIDIA-H20", 97_871, {"1g.12gb": 7, "2g.24gb": 3, "3g.48gb": 2, "4g.48gb": 1}),
    (H200, 143_771, {"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "7g.141gb": 1}),
    (B200, 183_359, {"1g.23gb": 7, "1g.45gb": 4, "2g.45gb": 3, "3g.90gb": 2, "7g.180gb": 1}),
    ("NVIDIA-GB200", 189_471, {"1g.24gb": 7, "1g.47gb": 4, "3g.95gb": 2, "7g.189gb": 1}),
    ("NVIDIA-B300-SXM6-AC", 275_040, {"1g.34gb": 7, "2g.67gb": 3, "3g.135gb": 2, "7g.269gb": 1}),
    (
        RTX,
        97_887,
        {
            "1g.24gb": 4,
            "1g.24gb+gfx": 4,
            "1g.24gb-me": 4,
            "1g.24gb+me.all": 1,
            "2g.48gb": 2,
            "4g.96gb": 1,
        },
    ),
    ("NVIDIA-RTX-PRO-5000-Blackwell", 48_935, {"1g.24gb": 2, "2g.48gb": 1}),
]


@pytest.mark.parametrize(("model", "memory_mib", "slices"), HAS)
def test_least_boards_of_a_full_board_is_one(
    model: str, memory_mib: int, slices: dict[str, int]
) -> None:
    for board in (board_of(model, memory_mib), board_of(model)):
        for name, count in slices.items():
            assert board.memory_slices(of(name)) is not None, (board, name)
            assert least_boards(board, [(of(name), count)]) == 1, (board, name)
            assert least_boards(board, [(of(name), count + 1)]) == 2, (board, name)


@pytest.mark.parametrize(
    ("model", "name", "milli"),
    [
        (A30, "1g.6gb", 250),
        (A30, "2g.12gb", 500),
        (A30, "4g.24gb", 1000),
        (RTX, "1g.24gb", 250),
        ("NVIDIA-GB200", "1g.24gb", 142),
        (H100, "3g.40gb", 428),
        (H100, "1c.3g.40gb", 142),
    ],
)
def test_milli_of_a_slice_follows_its_board(model: str, name: str, milli: int) -> None:
    assert milli_of(of(name), board_of(model)) == milli


@pytest.mark.parametrize(
    ("model", "memory_mib", "name"),
    [
        (A100_40, 40_960, "2g.20gb"),
        (A100_80, 0, "1g.5gb"),
        (A30, 0, "3g.20gb"),
        (RTX, 0, "7g.96gb"),
    ],
)
def test_memory_slices_of_another_boards_profile_is_none(
    model: str, memory_mib: int, name: str
) -> None:
    assert board_of(model, memory_mib).memory_slices(of(name)) is None


def test_board_of_unknown_model_has_sevenths() -> None:
    assert board_of("NVIDIA-R100") == Board(7, 8)
    assert board_of("A300") == Board(7, 8)  # no A30
    assert board_of("a100 80g").memory_gb == 80


def test_spread_lays_slices_out_evenly_and_refuses_too_many() -> None:
    h100 = board_of(H100)
    assert list(spread(h100, ((of("3g.40gb"), 16),), 8)) == [857] * 8
    mixed = ((of("1g.10gb"), 6), (of("2g.20gb"), 4))
    assert list(spread(h100, mixed, 2)) == [1000, 1000]
    assert not spread(h100, ((of("3g.40gb"), 5),), 2)
    # Evenly does not fit here, one board after the other does: 4 + 3 and 2 + 2 + 2 + 1 of 7.
    tight = ((of("4g.40gb"), 1), (of("3g.40gb"), 1), (of("2g.20gb"), 3), (of("1g.10gb"), 1))
    assert sorted(spread(h100, tight, 2)) == [1000, 1000]
