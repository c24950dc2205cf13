"""`Doc`: words for a model, beside the type of a field."""

from __future__ import annotations

from attrs import frozen


@frozen
class Doc:
    """What a field means, for the model that fills it: `Annotated[str, bb.Doc("ISO country code")]`."""

    text: str
