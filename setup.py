"""What is in C: the engine's inner loops and libberthcuda. pyproject.toml cannot describe them.

A machine without a compiler or Python's headers still installs berthmaster: both are optional. Then
numpy does the engine's work more slowly, and `berth serve shares` has no way ``intercept``.
"""

from setuptools import Extension, setup

CARDS = Extension(
    "berthmaster.lib.engine.scoring._cards",
    [
        f"services/berthmaster/lib/engine/scoring/_{part}.c"
        for part in ("cards", "gangs", "ranks", "scores")
    ],
    depends=["services/berthmaster/lib/engine/scoring/_cards.h"],
    # No fused multiply and add: scores have the same bits as numpy's. Nobody asks whether something
    # trapped, so several nodes can be scored at once. abi3: one build for all.
    extra_compile_args=["-O3", "-ffp-contract=off", "-fno-trapping-math", "-fwrapv", "-g0"],
    py_limited_api=True,
    optional=True,
)

# No module: a library for LD_PRELOAD, which `berth serve shares` puts into containers.
CUDA = Extension(
    "berthmaster.worker.shares._berthcuda",
    ["services/berthmaster/worker/shares/_berthcuda.c"],
    extra_compile_args=["-O2", "-fvisibility=hidden", "-g0"],
    libraries=["dl", "pthread"],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[CARDS, CUDA], options={"bdist_wheel": {"py_limited_api": "cp311"}})
