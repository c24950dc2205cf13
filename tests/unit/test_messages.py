"""What travels in a chat."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bb
from bb.messages import SEPARATOR, answered, assistant, spoken, unresolved

counts = st.integers(0, 10**9)
usages = st.builds(bb.Usage, counts, counts, counts, counts, counts)


@attrs.frozen
class Place:
    city: str
    days: int = 1


def test_a_message_is_the_users_unless_it_says_otherwise() -> None:
    assert bb.Message("hi") == bb.Message("hi", "user")
    assert bb.Role("be kind") == bb.Message("be kind", "system")
    assert assistant("yes") == bb.Message("yes").as_("assistant")


def test_builders_copy() -> None:
    base = bb.Message("hi")
    call = bb.ToolCall("c1", "look")
    more = base.with_calls(call).with_calls(bb.ToolCall("c2", "look")).with_results(call.result("found"))
    assert base == bb.Message("hi")
    assert [one.id for one in more.calls] == ["c1", "c2"]
    assert more.is_tool_result
    assert not base.is_tool_result
    with pytest.raises(AttributeError):
        base.content = "x"  # type: ignore[misc]


def test_lists_given_become_tuples() -> None:
    message = bb.Message("", calls=[bb.ToolCall("c", "n")], results=[bb.ToolResult("c")])
    assert message.calls == (bb.ToolCall("c", "n"),)
    assert message.results == (bb.ToolResult("c"),)
    hash(message)
    assert bb.Input([bb.Message("a")]).messages == (bb.Message("a"),)


def test_calls_have_fresh_ids_and_raw_json() -> None:
    ids = {bb.ToolCall.new("look").id for _ in range(100)}
    assert len(ids) == 100
    assert all(id.startswith("call_") and len(id) == 21 for id in ids)
    assert bb.ToolCall.new("look").input == ""
    assert bb.ToolCall.new("look", '{"city": "Rome"}').input == '{"city": "Rome"}'
    assert bb.ToolCall.new("look", {"city": "Rome"}).input == '{"city": "Rome"}'
    with pytest.raises(TypeError):
        bb.ToolCall.new("look", object())


def test_arguments_are_read_strictly() -> None:
    assert bb.ToolCall("c", "look", '{"city": "Rome"}').extract(Place) == Place("Rome")
    for raw in ("", "{}", '{"city": 1}', "not json", "[]"):
        with pytest.raises(bb.SchemaMismatch):
            bb.ToolCall("c", "look", raw).extract(Place)


def test_a_result_is_tied_to_its_call() -> None:
    call = bb.ToolCall("c1", "look")
    assert call.result("found") == bb.ToolResult("c1", "found")
    assert call.result("no", is_error=True) == call.result("no").as_error() == bb.ToolResult("c1", "no", True)


def test_a_call_is_resolved_by_a_result_anywhere_in_the_chat() -> None:
    one, two, three = (bb.ToolCall(id, "look") for id in ("c1", "c2", "c3"))
    chat = [
        bb.Message().with_results(one.result("early")),
        bb.Message(role="assistant").with_calls(one, two),
        bb.Message(role="assistant").with_calls(three),
        bb.Message().with_results(three.result("late")),
    ]
    assert unresolved(chat) == (two,)
    assert set(answered(chat)) == {"c1", "c3"}
    assert unresolved([]) == ()


@given(usages, usages, usages)
def test_usage_adds_up(a: bb.Usage, b: bb.Usage, c: bb.Usage) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + bb.Usage() == a == bb.Usage() + a
    assert (a + b).total == a.total + b.total


def test_total_leaves_out_what_is_part_of_something_else() -> None:
    assert bb.Usage(input=1, output=10, cache_read=100, cache_write=1000, reasoning=7).total == 1111


def test_spoken_is_the_assistants_text_joined_by_blank_lines() -> None:
    chat = [bb.Message("q"), assistant("one"), assistant(""), bb.Role("r"), assistant("two")]
    assert spoken(chat) == "one" + SEPARATOR + "two"
    assert SEPARATOR == "\n\n"
    assert spoken([]) == spoken([bb.Message("q")]) == ""
