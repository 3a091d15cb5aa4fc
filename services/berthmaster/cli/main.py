"""The entry of `berth`: services start at once, everything else goes through the commands.

`serve` is taken out before click is imported, as images of services do not have it.
"""

import sys


def main() -> None:
    """The console script."""
    argv = sys.argv[1:]
    if argv[:1] == ["serve"]:
        from berthmaster.cli.serve import serve

        sys.exit(serve(argv[1:]))
    try:
        from berthmaster.cli.commands import berth
    except ModuleNotFoundError as error:
        sys.stderr.write(f"berth: {error.name} is missing; pip install 'berthmaster[cli]'\n")
        sys.exit(3)
    berth(prog_name="berth")


if __name__ == "__main__":
    main()
