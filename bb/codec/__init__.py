"""Python values to bytes and back: exact, or refused when they are saved.

The saved form is JSON. None, bool, int, float, str, list and dict with text keys are themselves; everything else is an
object `{"~": tag, …}`. A dict of the user's that has a key `~` is written with the tag `dict`, so it is never mistaken.
"""

from bb.codec.codec import Codec, canonical, fingerprint
from bb.codec.text import dumps, loads
from bb.codec.types import Types

__all__ = ["Codec", "Types", "canonical", "dumps", "fingerprint", "loads"]
