"""Would this release start with that configuration? Runs on its own in the release's Python, before anything stops.

  python flag_check.py vllm.yaml

Takes the way of ``vllm serve --config`` up to the point where it would bind its port: the release's parser, its checks
of parser names and plugins, and its engine configuration, which refuses unknown ``VLLM_`` variables too. No weights are
read and no GPU memory is taken. Prints one JSON object, ``{"refused": CAUSE or null}``, as its last line.

Tried on 0.32.0; in 0.23.0 and 0.33.0 the same names are in other modules, which is why they are looked for and not
imported from one place.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import pathlib
import sys
from typing import Any

# pydantic says "1 validation error for SpeculativeConfig" first and the reason on the lines after it.
_LINES = 4


def main(config: str) -> None:
    """Check one configuration file and print the outcome."""
    errors = io.StringIO()
    refused = None
    try:
        # argparse writes its reason to standard error and leaves with 2.
        with contextlib.redirect_stderr(errors):
            _check(config)
    except SystemExit:
        refused = _last_line(errors.getvalue()) or "the parser refused without a reason"
    except Exception as error:  # whatever the release raises is its refusal
        refused = f"{type(error).__name__}: {_first_lines(error)}"
    print(json.dumps({"refused": refused}))


def _check(config: str) -> None:
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    parsers = importlib.import_module("vllm.utils.argparse_utils")
    (command,) = serve.cmd_init()
    parser = parsers.FlexibleArgumentParser(prog="vllm")
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    args = parser.parse_args(["serve", "--config", config])
    command.validate(args)
    # As the start does it (setup_server), without its socket; but a start only logs that it could not import a plugin,
    # and serves without it (0.32.0: import_tool_parser).
    for kind in ("tool", "reasoning"):
        plugin = getattr(args, f"{kind}_parser_plugin", None)
        if plugin and len(plugin) > 3:
            _import(plugin)
    _named("validate_api_server_args")(args)
    engine = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(args)
    usage = importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    engine.create_engine_config(usage_context=usage)


def _import(plugin: str) -> None:
    """Run a plugin's file, which registers its parsers; whatever it raises is for the operator."""
    spec = importlib.util.spec_from_file_location(pathlib.PurePath(plugin).stem, plugin)
    if spec is None or spec.loader is None:
        raise ImportError(f"{plugin} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _named(name: str) -> Any:  # noqa: ANN401 - functions and classes of vLLM, which has no types here
    """Return what some module of vLLM that is loaded by now calls ``name``."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("vllm.") and name in vars(module):
            return vars(module)[name]
    raise LookupError(f"this release has no {name}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:_LINES])


if __name__ == "__main__":
    main(sys.argv[1])
