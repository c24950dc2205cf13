"""A customer signs up, in a conversation that may be killed anywhere and goes on at the question that it had asked.

    python examples/onboarding.py                        # start, or go on; also after a kill -9
    python examples/onboarding.py --reply Ann            # one reply, one process
    python examples/onboarding.py --crash-in bank.charge # die by SIGKILL there; the first line again resumes
    python examples/onboarding.py --fail-booking         # the charge is given back
    python examples/onboarding.py --show                 # the flow as text and as JSON

Needs no key and no network: the services are files in `.bb-onboarding`. The flow is written twice, here and in
onboarding.bb. Exit codes: 0 done or put off, 1 the flow failed or waits for no reply, 2 wrong usage.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import attrs

import bb

TEXT: Final = Path(__file__).with_suffix(".bb")


@attrs.frozen
class World:
    """The services outside: files of JSON lines in a folder. A request is known by its key, and takes effect once."""

    folder: Path
    crash_in: str | None = None
    fail_booking: bool = False

    def request(self, service: str, op: str, **what: object) -> str:
        """Ask a service for something; gives the key of the request."""
        key = bb.idempotency_key()
        self.append("requests", {"op": op, "key": key})
        if all(row["key"] != key for row in self.rows(service)):
            self.append(service, {"op": op, "key": key, **what})
        self.done(op)
        return key

    def done(self, op: str) -> None:
        """An op has had its effect, and nobody knows yet: the worst moment to die."""
        if op == self.crash_in:
            print(f"killed in {op}: run it again without --crash-in", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def append(self, service: str, row: dict[str, object]) -> None:
        with (self.folder / f"{service}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self, service: str) -> list[dict[str, object]]:
        path = self.folder / f"{service}.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


WORLD: Final[ContextVar[World]] = ContextVar("world")


@bb.op("mail.looks_right", effects=["pure"])
def looks_right(address: str) -> bool:
    """Whether it looks like an e-mail address."""
    return re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", address) is not None


@bb.op("mail.welcome", effects=["send_external"], risk="medium")
def welcome(name: str, address: str) -> None:
    """Send the welcome mail."""
    WORLD.get().request("outbox", "mail.welcome", to=address, text=f"Welcome, {name}!")


@bb.op("plans.prices", effects=["read"])
def read_prices() -> dict[str, int]:
    """What each plan costs a month."""
    world = WORLD.get()
    world.append("requests", {"op": "plans.prices"})
    world.done("plans.prices")
    return {"basic": 9, "pro": 29}


@bb.op("lock.take", effects=["write_file"])
def take_lock(address: str) -> str:
    """Lock an address, so that one sign-up at a time works for it; gives the handle."""
    world, key = WORLD.get(), bb.idempotency_key()
    lock = world.folder / "locks" / f"{address.replace('/', '%')}"
    lock.parent.mkdir(exist_ok=True)
    mine = lock.with_name(f".{key}")
    mine.write_text(key, "utf-8")
    try:
        os.link(mine, lock)  # a file that is there with its content, or not at all
    except FileExistsError:
        if lock.read_text("utf-8") != key:  # else an earlier try of this call made it
            raise RuntimeError(f"somebody else signs {address} up") from None
    finally:
        mine.unlink()
    world.done("lock.take")
    return lock.name


@bb.op("lock.release", effects=["delete"])
def release_lock(handle: str) -> None:
    """Give the lock back."""
    world = WORLD.get()
    (world.folder / "locks" / handle).unlink(missing_ok=True)
    world.done("lock.release")


@bb.op("bank.charge", effects=["money"], risk="high")
def charge(address: str, price: int) -> str:
    """Take the first month's price; gives a receipt."""
    return WORLD.get().request("bank", "bank.charge", by=address, amount=price)[:8]


@bb.op("bank.refund", effects=["money"], risk="medium")
def refund(receipt: str) -> None:
    """Give a charge back."""
    WORLD.get().request("bank", "bank.refund", receipt=receipt)


@bb.op("calendar.book", effects=["write_db"])
def book(address: str) -> str:
    """Book a first call; gives its slot."""
    world = WORLD.get()
    if world.fail_booking:
        raise bb.Fatal("the calendar is full")
    world.request("calendar", "calendar.book", guest=address)
    return "on Monday at 9"


@bb.op("calendar.cancel", effects=["write_db", "delete"])
def cancel(slot: str) -> None:
    """Take a booking back."""
    WORLD.get().request("calendar", "calendar.cancel", slot=slot)


@bb.op("accounts.open", effects=["write_db"])
def open_account(address: str, plan: str, receipt: str) -> None:
    """Open the account."""
    WORLD.get().request("accounts", "accounts.open", owner=address, plan=plan, receipt=receipt)


OPS: Final = (looks_right, welcome, read_prices, take_lock, release_lock, charge, refund, book, cancel, open_account)
CRASHES: Final = tuple(op.name for op in OPS if op.effects != ("pure",))


