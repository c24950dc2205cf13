"""Chats that providers accept."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from bb.messages import Message, ToolCall, ToolResult, assistant
from bb.models.provider import retry_after, unwrapped
from bb.models.transcript import INTERRUPTED, settled

CALL = ToolCall("c1", "lookup")


def test_a_chat_in_order_stays_as_it_is() -> None:
    chat = [
        Message("hi"),
        assistant("").with_calls(CALL),
        Message(role="tool").with_results(CALL.result("x")),
        Message("ok"),
    ]
    assert list(settled(chat)) == chat


def test_a_call_without_result_is_answered_as_interrupted() -> None:
    chat = [Message("hi"), assistant("").with_calls(CALL), Message("well?")]
    assert list(settled(chat)) == [
        *chat[:2],
        Message(role="tool", results=[CALL.result(INTERRUPTED, is_error=True)]),
        chat[2],
    ]


def test_a_late_result_moves_behind_its_call() -> None:
    other = ToolCall("c2", "lookup")
    chat = [
        assistant("").with_calls(CALL, other),
        Message(role="tool").with_results(CALL.result("1")),
        Message("by the way"),
        Message("and", role="tool").with_results(other.result("2")),
    ]
    assert list(settled(chat)) == [
        chat[0],
        Message(role="tool", results=[CALL.result("1"), other.result("2")]),
        chat[2],
        Message("and"),
    ]


def test_a_result_without_call_becomes_text() -> None:
    assert list(settled([Message(role="tool").with_results(ToolResult("c9", "x"))])) == [
        Message("Result of tool call c9: x")
    ]


def test_ids_used_again_in_each_round_pair_in_order() -> None:
    first, second = (
        Message(role="tool").with_results(CALL.result("1")),
        Message(role="tool").with_results(CALL.result("2")),
    )
    chat = [assistant("").with_calls(CALL), first, assistant("").with_calls(CALL), second]
    assert list(settled(chat)) == chat


def test_retry_after() -> None:
    assert retry_after({}) is None
    assert retry_after({"retry-after": "2.5"}) == 2.5
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    for never in ("9" * 400, "nan", "inf", "-5"):
        assert retry_after({"retry-after": never}) is None
    for never in ("inf", "nan", "1e400"):
        assert retry_after({"retry-after-ms": never}) is None
    later = retry_after({"retry-after": format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)})
    assert later is not None and 55 < later <= 60


def test_unwrapping_leaves_what_is_not_wrapped() -> None:
    assert unwrapped('{"value": "ü"}') == '"ü"'
    assert unwrapped('{"value": 1, "more": 2}') == '{"value": 1, "more": 2}'
    assert unwrapped("no json") == "no json"


def test_an_answer_nested_beyond_reason_is_left_to_the_schema() -> None:
    assert unwrapped("[" * 100_000) == "[" * 100_000
