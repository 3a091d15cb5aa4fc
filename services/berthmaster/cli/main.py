"""The entry of `berth`."""

from berthmaster.cli.commands import berth


def main() -> None:
    """The console script."""
    berth(prog_name="berth")


if __name__ == "__main__":
    main()
