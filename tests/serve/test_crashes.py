"""Servers that die, and servers that are asked to end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import anthropic
import httpx2
import openai
import pytest

from tests.serve.kit import CLIENTS, PATHS, Site, ViaAnthropic, ViaOpenAI, body_of, error_of, frames_of, text_of


@asynccontextmanager
async def streaming(site: Site, path: str, model: str, run_id: str) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of a stream; the request was let in."""
    async with httpx2.AsyncClient(base_url=site.url, timeout=30) as http:
        body = body_of(path, "hi", model, stream=True)
        async with http.stream("POST", path, json=body, headers={"X-Run-Id": run_id}) as answer:
            assert answer.status_code == 200 and answer.headers["x-run-id"] == run_id
            yield answer.aiter_lines()


async def until_said(lines: AsyncIterator[str], text: str) -> None:
    async for line in lines:
        if text in line:
            return
    raise AssertionError(f"{text!r} was not said")


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_server_killed_in_a_stream_is_asked_again(site: Site, kind: type[ViaOpenAI | ViaAnthropic]) -> None:
    site.start()
    headers = {"X-Run-Id": "r"}
    asking = asyncio.ensure_future(kind(site.url).ask("slow", "hi", stream=True, headers=headers))
    await site.waits("slow.r")
    site.kill()
    with pytest.raises((openai.APIError, anthropic.APIError, httpx2.TransportError)):
        await asking

    site.open("slow.r")
    site.start()
    heard = await kind(site.url).ask("slow", "hi", stream=True, headers=headers)

    assert heard.text == "done. \n\nhalf whole" and site.notes() == ["before r", "slow r", "slow r"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_trial_h10_who_lost_the_connection_sends_the_same_again(running: Site, path: str, stream: bool) -> None:
    run_id = uuid4().hex
    async with streaming(running, path, "slow", run_id) as lines:
        await until_said(lines, "half ")
    again = asyncio.ensure_future(_whole(running, path, "slow", run_id, stream=stream))
    await asyncio.wait([again], timeout=0.2)  # it waits with the run
    assert not again.done()
    running.open(f"slow.{run_id}")
    assert text_of(path, await again) == "done. \n\nhalf whole"
    assert [note for note in running.notes() if run_id in note] == [f"before {run_id}", f"slow {run_id}"]


async def test_case_98_runs_that_end_in_the_grace_period_are_answered(site: Site) -> None:
    site.start("--grace", "20")
    async with streaming(site, PATHS[0], "slow", "r") as lines:
        await until_said(lines, "half ")
        site.terminate()
        await _refuses(site)
        site.open("slow.r")
        said = [line async for line in lines]
    assert "whole" in "".join(said) and "data: [DONE]" in said
    await site.ended()


@pytest.mark.parametrize("path", PATHS)
async def test_case_98_runs_that_do_not_are_interrupted_and_told_so(site: Site, path: str) -> None:
    site.start("--grace", "0.2")
    async with streaming(site, path, "slow", "r") as lines:
        await until_said(lines, "half ")
        waiting = asyncio.ensure_future(_whole(site, path, "slow", "buffered"))
        await site.waits("slow.buffered")
        began = time.monotonic()
        site.terminate()
        said = frames_of("\n".join([line async for line in lines]))
    event, data = said[-1] if path == "/v1/messages" else said[-2]
    assert "nothing is lost" in json.loads(data)["error"]["message"] and event in ("error", None)
    status, type_, message = error_of(path, await waiting)
    assert status == 503 and type_ in ("api_error", "server_error") and "X-Run-Id: buffered" in message
    await site.ended()
    assert time.monotonic() - began < 5

    for run_id in ("r", "buffered"):
        site.open(f"slow.{run_id}")
    site.start()
    for run_id in ("r", "buffered"):
        answer = await _whole(site, path, "slow", run_id)
        assert "done. \\n\\nhalf whole" in answer.text
    assert sorted(note for note in site.notes() if note.startswith("before")) == ["before buffered", "before r"]


async def test_followers_of_a_run_do_not_hold_a_server_up(site: Site) -> None:
    site.start("--grace", "0.1")
    async with streaming(site, PATHS[0], "slow", "r") as lines, httpx2.AsyncClient(base_url=site.url) as http:
        await until_said(lines, "half ")
        async with http.stream("GET", "/v1/runs/r/events") as events:
            followed = events.aiter_lines()
            await until_said(followed, "flow.end")
            site.terminate()
            rest = [line async for line in followed]
    assert not any("run.end" in line for line in rest)
    await site.ended()


@pytest.mark.parametrize("path", PATHS)
async def test_of_two_servers_over_one_store_one_runs_it_and_the_other_waits_or_takes_it_over(
    site: Site, tmp_path: Path, path: str
) -> None:
    other = Site(tmp_path, log="other")
    site.start()
    other.start()
    try:
        for run_id in ("ends", "dies"):
            first = asyncio.ensure_future(_whole(site, path, "slow", run_id))
            await site.waits(f"slow.{run_id}")
            others = [
                asyncio.ensure_future(_whole(other, path, "slow", run_id, stream=stream)) for stream in (True, False)
            ]
            await asyncio.wait(others, timeout=0.3)
            assert not any(one.done() for one in others)
            if run_id == "dies":
                site.kill()
            site.open(f"slow.{run_id}")
            assert {text_of(path, await one) for one in others} == {"done. \n\nhalf whole"}
            assert (await asyncio.wait([first]))[0] and (first.exception() is not None) is (run_id == "dies")
    finally:
        other.stop()
    assert site.notes() == ["before ends", "slow ends", "before dies", "slow dies", "slow dies"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("flow", ["tidy", "fleeting"])
async def test_whatever_is_still_tidied_up_clients_are_told_when_the_grace_period_is_over(
    site: Site, path: str, flow: str
) -> None:
    """Also of what is not durable, which leaves when its client does."""
    site.start("--grace", "0.1")
    async with streaming(site, path, f"{flow}-flow", "r") as lines:
        await until_said(lines, "half ")
        waiting = asyncio.ensure_future(_whole(site, path, f"{flow}-flow", "buffered"))
        await site.waits(f"{flow}.buffered")
        site.terminate()
        said = frames_of("\n".join([line async for line in lines]))
    event, data = said[-1] if path == "/v1/messages" else said[-2]
    assert "X-Run-Id: r" in json.loads(data)["error"]["message"] and event in ("error", None)
    answer = await waiting
    status, _, message = error_of(path, answer)
    assert status == 503 and "X-Run-Id: buffered" in message
    assert answer.headers["x-run-id"] == "buffered" and answer.headers["retry-after"] == "1"
    await site.ended()


async def test_followers_go_on_exactly_where_they_were_across_a_restart(site: Site) -> None:
    site.start()
    seen: list[tuple[str, str]] = []
    async with streaming(site, PATHS[0], "slow", "r") as lines, httpx2.AsyncClient(base_url=site.url) as http:
        await until_said(lines, "half ")
        async with http.stream("GET", "/v1/runs/r/events") as events:
            last = ""
            async for line in events.aiter_lines():
                if line.startswith("id: "):
                    last = line.removeprefix("id: ")
                elif line.startswith("event: "):
                    seen.append((last, line.removeprefix("event: ")))
                    if seen[-1][1] == "flow.end":
                        break
    site.kill()
    site.open("slow.r")
    site.start()
    async with httpx2.AsyncClient(base_url=site.url, timeout=30) as http:
        places = [id for id, _ in seen] * 2  # two at each place
        following = [
            asyncio.ensure_future(http.get("/v1/runs/r/events", headers={"Last-Event-ID": id})) for id in places
        ]
        await _whole(site, PATHS[0], "slow", "r", stream=True)
        rests = [(await one).text for one in following]
        everything = (await http.get("/v1/runs/r/events")).text
    ids = [line.removeprefix("id: ") for line in everything.splitlines() if line.startswith("id: ")]
    known = [id for id, _ in seen]
    assert ids[: len(known)] == known and last == known[-1] and len(known) > 1
    for id, rest in zip(places, rests, strict=True):
        told = [line.removeprefix("id: ") for line in rest.splitlines() if line.startswith("id: ")]
        assert told == ids[ids.index(id) + 1 :]
    positions = [int(id.removeprefix("r:")) for id in ids]
    assert positions == sorted(set(positions))
    kinds = [event for event, _ in frames_of(everything)]
    assert kinds[0] == "run.start" and kinds[-1] == "run.end"
    assert kinds.count("run.start") == kinds.count("run.end") == 1


async def _whole(site: Site, path: str, model: str, run_id: str, **more: object) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=site.url, timeout=30) as http:
        return await http.post(path, json=body_of(path, "hi", model, **more), headers={"X-Run-Id": run_id})


async def _refuses(site: Site) -> None:
    """Wait until it takes no more connections."""
    async with httpx2.AsyncClient(base_url=site.url) as http:
        with pytest.raises(httpx2.TransportError):  # noqa: PT012 - until it does
            while True:
                await http.get("/v1/models", headers={"Connection": "close"})


async def test_clients_that_come_again_get_their_answers_however_often_the_server_dies(site: Site) -> None:
    site.start()
    ids = [f"r{number}" for number in range(8)]

    async def insist(number: int) -> str:
        while True:
            client = CLIENTS[number % 4](site.url)
            try:
                heard = await client.ask("slow", "hi", stream=number % 3 > 0, headers={"X-Run-Id": ids[number]})
            except (openai.APIError, anthropic.APIError, httpx2.TransportError):
                await asyncio.sleep(0.05)  # as clients do before they come again
            else:
                return heard.text

    answers = [asyncio.ensure_future(insist(number)) for number in range(8)]
    for done in (2, 5):
        for run_id in ids:
            await site.waits(f"slow.{run_id}")
        for run_id in ids[:done]:
            site.open(f"slow.{run_id}")
        site.kill()
        site.start()
    for run_id in ids:
        site.open(f"slow.{run_id}")

    assert {await answer for answer in answers} == {"done. \n\nhalf whole"}
    assert sorted(note for note in site.notes() if note.startswith("before")) == [f"before {run_id}" for run_id in ids]
