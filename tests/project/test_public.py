"""The public face: what `bb` exports, what it says of itself, and what importing it costs."""

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import ModuleType

import pytest

import bb

LAZY = [
    "anthropic",
    "anyio",
    "cattrs",
    "diskcache",
    "lark",
    "openai",
    "opentelemetry",
    "pytest",
    "sse_starlette",
    "starlette",
    "structlog",
    "uvicorn",
]


MODULES = ["bb", *(info.name for info in pkgutil.walk_packages(bb.__path__, "bb."))]


def is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


def defined_in(module: ModuleType) -> Iterator[tuple[str, type]]:
    """The public classes that a module defines itself."""
    for name, member in vars(module).items():
        if inspect.isclass(member) and member.__module__ == module.__name__ and not name.startswith("_"):
            yield name, member


def explained() -> set[str]:
    """Names of methods whose meaning a protocol of bb gives; those who implement it need not repeat it."""
    modules = map(importlib.import_module, MODULES)
    protocols = (cls for module in modules for _, cls in defined_in(module) if is_protocol(cls))
    return {name for cls in protocols for name, member in vars(cls).items() if inspect.getdoc(member)}


def undocumented(module: ModuleType, known: set[str]) -> Iterator[str]:
    if not module.__doc__:
        yield module.__name__
    for name, member in vars(module).items():
        own = inspect.isfunction(member) and member.__module__ == module.__name__
        if own and not name.startswith("_") and not member.__doc__:
            yield f"{module.__name__}.{name}"
    for name, cls in defined_in(module):
        if not cls.__dict__.get("__doc__"):
            yield f"{module.__name__}.{name}"
        for attribute, member in vars(cls).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            public = inspect.isfunction(function) and not attribute.startswith("_")
            if public and attribute not in known and not inspect.getdoc(function):
                yield f"{module.__name__}.{name}.{attribute}"


def test_exports_are_sorted_and_unique() -> None:
    # constants, then classes, then functions: the order that ruff keeps
    assert bb.__all__ == sorted(set(bb.__all__), key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_exports_can_be_imported() -> None:
    namespace: dict[str, object] = {}
    exec("from bb import *", namespace)
    assert set(bb.__all__) <= namespace.keys()
    # also those that are imported on first use
    listed = subprocess.run(
        [sys.executable, "-c", "import bb; print(*dir(bb))"], capture_output=True, text=True, check=True
    )
    assert set(bb.__all__) <= set(listed.stdout.split())


def test_every_public_name_of_bb_is_exported() -> None:
    public = {
        name for name, value in vars(bb).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - {"annotations", "TYPE_CHECKING"} <= set(bb.__all__)


def test_every_error_is_exported() -> None:
    from bb import errors

    assert {name for name, cls in defined_in(errors) if issubclass(cls, BaseException)} <= set(bb.__all__)


def test_an_exported_name_is_defined_in_bb() -> None:
    foreign = {
        name
        for name in bb.__all__
        if (inspect.isclass(value := getattr(bb, name)) or inspect.isfunction(value))
        and value.__module__.partition(".")[0] != "bb"
    }
    assert foreign == set()


@pytest.mark.parametrize("name", MODULES)
def test_whatever_is_public_has_a_docstring(name: str) -> None:
    assert list(undocumented(importlib.import_module(name), explained())) == []


def test_import_bb_is_light() -> None:
    code = f"import sys, json, bb; print(json.dumps([name for name in {LAZY} if name in sys.modules]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == []


def test_the_defaults_are_those_that_were_promised() -> None:
    def defaults(of: Callable[..., object]) -> dict[str, object]:
        return {name: one.default for name, one in inspect.signature(of).parameters.items()}

    app = defaults(bb.App.__init__)
    assert (app["retention"], app["lease"]) == (timedelta(days=7), timedelta(seconds=30))
    assert app["value_limit"] == 16 * 2**20
    for starts in (bb.App.run, bb.App.stream):
        assert defaults(starts)["wait"] == timedelta(seconds=60)
        assert defaults(starts)["detach"] is False
    assert defaults(bb.App.stop)["grace"] == timedelta(seconds=5)
    options = bb.DurableOptions()
    assert (options.retries, options.ttl) == (0, None)
    assert not options.forward_compatible and not options.resume_on_reregister
