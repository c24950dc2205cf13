"""`Module`: what a source text holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias, final

from attrs import field, frozen

from bb.flows.tree import DurableFlow, NamedFlow

Named: TypeAlias = NamedFlow | DurableFlow


def _flows(flows: Mapping[str, Named]) -> Mapping[str, Named]:
    return MappingProxyType(dict(flows))


def _items(flows: Mapping[str, Named]) -> tuple[tuple[str, Named], ...]:
    return tuple(flows.items())


@final
@frozen
class Module:
    """The flows of one source text by id, in the order they stand there: `module["onboarding"]`, `for id in module`."""

    flows: Mapping[str, Named] = field(converter=_flows, eq=_items, factory=dict)

    def __getitem__(self, id: str) -> Named:
        """The flow of that id.

        Raises:
            KeyError: there is none.
        """
        try:
            return self.flows[id]
        except KeyError:
            raise KeyError(f"there is no flow {id!r}; there is {', '.join(self.flows) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.flows)

    def __len__(self) -> int:
        return len(self.flows)
