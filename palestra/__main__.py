"""The entry of `palestra` and `python -m palestra`: sets signal handlers, then runs the command line.

The imports of the command line take a while, and a signal may come meanwhile: so the handlers are set first, and little
is imported here or in palestra/__init__.py.
"""

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def main() -> None:
    """Run the console script.

    A signal ends the process at once, with 128 + n, until a command sets handlers of its own.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: a file of the run would get its number, and all that others print
            os.set_inheritable(place := os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(place, mode))
    for file in (sys.stdout, sys.stderr):  # of paths what is no UTF-8 is written as \\udcff
        file.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        os.getcwd()
    except FileNotFoundError:
        print("the working directory is gone; change to another one: cd FOLDER", file=sys.stderr)
        sys.exit(2)
    from palestra.runtime.limits import GuardedOutput, lack

    sys.stdout = GuardedOutput(sys.stdout)
    try:
        from palestra import cli

        cli.main()
    except Exception as error:  # also of an import, before a command can tell it
        if (line := lack(error)) is None:
            raise
        sys.exit(line)


def _leave(number: int, frame: "FrameType | None") -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
