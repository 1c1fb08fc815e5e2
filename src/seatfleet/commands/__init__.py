"""One module per ``seatctl`` verb.

Each has ``HELP`` (one line), ``configure(parser)`` and ``run(args) -> int`` (the exit code). A module's name is the
verb, with ``_`` for ``-``. Heavy imports belong inside ``run``: ``seatctl --help`` reads every module here.
"""
