"""What test_warm.py starts."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    """Do as the first argument says."""
    match sys.argv[1]:
        case "tell":
            told = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": str(Path.cwd())}
            print(json.dumps(told | {"pid": os.getpid()}))
            sys.exit(3)
        case "random":
            print(random.random())
        case "wait":
            if "SIGINT" in sys.argv:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            print("here", flush=True)
            time.sleep(600)
        case _:
            raise ValueError("as asked")
