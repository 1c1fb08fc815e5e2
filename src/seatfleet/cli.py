# PYTHON_ARGCOMPLETE_OK
"""The command line tool ``seatctl``: one verb per module in :mod:`seatfleet.commands`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

from seatfleet import __version__, commands
from seatfleet.core.problems import ProblemsError


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser with one sub-parser per verb found in :mod:`seatfleet.commands`.

    With ``only`` the other verbs are left out: importing all of them took half of what a timed probe costs.
    """
    parser = argparse.ArgumentParser(prog="seatctl", description="Seats of patched vLLM: check, probe, measure.")
    parser.add_argument("--version", action="version", version=f"seatctl {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    found = sorted(pkgutil.iter_modules(commands.__path__), key=lambda item: item.name)
    known = [info for info in found if info.name.replace("_", "-") == only]
    for info in known or found:
        module = importlib.import_module(f"{commands.__name__}.{info.name}")
        verb = verbs.add_parser(
            info.name.replace("_", "-"),
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(verb)
        verb.set_defaults(run=module.run)
    return parser


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell's question when it asks for completions (`eval "$(register-python-argcomplete seatctl)"`)."""
    # The shell says so in the environment; nobody else pays for the import, and hosts do without the package.
    if "_ARGCOMPLETE" in os.environ:
        with contextlib.suppress(ImportError):
            importlib.import_module("argcomplete").autocomplete(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Exit codes beside the verb's own: 2 for bad input, with the full list of problems on standard error; 1 for a file or
    device that cannot be read or written; 130 for Ctrl-C; 141 for a reader of the output that went.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # A shell that asks for completions gives no words: then every verb is there.
    parser = build_parser(words[0] if words else None)
    complete(parser)
    args = parser.parse_args(words)
    try:
        code = int(args.run(args))
        if sys.stdout:  # None with `>&-`; else what is wrong with it is found here, and not by the interpreter's end
            sys.stdout.flush()
        return code
    except ProblemsError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        print(f"seatctl {args.verb}: {error}", file=sys.stderr)
        _drop_output()
        return 1


def _drop_output() -> None:
    """Have what is left in the buffer go nowhere: the interpreter would try again, and say so."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
