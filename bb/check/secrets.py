"""Rules of secrets: the tree of a durable flow is stored, so it must hold none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from attrs import fields

from bb.check.scene import Rule, Scene
from bb.check.sites import Site
from bb.check.spots import Spot
from bb.flows.expressions import Lit
from bb.redaction import has_secrets, redacted


def _secret_in_statement(site: Site, _: Scene) -> Iterator[str]:
    yield from _told(site.body)


def _secret_in_value(spot: Spot, _: Scene) -> Iterator[str]:
    if spot.role != "statement":  # then it is a site as well
        yield from _told(spot.value)


def _told(part: Any) -> Iterator[str]:
    if not has_secrets():
        return
    texts = [value for one in fields(type(part)) if isinstance(value := getattr(part, one.name), str)]
    if isinstance(part, Lit):
        texts.append(repr(part.value))
    if any(redacted(text) != text for text in texts):
        yield "it holds a registered secret, which would be stored with the flow; let an op fetch the secret when it runs"


SITES: Final = (Rule("secret", _secret_in_statement),)
SPOTS: Final = (Rule("secret", _secret_in_value),)
