"""What a line of source text costs to read and to write, and whether a longer text costs more per line.

Run it as `python bench/text.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from common import best, show

from bb.text import format, parse

BLOCK = """\
  @effect(read)
  profile: Number = crm.read(name, plan)
  when profile.visits[0] + 1 > 3 && !done
    memo plan = sales.plan(user: profile.id, limit: 5, tags: ["new", "eu"])
    once "welcome" -> receipt
      send_email(to: profile.mail, text: fmt("Welcome, {name}!"))
  else
    agents researcher, writer(version: "2")
  each item in plan.items -> seen
    retry 3, backoff: linear, delay: 500ms
"""
"""Ten lines, the last of which opens a block for one more."""


def text(lines: int) -> str:
    """A source text of about so many lines, of some statements each."""
    flows = (f"flow f{i}\n" + (BLOCK + "      emit item\n") * 9 for i in range(lines // 100))
    return "\n".join(flows)


def per_line(work: Callable[[], object], lines: int) -> float:
    """Microseconds of the processor per line."""

    def once() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return best(once) / lines * 1e6


def measured(lines: int) -> tuple[float, float]:
    """What reading and writing so many lines takes, per line."""
    source = text(lines)
    module, count = parse(source), source.count("\n")
    return per_line(lambda: parse(source), count), per_line(lambda: format(module), count)


def main() -> None:
    parse("")  # builds the parser
    short, long = measured(1_000), measured(10_000)
    for what, few, many in zip(("parse", "format"), short, long, strict=True):
        show(f"{what}, per line of 1,000", few, "us", "none")
        show(f"{what}, per line of 10,000", many, "us", "none")
        show(f"{what}, 10,000 lines over 1,000, per line", many / few, "x", "about 1: linear")


if __name__ == "__main__":
    main()
