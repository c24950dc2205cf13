"""Names in the database."""

from typing import Final

DBNAME: Final = "cache.db"
MODE_RAW: Final = 1
