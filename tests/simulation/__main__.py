"""Tells the story of a seed: python -m tests.simulation SEED [--pace slow] [--without KIND,KIND]
[--whole]."""

import argparse
import sys

from tests.simulation.faults import KINDS
from tests.simulation.pace import PACES
from tests.simulation.world import reduced, run


def main(argv: list[str]) -> int:
    """0 if the seed is clean, 1 with its story if it is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--without", default="", help=f"kinds of faults, of {', '.join(KINDS)}")
    parser.add_argument("--pace", default="fast", choices=PACES, help="see pace.py")
    parser.add_argument("--whole", action="store_true", help="do not look for fewer faults")
    args = parser.parse_args(argv)
    without = [kind for kind in args.without.split(",") if kind]
    if unknown := sorted(set(without) - set(KINDS)):
        parser.error(f"no kind of fault is called {unknown[0]}; there are {', '.join(KINDS)}")
    pace = PACES[args.pace](args.seed)
    outcome = run(args.seed, without, pace=pace)
    if outcome.finding is None:
        print(f"seed {args.seed} is clean: {outcome.events} events in {outcome.passed_s:.0f} s")
        print(f"faults: {', '.join(outcome.kinds)}")
        for what, count in sorted(outcome.seen.items()):
            print(f"{count:6} {what}")
        return 0
    if not args.whole and not without:
        outcome = reduced(outcome, pace=pace)
    print("\n".join(outcome.story))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
