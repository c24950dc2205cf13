"""The models that need no network."""

import pytest

from bb.errors import UpstreamError, WiringError
from bb.messages import Message, ToolCall, Usage
from bb.models.base import Chunk, ModelRequest
from bb.models.fixed import FixedModel
from bb.testing.scripted_model import ScriptedModel

REQUEST = ModelRequest([Message("hi")])


async def said(model: ScriptedModel | FixedModel) -> list[Chunk]:
    return [chunk async for chunk in model.stream(REQUEST)]


async def test_fixed() -> None:
    model = FixedModel("always")
    assert [await said(model), await said(model)] == [["always"], ["always"]]
    assert repr(model) == "FixedModel('always')"


async def test_a_script_gives_its_answers_in_order_and_remembers_the_requests() -> None:
    async def later(request: ModelRequest) -> str:
        return request.messages[0].content.upper()

    call = ToolCall("c1", "lookup")
    model = ScriptedModel("one", ["t", "wo"], call, lambda _: ["three", Usage(9)], later, usage=Usage(1, 2))
    assert [await said(model) for _ in range(5)] == [
        ["one", Usage(1, 2)],
        ["t", "wo", Usage(1, 2)],
        [call, Usage(1, 2)],
        ["three", Usage(9)],
        ["HI", Usage(1, 2)],
    ]
    assert model.requests == [REQUEST] * 5
    with pytest.raises(WiringError, match="its 5 answers are used up, and this is ask 6"):
        await said(model)
    assert model.left == 0


async def test_errors_at_once_bill_nothing_and_later_ones_what_came() -> None:
    model = ScriptedModel(UpstreamError("no"), ["par", UpstreamError("broke")], usage=Usage(1))
    with pytest.raises(UpstreamError, match="no"):
        await said(model)
    chunks = aiter(model.stream(REQUEST))
    assert [await anext(chunks), await anext(chunks)] == ["par", Usage(1)]
    with pytest.raises(UpstreamError, match="broke"):
        await anext(chunks)
