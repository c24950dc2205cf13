"""What the `bb` command does."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TypedDict

import bb


class _Options(TypedDict, total=False):
    default: str
    grace: timedelta
    debug: bool
    inspector: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit status, which is 2 when it was used wrongly."""
    parser = argparse.ArgumentParser(prog="bb", description="Flows that may die anywhere.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve the flows of an app over HTTP")
    serve.add_argument("app", metavar="module:app", help="where the bb.App is, or what its asgi() gave")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8080)
    serve.add_argument("--default", metavar="FLOW", help="the flow for models that are none")
    serve.add_argument("--grace", type=float, metavar="SECONDS", help="for runs to end at a shutdown (default: 5)")
    serve.add_argument("--inspector", action="store_true", help="show the runs at /runs, to this machine only")
    serve.add_argument("--debug", action="store_true", help="tell clients what went wrong")
    arguments = parser.parse_args(argv)
    try:
        _serve(arguments)
    except (bb.WiringError, bb.UnknownFlow) as error:
        sys.stderr.write(f"bb: {error}\n")
        return 2
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    found = _load(arguments.app)
    options = _options(arguments)
    service = found.asgi(**options) if isinstance(found, bb.App) else found
    from bb.serve import Service
    from bb.serve.server import serve

    if not isinstance(service, Service):
        raise bb.WiringError(f"{arguments.app} is a {type(found).__name__}", remedy="name a bb.App, or app.asgi(...)")
    if options and service is found:
        given = ", ".join(f"--{name}" for name in options)
        raise bb.WiringError(f"{given} is for a bb.App; {arguments.app} is made by asgi(): say it there")
    if not 0 <= arguments.port < 2**16:
        raise bb.WiringError(f"--port {arguments.port} is no port", remedy="give 0 to 65535; 0 takes a free one")
    serve(service, host=arguments.host, port=arguments.port)


def _options(arguments: argparse.Namespace) -> _Options:
    """What was said of how an app is to be served."""
    said = _Options()
    if arguments.default is not None:
        said["default"] = arguments.default
    if arguments.grace is not None:
        try:
            said["grace"] = timedelta(seconds=arguments.grace)
        except (ValueError, OverflowError) as error:
            raise bb.WiringError(f"--grace {arguments.grace} is no length of time", remedy="give seconds") from error
    if arguments.debug:
        said["debug"] = True
    if arguments.inspector:
        said["inspector"] = True
    return said


def _load(place: str) -> object:
    """The object at `module:name`.

    Raises:
        WiringError: there is none.
    """
    module_name, _, path = place.partition(":")
    if not module_name or not path:
        raise bb.WiringError(f"{place!r} is no place of an app", remedy="write module:app")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - sys.path holds text
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there, and lacks something itself
        raise bb.WiringError(f"there is no module {module_name!r}", remedy="run bb where it can be imported") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise bb.WiringError(f"{module_name!r} has no {path!r}")
        found = getattr(found, name)
    return found
