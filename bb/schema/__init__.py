"""A Python type as a JSON schema, and JSON made into values of that type, strictly."""

from bb.schema.doc import Doc
from bb.schema.schema import Schema, finite, no_constant, structure
from bb.schema.writer import same_shape

__all__ = ["Doc", "Schema", "finite", "no_constant", "same_shape", "structure"]
