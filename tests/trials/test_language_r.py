"""Trials R that concern the nodes: names and stored values that somebody bad has chosen."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

import bb
from bb.errors import CorruptRecord
from bb.flows.refs import ref
from bb.flows.tree import Await, Checkpoint, Debounce, Emit, Memo, Once, Return, Throttle, Try
from bb.log import decode
from bb.log.streams import session_streams
from tests.conformance.acts import Acts, durable
from tests.trials.kit import Disk

EVIL = ["../../evil", "/tmp/evil", "C:\\evil", "..", ".", "a\0b", "a/../../b", "%2e%2e%2f", "'; DROP TABLE Cache; --"]


@pytest.fixture
def acts() -> Acts:
    return Acts()


@pytest.mark.parametrize("name", EVIL)
async def test_trial_R4_labels_and_names_lead_nowhere(tmp_path: Path, acts: Acts, name: str) -> None:
    """Whatever a once, checkpoint, source, throttle or argument is called, it stays inside the store."""
    home = tmp_path / "deep" / "state"
    app = bb.App(store=bb.FileStore(home))
    flow = durable(
        Once(name, acts("a")),
        Memo("x", acts(name)),
        Checkpoint(name),
        Throttle(name, acts("b"), max=9, per=timedelta(hours=1)),
        Debounce(name, acts("c"), wait=timedelta(milliseconds=1)),
        Await(name, bind="y"),
        Return(ref("y")),
    )
    app.register(flow)
    assert (await app.run("f", run_id="r", session_id="s")).waiting_for == name
    await app.deliver(name, name, session_id="s")

    assert (await app.run("f", run_id="r")).value == name

    await app.stop(timedelta(0))
    assert _inside(tmp_path) == ["deep"] and _inside(tmp_path / "deep") == ["state"]


def _inside(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


@pytest.mark.parametrize("bad", ["", " ", "../s", "a/b", "a\0", "x" * 129, "ä", "a\n"])
async def test_trial_R4_what_is_no_session_id_is_refused_at_every_door(disk: Disk, acts: Acts, bad: str) -> None:
    app = disk.app(durable(acts("a")))
    with pytest.raises(bb.InvalidId):
        await app.run("f", session_id=bad)
    with pytest.raises(bb.InvalidId):
        await app.deliver("e", 1, session_id=bad)
    with pytest.raises(bb.InvalidId):
        await app.drop_session(bad)

    assert acts.done == [] and await app.store.list("") == []


async def test_trial_R2_a_stored_value_cannot_name_a_class_of_its_choice(acts: Acts) -> None:
    """Unknown names are errors; nothing is imported, and nothing is computed anew in silence."""
    app = bb.App()
    flow = durable(Memo("x", acts("a")), Emit("x"))
    await app.run(flow, session_id="s")
    (info,) = [info for info in await app.store.list(session_streams("s")) if "memo" in info.name]
    (record,) = await app.store.read(info.name)
    for tag in ("class", "t", "type", "$", "@", "py"):
        row = json.loads(record)
        row[-1] = json.loads(
            json.dumps(row[-1]).replace('"a done"', json.dumps({f"${tag}": ["os", "system", ["true"]]}))
        )
        await app.store.delete(info.name)
        await app.store.append(info.name, 0, [json.dumps(row).encode()])
        try:
            outcome = await app.run(flow, session_id="s")
        except CorruptRecord:
            continue
        assert outcome.answer == "x"  # it was data like any other

    assert acts.done == ["a"]


async def test_trial_R2_a_torn_row_is_an_error_and_nothing_is_done_again(acts: Acts) -> None:
    app = bb.App()
    flow = durable(Once("o", acts("charge")), Emit("x"))
    await app.run(flow, session_id="s")
    (info,) = [info for info in await app.store.list(session_streams("s")) if "once" in info.name]
    records = await app.store.read(info.name)
    await app.store.delete(info.name)
    await app.store.append(info.name, 0, [record[: len(record) // 2] for record in records])

    with pytest.raises(CorruptRecord):
        await app.run(flow, session_id="s")

    assert acts.done == ["charge"]


async def test_trial_R_secrets_are_in_no_record_of_a_node(disk: Disk, acts: Acts) -> None:
    """The flow was registered before the secret was: with the secret known, it would have been refused."""
    acts.values["a"] = "the password is hunter2"
    acts.fail("b", ConnectionError("wrong password hunter2"))
    app = disk.app(
        durable(
            Once("hunter2", Memo("x", acts("a")), bind="y"),
            Checkpoint("hunter2"),
            Try(acts("b"), catch="why", handler=Emit("{why} {x} {y}")),
        )
    )
    bb.redact("hunter2")

    await app.run("f", run_id="r", session_id="s")

    for info in await app.store.list(""):
        if info.name.startswith(("run/", "session/")):
            assert all(b"hunter2" not in record for record in await app.store.read(info.name)), info.name
    assert [decode(record, "r") for record in await app.store.read("run/r")]


async def test_trial_R_secrets_are_in_no_name_of_what_a_handler_did(disk: Disk) -> None:
    bb.redact("hunter2")
    calls: list[str] = []

    @bb.Agent().on_message
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for name in ("log in/as hunter2", "log in/as hunter2"):
            await turn.step(name, calls.append, "in")
        if len(calls) == 2:
            raise RuntimeError("down")
        turn.reply("in")

    app = disk.app(bb.Flow().with_agent(handler).with_id("f").durable())
    with pytest.raises(bb.AgentFailed):
        await app.run("f", run_id="r")
    calls.append("again")

    assert (await app.run("f", run_id="r")).answer == "in"
    assert calls == ["in", "in", "again"]  # a name that is masked still tells which step it was
    assert all(b"hunter2" not in record for record in await app.store.read("run/r"))