def onboarding() -> bb.DurableFlow:
    """The flow as Python builds it, statement by statement as in onboarding.bb."""
    name, address, plan = bb.ref("name", str), bb.ref("address", str), bb.ref("plan", str)
    valid, prices, price = bb.ref("valid", bool), bb.ref("prices", dict[str, int]), bb.ref("price", int)
    lock, receipt, slot = bb.ref("lock", str), bb.ref("receipt", str), bb.ref("slot", str)

    check = bb.Bind("valid", looks_right(address))
    choose = bb.When(
        plan == "pro",
        bb.Bind("price", prices["pro"]),
        otherwise=bb.Assert(plan == "basic", "there are two plans, basic and pro").next(
            bb.Bind("price", prices["basic"])
        ),
    )
    sign_up = bb.Saga(
        bb.Step(bb.Bind("receipt", charge(address, price)), undo=refund(receipt)),
        bb.Step(bb.Bind("slot", book(address)), undo=cancel(slot)),
        bb.Step(open_account(address, plan, receipt)),
    )
    locked = bb.Scope(sign_up, acquire=take_lock(address), bind="lock", finally_=release_lock(lock))
    return (
        bb.Emit("Welcome! What is your name?")
        .next(bb.Await("customer", bind="name"))
        .next(bb.Emit("Hello {name}. What is your e-mail address?"))
        .next(bb.Await("customer", bind="address"))
        .next(check)
        .next(bb.Unless(valid, bb.Emit("That does not look like an e-mail address. What is it?")))
        .next(bb.Await("customer", bind="address", when=bb.negate(valid)))
        .next(check)
        .next(bb.Assert(valid, "that is no e-mail address either"))
        .next(bb.Once("welcome", welcome(name, address)))
        .next(bb.Memo("prices", read_prices()))
        .next(bb.Emit("Which plan: basic for {prices.basic} or pro for {prices.pro} a month?"))
        .next(bb.Await("customer", bind="plan"))
        .next(choose)
        .next(
            bb.Try(locked, catch="why", handler=bb.Return("You are not signed up: {why}")),
        )
        .next(bb.Checkpoint("signed up"))
        .next(bb.Emit("You are on the {plan} plan, {name}. We call you {slot}."))
        .with_id("onboarding")
        .durable(retries=2)
    )


FLOW: Final = onboarding()


async def take(app: bb.App, session_id: str, reply: str | None) -> bb.SessionTurn:
    """The turn that a reply makes; without one, the turn at hand, or the first of a new conversation."""
    session = app.session("onboarding", session_id)
    if reply is not None:
        return await session.send(reply)
    return await session.current() or await session.start()


def converse(app: bb.App, session_id: str, only: str | None, runner: asyncio.Runner) -> int:
    """Show what is asked and read replies, until the flow has finished or nobody replies; or send `only` one."""
    reply = only
    while True:
        try:
            turn = runner.run(take(app, session_id, reply))
        except bb.BBError as error:
            how = "; start it by leaving --reply out" if isinstance(error, bb.NotWaiting) else ""
            print(f"onboarding.py: {error.message}{how}", file=sys.stderr)
            if reply is None or only is not None:
                return 1
            reply = None  # the question is still open: ask it again
            continue
        print(turn.prompt, flush=True)
        if turn.done or only is not None:
            return 0
        try:
            reply = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Sign a customer up, durably.")
    parser.add_argument("--session", default="me", help="whose conversation it is (default: %(default)s)")
    parser.add_argument("--state", type=Path, default=Path(".bb-onboarding"), help="the folder (default: %(default)s)")
    parser.add_argument("--reply", help="send this to the question at hand, show what comes of it, and exit")
    parser.add_argument(
        "--spelling", choices=["python", "text"], default="python", help="which flow (default: %(default)s)"
    )
    parser.add_argument(
        "--yes", action="store_true", help="agree to the charge, instead of being asked at the terminal"
    )
    parser.add_argument("--fail-booking", action="store_true", help="let the calendar be full")
    parser.add_argument(
        "--crash-in", choices=CRASHES, metavar="OP", help="die by SIGKILL when that op has had its effect"
    )
    parser.add_argument("--show", action="store_true", help="show the flow as text and as JSON, and exit")
    args = parser.parse_args()
    flow = FLOW if args.spelling == "python" else bb.text.parse(TEXT.read_text("utf-8"))["onboarding"]
    if args.show:
        print(bb.text.format(flow), json.dumps(bb.wire.to_wire(flow), indent=2), sep="\n")
        return 0
    args.state.mkdir(parents=True, exist_ok=True)
    WORLD.set(World(args.state, args.crash_in, args.fail_booking))
    approver = bb.ByRisk("high", consent=bb.AllowAll() if args.yes else bb.AskOnTerminal())
    app = bb.App(store=bb.FileStore(args.state / "store"), ops=OPS, approver=approver)
    app.register(flow)
    with asyncio.Runner() as runner:
        try:
            return converse(app, args.session, args.reply, runner)
        finally:
            runner.run(app.stop())


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the rest is flushed to nowhere
        code = 1
    sys.exit(code)
