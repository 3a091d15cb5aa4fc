"""What pyproject.toml cannot say: the engine's inner loops are compiled where that can be done.

An optional extension that cannot be built is a warning. Without it berthmaster works, slower. A
wheel takes what scripts/compiled.py has made of what decides, if BERTH_COMPILED names the folder.
"""

import os
import shutil

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = os.environ.get("BERTH_COMPILED", "")


class WithCompiled(build_ext):
    """Modules that are compiled lie beside their sources and are what Python imports."""

    def run(self) -> None:
        super().run()
        if COMPILED and not self.inplace:
            shutil.copytree(COMPILED, self.build_lib, dirs_exist_ok=True)


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

# Modules that are compiled are for one Python.
TAG = {} if COMPILED else {"bdist_wheel": {"py_limited_api": "cp311"}}
setup(ext_modules=[CARDS], cmdclass={"build_ext": WithCompiled}, options=TAG)
