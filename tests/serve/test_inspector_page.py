"""The page itself, in a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

import bb
from bb.flows.tree import Await, Call, Emit
from bb.ops import op
from bb.testing.clock import ManualClock
from bb.trace import Event
from tests.serve.browser import Watched, launched, watched
from tests.serve.kit import agent, serving
from tests.serve.stage import Stage, app_of, durable, hello

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = '</script><script>window.hurt=1</script><img src=x onerror="window.hurt=1"><svg onload=window.hurt=1>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all of them."""
    async with async_playwright() as driver:
        found = await launched(driver)
        yield found
        await found.close()


@asynccontextmanager
async def looking(browser: Browser, app: bb.App) -> AsyncIterator[Watched]:
    """A page of the inspector of an app."""
    async with serving(app.asgi(inspector=True)) as url, watched(browser, url) as page:
        yield page


class Flaky:
    """A handler that fails until it may not."""

    def __init__(self, said: str = "the bank is closed") -> None:
        self.fails = True
        self._said = said

    async def __call__(self, turn: bb.Turn, chat: bb.ModelChat) -> None:
        if self.fails:
            raise RuntimeError(self._said)
        turn.reply("paid", value={"amount": 42})


def row(path: str) -> str:
    return f'.row[data-path="{path}"]'


async def standing(page: Page, path: str, how: str) -> None:
    """Wait until a part stands like that."""
    await expect(page.locator(row(path)).last).to_have_attribute("data-standing", how)


def shop(flaky: Flaky) -> bb.DurableFlow:
    pays = bb.All(agent(flaky, "pay").with_id("pay"), agent(hello, "pack").with_id("pack"))
    return (
        (agent(hello, "order").with_id("order") >> pays >> agent(hello, "send").with_id("send"))
        .with_id("shop")
        .durable(retries=1)
    )


def asking() -> bb.DurableFlow:
    return (Emit("Who are you?") >> Await("user", bind="x") >> Emit("Hello {x}.")).with_id("asks").durable()


async def test_the_list_is_filtered_and_leads_to_a_run(browser: Browser) -> None:
    app = app_of(durable(hello, "good"), shop(Flaky()), asking())
    async with looking(browser, app) as site:
        for number in range(60):
            await app.run("good", "hi", run_id=f"good-{number:02}")
        await asyncio.sleep(0.005)  # runs that change in one millisecond come in the order of their ids
        await app.run("asks", "hi", run_id="asks-1")
        await asyncio.sleep(0.005)
        with pytest.raises(bb.AgentFailed):
            await app.run("shop", "hi", run_id="shop-1")
        page = await site.open("/runs")
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(50)
        await expect(rows.first).to_contain_text("shop-1")
        await expect(rows.first).to_contain_text("the bank is closed")
        await expect(rows.nth(1)).to_contain_text("waits for user")
        await page.get_by_role("button", name="Older").click()
        await expect(rows).to_have_count(12)
        await page.get_by_label("Status").select_option("failed")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("shop-1")
        assert "status=failed" in page.url
        await page.get_by_role("button", name="Clear").click()
        await page.get_by_label("Flow").select_option("asks")
        await expect(rows).to_have_count(1)
        await page.get_by_role("button", name="Clear").click()
        await page.get_by_label("Run or session id").fill("good-4")
        await expect(rows).to_have_count(10)
        await page.get_by_label("Run or session id").fill("nobody")
        await expect(page.get_by_text("No run is like that.")).to_be_visible()
        await page.reload()  # the filter is in the address
        await expect(page.get_by_text("No run is like that.")).to_be_visible()
        await page.get_by_label("Run or session id").fill("asks")
        await page.get_by_role("link", name="asks-1").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("asks-1")


async def test_a_run_shows_at_a_glance_what_failed_and_goes_on_from_the_page(browser: Browser) -> None:
    flaky = Flaky()
    app = app_of(shop(flaky))
    async with looking(browser, app) as site:
        with pytest.raises(bb.AgentFailed):
            await app.run("shop", "two books", run_id="r")
        page = await site.open("/runs/r")
        failure = page.get_by_role("region", name="Failure")
        await expect(failure).to_contain_text("pay failed")
        await expect(failure).to_contain_text("the bank is closed")
        for path, how in (
            ("shop", "failed"),
            ("shop/order", "done"),
            ("shop/body~all.1/pay", "failed"),
            ("shop/body~all.1/pack", "done"),
            ("shop/send", "pending"),
        ):
            await standing(page, path, how)
        await expect(page.locator(row("shop/order"))).to_contain_text("replayed")
        details = page.get_by_role("complementary", name="Details")
        await expect(details.get_by_role("heading", level=3)).to_have_count(1)  # it failed twice in one way
        await expect(details.get_by_role("heading", level=3)).to_contain_text("RuntimeErrortries 1 and 2")

        # with the keyboard: up to the order, which shows what was said; then fold the whole
        await page.locator(row("shop/body~all.1/pay")).focus()
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Enter")
        await expect(details.get_by_role("heading", level=2)).to_have_text("order")
        await expect(details.get_by_role("article")).to_contain_text("hello r")
        await page.keyboard.press("Home")
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator(".row[data-path]")).to_have_count(1)
        await page.keyboard.press("ArrowRight")
        await expect(page.locator(".row[data-path]")).to_have_count(6)

        flaky.fails = False
        await page.get_by_role("button", name="Retry").click()
        await standing(page, "shop", "done")
        await expect(failure).to_have_count(0)
        await expect(page.get_by_role("button", name="Retry")).to_be_hidden()
        await expect(page.locator(row("shop/body~all.1/pay"))).to_contain_text("before")
        await page.locator(row("shop/body~all.1/pay")).click()
        await expect(details).to_contain_text('"amount": 42')
        assert (await app.run("shop", "two books", run_id="r")).value == "hello r"


