"""What bb tells the operator of a program, through structlog; registered secrets are cut out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb.redaction import redacted

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


def warning(event: str, **fields: object) -> None:
    """Log what went wrong and did a run no harm; `fields` say where."""
    _logger().warning(redacted(event), **_shown(fields))


def error(event: str, **fields: object) -> None:
    """Log what went wrong and wants somebody to look; `fields` say where."""
    _logger().error(redacted(event), **_shown(fields))


def _logger() -> BoundLogger:
    import structlog  # on first use: `import bb` stays light

    logger: BoundLogger = structlog.get_logger("bb")
    return logger


def _shown(fields: dict[str, object]) -> dict[str, object]:
    """Numbers as they are, anything else as text: a secret may hide in the middle of any object."""
    return {
        name: value if value is None or isinstance(value, int | float) else redacted(str(value))
        for name, value in fields.items()
    }
