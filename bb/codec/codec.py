"""`Codec`: values to bytes and back, and what makes two values the same."""

from __future__ import annotations

import hashlib
from typing import Final

from bb.codec.reader import Reader
from bb.codec.text import dumps, loads, sorted_text
from bb.codec.types import Types
from bb.codec.writer import Refused, Writer
from bb.errors import BBError, CorruptRecord, NotSavable, TooLarge
from bb.redaction import has_secrets, redacted

MEBIBYTE: Final = 2**20


class Codec:
    """Keeps exactly what it is given, or refuses when it is saved, naming the part.

    Kept are None, bool, int, float, str, bytes, list, tuple, set, frozenset, dict with any of these as keys, datetime, date,
    time, timedelta, Decimal, UUID, paths, and what `types` holds; of exactly these types, for a subclass would come back as
    less than it was. Registered secrets are cut out of all text. `limit` is the most bytes of one value.
    """

    def __init__(self, types: Types, limit: int = 16 * MEBIBYTE) -> None:
        self.types = types
        self.limit = limit
        self._reader = Reader(types)

    def dump(self, value: object, root: str = "result") -> object:
        """The value as plain data for JSON, a snapshot: later changes of the value do not reach it.

        Raises:
            NotSavable: a part cannot be kept; `root` is what the value is called in the path of that part.
            TooLarge: it is surely over the limit; `encode` counts exactly.
        """
        return _write(Writer(self.types, self.limit, mask=has_secrets(), compare=False), value, root)

    def fingerprint(self, value: object) -> str:
        """What tells a value from others (see `fingerprint`), of the classes that can be saved too.

        Raises:
            NotSavable: a part has no form that could be compared.
        """
        return fingerprint(value, self.types)

    def load(self, plain: object) -> object:
        """The value that plain data stands for, new in all its mutable parts.

        Raises:
            CorruptRecord: it was not made by `dump`, or names a class that is not registered.
        """
        try:
            return self._reader.read(plain)
        except BBError:
            raise
        except RecursionError as error:
            raise CorruptRecord("the record is nested too deeply") from error
        except Exception as error:  # classes of the user's may raise anything
            raise CorruptRecord(f"the record does not fit its own form: {error!r}") from error

    def encode(self, value: object, root: str = "result") -> bytes:
        """The value as bytes.

        Raises:
            NotSavable: a part cannot be kept.
            TooLarge: the bytes are more than the limit.
        """
        data = dumps(self.dump(value, root))
        if len(data) > self.limit:
            raise TooLarge(
                f"{root} takes {len(data)} bytes, more than {self.limit}",
                part=root,
                remedy="save less, or raise the limit of the app",
            )
        return data

    def decode(self, data: bytes) -> object:
        """The value that bytes stand for.

        Raises:
            CorruptRecord: they were not made by `encode`, or name a class that is not registered.
        """
        return self.load(loads(data))


def canonical(value: object, types: Types | None = None) -> bytes:
    """Bytes that are equal for equal values of equal types, in every process; 1, 1.0 and True differ.

    Only to compare and to hash: classes need no registration (`types` serves those with a dump function of their own), fields
    that do not count in equality are left out, and secrets are not cut out.

    Raises:
        NotSavable: a part has no form that could be compared.
    """
    plain = _write(Writer(types, 2**62, mask=False, compare=True), value, "value")
    return sorted_text(plain).encode("utf-8", "surrogatepass")


def fingerprint(value: object, types: Types | None = None) -> str:
    """32 hex digits that stand for a value: a hash of its canonical bytes.

    Raises:
        NotSavable: a part has no form that could be compared.
    """
    return hashlib.blake2b(canonical(value, types), digest_size=16).hexdigest()


def _write(writer: Writer, value: object, root: str) -> object:
    try:
        return writer.write(value)
    except Refused as refused:
        part = redacted(root + "".join(reversed(refused.where)))
        kind = TooLarge if refused.size else NotSavable
        raise kind(f"{part} is {refused}", part=part, remedy=refused.remedy) from refused.__cause__
    except RecursionError:
        raise NotSavable(f"{root} is nested too deeply", part=root, remedy="save a flatter value") from None