async def test_the_bars_of_parts_stand_in_order_and_in_proportion_to_the_time_in_which_something_ran(
    browser: Browser,
) -> None:
    clock = ManualClock()

    def takes(seconds: float, id: str) -> bb.NamedFlow:
        async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
            clock.advance(seconds)
            turn.reply(id)

        return agent(handler, id).with_id(id)

    app = bb.App(clock=clock)
    app.register((takes(1, "short") >> takes(3, "long") >> Await("user") >> takes(4, "longest")).with_id("f").durable())
    async with looking(browser, app) as site:
        await app.run("f", "hi", run_id="r", session_id="s")
        clock.advance(3600)  # nothing runs: that is cut to a tenth of the eight seconds in which something did
        await app.deliver("user", "yes", session_id="s")
        await app.run("f", run_id="r")
        page = await site.open("/runs/r")
        await standing(page, "f", "done")

        async def bar(path: str) -> tuple[float, float]:
            """Where the one bar of a part begins and ends, in shares of its row's lane."""
            (shares,) = await page.locator(f"{row(path)} .bar").evaluate_all(
                """bars => bars.map(bar => {
                    const [own, lane] = [bar.getBoundingClientRect(), bar.offsetParent.getBoundingClientRect()];
                    return [(own.left - lane.left) / lane.width, (own.right - lane.left) / lane.width];
                })"""
            )
            return (shares[0], shares[1])

        for path, began, ended in (
            ("f", 0, 8.8),
            ("f/short", 0, 1),
            ("f/long", 1, 4),
            ("f/body~await.2", 4, 4.8),
            ("f/longest", 4.8, 8.8),
        ):
            assert await bar(path) == pytest.approx((began / 8.8, ended / 8.8), abs=0.02), path


async def test_a_run_is_followed_while_it_goes_on_and_cancelled(browser: Browser) -> None:
    first, second = Stage(), Stage()
    app = app_of((first.flow("one") >> second.flow("two")).with_id("f").durable())
    async with looking(browser, app) as site:
        await app.submit("f", "hi", run_id="r")
        await first.began.wait()
        page = await site.open("/runs/r")
        await standing(page, "f/one", "running")
        await standing(page, "f/two", "pending")
        before = await page.locator(row("f/one")).bounding_box()
        await page.evaluate("document.querySelector('.row[data-path=\"f/one\"]').kept = true")
        first.may.set()
        await standing(page, "f/one", "done")
        await standing(page, "f/two", "running")
        assert await page.locator(row("f/one")).bounding_box() == before  # nothing jumps
        assert await page.evaluate("document.querySelector('.row[data-path=\"f/one\"]').kept")

        await page.get_by_role("button", name="Cancel run").click()
        asked = page.get_by_role("dialog")
        await asked.get_by_role("button", name="Keep it").click()
        await expect(asked).to_be_hidden()
        await page.get_by_role("button", name="Cancel run").click()
        await asked.get_by_role("button", name="Cancel run").click()
        await expect(page.locator(".head .state")).to_have_text("cancelled")
        assert second.ended == ["cancelled"]


async def test_a_run_that_is_not_kept_leads_back_to_those_that_are(browser: Browser) -> None:
    async with serving(app_of(asking()).asgi(inspector=True)) as url:
        page = await browser.new_page()  # not watched: a browser says that the run was not found
        await page.goto(f"{url}/runs/nobody")
        await expect(page.get_by_text("no run nobody is kept")).to_be_visible()
        await page.get_by_role("link", name="All runs").click()
        await expect(page.get_by_text("No run is kept yet.")).to_be_visible()
        await page.close()


