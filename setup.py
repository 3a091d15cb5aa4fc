"""The engine's inner loops in C, which pyproject.toml cannot describe completely.

A machine without a compiler or Python's headers still installs berthmaster: the extension is
optional, and numpy does the same work more slowly.
"""

from setuptools import Extension, setup

CARDS = Extension(
    "berthmaster.engine.scoring._cards",
    [
        f"services/berthmaster/engine/scoring/_{part}.c"
        for part in ("cards", "gangs", "ranks", "scores")
    ],
    depends=["services/berthmaster/engine/scoring/_cards.h"],
    # No fused multiply and add: scores have the same bits as numpy's. Nobody asks whether something
    # trapped, so several nodes can be scored at once. abi3: one build for all.
    extra_compile_args=["-O3", "-ffp-contract=off", "-fno-trapping-math", "-fwrapv", "-g0"],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[CARDS], options={"bdist_wheel": {"py_limited_api": "cp311"}})
