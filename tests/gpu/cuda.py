"""A process on a GPU, through the driver alone: no toolkit, no framework. Run as a program:

    python -m tests.gpu.cuda

It answers each line on its input with one on its output: `hold MIB` takes memory; `spin SECONDS
BLOCKS` keeps so many blocks busy (0 = several on each SM); `sms` tells how many it may use; `fault`
writes where nothing is. Whatever fails is told by its name.
"""

import ctypes
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Self

LIBRARY = "libcuda.so.1"
SM_COUNT = 16  # an attribute of a device
CYCLES = 20_000_000  # some 10 ms
THREADS = 256
LIMIT_S = 60.0
KERNELS = b"""
.version 6.4
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
  .reg .u64 %r<4>;
  .reg .pred %p;
  ld.param.u64 %r1, [cycles];
  mov.u64 %r2, %clock64;
LOOP:
  mov.u64 %r3, %clock64;
  sub.u64 %r3, %r3, %r2;
  setp.lt.u64 %p, %r3, %r1;
  @%p bra LOOP;
  ret;
}
.visible .entry poke(.param .u64 where)
{
  .reg .u64 %r1;
  .reg .u32 %v;
  ld.param.u64 %r1, [where];
  mov.u32 %v, 1;
  st.global.u32 [%r1], %v;
  ret;
}
"""


class Refused(Exception):
    """The driver refused a call; the text is its name for why."""


class Device:
    """The first GPU, with a context of ours."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL(LIBRARY)
        self._call("cuInit", 0)
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(module), KERNELS)
        self._module = module

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise Refused((text.value or b"?").decode())

    def sms(self) -> int:
        found = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), SM_COUNT, self._device)
        return found.value

    def hold(self, mib: int) -> None:
        at = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(mib << 20))

    def run(self, kernel: bytes, argument: int, blocks: int) -> None:
        function, value = ctypes.c_void_p(), ctypes.c_uint64(argument)
        self._call("cuModuleGetFunction", ctypes.byref(function), self._module, kernel)
        given = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        grid = (blocks, 1, 1, THREADS, 1, 1)
        self._call("cuLaunchKernel", function, *grid, 0, None, given, None)
        self._call("cuCtxSynchronize")

    def obey(self, verb: str, *numbers: float) -> str:
        match verb, numbers:
            case "sms", ():
                return str(self.sms())
            case "hold", (mib,):
                self.hold(int(mib))
            case "spin", (seconds, blocks):
                until_s = time.monotonic() + seconds
                while time.monotonic() < until_s:
                    self.run(b"spin", CYCLES, int(blocks) or 4 * self.sms())
            case "fault", ():
                self.run(b"poke", 1 << 46, 1)
            case _:
                return f"no such verb: {verb}"
        return "ok"


class Process:
    """One of these, as somebody who asks it sees it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        argv = [sys.executable, "-m", "tests.gpu.cuda"]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.pid = self._process.pid

    def begin(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def do(self, order: str) -> str:
        self.begin(order)
        return self.answer()

    def __enter__(self) -> Self:
        assert self.answer() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=LIMIT_S)


def main() -> None:
    device = Device()
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *numbers = line.split()
        try:
            told = device.obey(verb, *map(float, numbers))
        except Refused as why:
            told = str(why)
        print(told, flush=True)


if __name__ == "__main__":
    main()