async def test_an_event_is_delivered_from_the_page(browser: Browser) -> None:
    app = app_of(asking())
    async with looking(browser, app) as site:
        await app.run("asks", "hi", run_id="r")
        page = await site.open("/runs/r")
        waiting = page.get_by_role("region", name="Waiting")
        await expect(waiting).to_contain_text("Waits for user")
        await expect(waiting).to_contain_text("Who are you?")
        await standing(page, "asks/body~await.1", "waiting")
        (room,) = await page.locator(f"{row('asks')} .bar").evaluate_all(
            "bars => bars.map(bar => bar.offsetParent.clientWidth - bar.offsetLeft - bar.offsetWidth)"
        )
        assert abs(room) <= 1  # however little ran, the line reaches to now; each figure is rounded
        facts = page.locator(".facts")
        await expect(facts).to_contain_text("Waiting for")
        await expect(facts).not_to_contain_text("Took")
        await expect(page.get_by_text("hatched: nothing ran, shortened")).to_be_visible()  # once it took a second
        await waiting.get_by_label("Sent as").select_option("json")
        await waiting.get_by_label("Payload").fill('{"half": ')
        await waiting.get_by_role("button", name="Deliver").click()
        await expect(page.get_by_role("status")).to_contain_text("no JSON")
        await waiting.get_by_label("Payload").fill('"Ann"')
        await waiting.get_by_role("button", name="Deliver").click()
        await standing(page, "asks", "done")
        await expect(waiting).to_have_count(0)
        assert (await app.run("asks", "hi", run_id="r")).answer.endswith("Hello Ann.")


@op()
def charge(what: str) -> dict[str, str]:
    """Gives what it gets."""
    return {what: what}


async def test_whatever_runs_hold_is_shown_as_text_and_does_nothing(browser: Browser) -> None:
    async def hostile(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await turn.step(HOSTILE, _same, HOSTILE)
        turn.reply(HOSTILE, value={HOSTILE: HOSTILE})

    parts = agent(hostile, "said") >> Call("charge", [HOSTILE]) >> Emit(HOSTILE.replace("{", ""))
    app = bb.App(ops=[charge])
    app.register(
        (parts >> agent(Flaky(HOSTILE), "bad")).with_id("bad").durable(),
        (parts >> Await(HOSTILE)).with_id("waits").durable(),
    )
    async with looking(browser, app) as site:
        with pytest.raises(bb.AgentFailed):
            await app.run("bad", HOSTILE, run_id="r", params={HOSTILE: HOSTILE})
        await app.run("waits", HOSTILE, run_id="w")
        app._recent.event(Event("tool.odd", "r", HOSTILE, datetime.now(UTC), detail=HOSTILE))  # type: ignore[arg-type]  # a kind to come
        page = await site.open("/runs")
        await expect(page.locator("tbody tr")).to_have_count(2)
        for run_id in ("w", "r"):
            await site.open(f"/runs/{run_id}")
            rows = page.locator(".row[data-path]")
            await expect(rows.first).to_be_visible()
            details = page.get_by_role("complementary", name="Details")
            for number in range(await rows.count()):
                await rows.nth(number).click()
                await expect(details.get_by_role("heading", level=2)).to_be_visible()
            await rows.nth(1).click()
            await expect(details.get_by_role("article")).to_contain_text(HOSTILE)
            await details.locator("summary").first.click()
        await page.get_by_text("Trace of this process").click()
        await expect(page.locator(".trace")).to_contain_text("tool.odd")
        await expect(page.get_by_role("region", name="Failure")).to_contain_text(HOSTILE)
        assert await page.evaluate("window.hurt") is None
        assert await page.locator("main script, main img, main [onload], main [onerror]").count() == 0


async def _same(what: str) -> str:
    return what


async def test_the_policy_holds_in_the_browser(browser: Browser) -> None:
    app = app_of(durable(hello))
    async with serving(app.asgi(inspector=True)) as url:
        page = await browser.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        await page.goto(f"{url}/runs")
        await page.evaluate(
            f"""() => {{
                document.body.insertAdjacentHTML("beforeend", {json.dumps("<img src=x onerror='window.hurt=1'>")});
                const script = document.createElement("script");
                script.textContent = "window.hurt = 1";
                document.body.append(script);
                return fetch("http://127.0.0.1:9/").catch(() => null);
            }}"""
        )
        await asyncio.sleep(0.1)
        assert await page.evaluate("window.hurt") is None
        assert sum("Content Security Policy" in text for text in said) >= 3
        await page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_readable_in_both_themes_and_in_a_narrow_window(browser: Browser, scheme: str) -> None:
    app = app_of(shop(Flaky()))
    async with serving(app.asgi(inspector=True)) as url:
        with pytest.raises(bb.AgentFailed):
            await app.run("shop", "hi", run_id="r")
        context = await browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
        page = await context.new_page()
        await page.set_viewport_size({"width": 360, "height": 700})
        for path in ("/runs", "/runs/r"):
            await page.goto(f"{url}{path}")
            await expect(page.locator(".state").first).to_have_text("failed")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            for selector in ("body", "a", ".state", ".title", ".what", "dt", "th", "pre"):
                low = await page.evaluate(CONTRAST, selector)
                assert low is None or low >= 4.5, (path, selector, low)
        await context.close()


CONTRAST = """(selector) => {
    const parse = (color) => {
        const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
        return [r, g, b, a];
    };
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const color = parse(getComputedStyle(one).backgroundColor);
            if (color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    const shown = [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility());
    const all = shown.map((one) => {
        const [a, b] = [light(parse(getComputedStyle(one).color)), light(ground(one))];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    });
    return all.length ? Math.min(...all) : null;
}"""
