"""Many clients at once."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from tests.serve.kit import Site, ViaAnthropic, ViaOpenAI


async def test_fifty_clients_stream_at_once(running: Site) -> None:
    clients = (ViaOpenAI(running.url), ViaAnthropic(running.url))
    ids = [uuid4().hex for _ in range(50)]

    heard = asyncio.gather(
        *(
            clients[number % 2].ask("slow", f"hi {number}", stream=True, headers={"X-Run-Id": run_id})
            for number, run_id in enumerate(ids)
        )
    )
    for run_id in ids:
        await running.waits(f"slow.{run_id}")  # all of them are under way
    for run_id in reversed(ids):
        running.open(f"slow.{run_id}")

    answers = await heard
    assert {answer.text for answer in answers} == {"done. \n\nhalf whole"}
    assert [answer.headers["x-run-id"] for answer in answers] == ids
    notes = running.notes()
    assert all(notes.count(f"slow {run_id}") == 1 for run_id in ids)


async def test_fifty_clients_share_one_run(running: Site) -> None:
    run_id = uuid4().hex
    client = ViaOpenAI(running.url)
    asking = [
        asyncio.ensure_future(client.ask("slow", "hi", stream=number % 2 == 0, headers={"X-Run-Id": run_id}))
        for number in range(50)
    ]
    await running.waits(f"slow.{run_id}")
    running.open(f"slow.{run_id}")
    answers = [await one for one in asking]
    assert {answer.text for answer in answers} == {"done. \n\nhalf whole"}
    assert running.notes().count(f"slow {run_id}") == 1
