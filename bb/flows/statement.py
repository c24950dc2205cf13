"""What the statements of the language have in common: their bodies, and how values and names are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field

from bb.errors import WiringError
from bb.flows.base import Nameable, flat
from bb.models.base import Model

if TYPE_CHECKING:
    pass


def as_names(names: object) -> tuple[str, ...]:
    """Names, given as such or as what bears them.

    Raises:
        WiringError: a single text was given.
    """
    if isinstance(names, str):
        raise WiringError(f"{names!r} is one name", remedy="give a list of names")
    return tuple(str(getattr(name, "name", name)) for name in names)  # type: ignore[attr-defined]  # whatever can be iterated


class Statement(Nameable):
    """A node whose bodies are given as further arguments; a body of several statements is a tuple."""

    __slots__ = ()

    def _made(self, *values: object, model: Model | None, **named: object) -> None:
        self.__attrs_init__(*values, **named, model=model)  # type: ignore[attr-defined]  # attrs makes it for init=False


def body_field() -> Any:
    """A body that must be given."""
    return field(converter=flat)


def bodies_field() -> Any:
    """A body that may be left out."""
    return field(converter=flat, default=())
