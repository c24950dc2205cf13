"""`Attempts`: one attempt at a durable run, from the fact it begins with to the fact it ends with."""

from __future__ import annotations

import asyncio
import contextlib

from attrs import evolve

from bb.engine.frame.run import Run
from bb.engine.frame.tasks import is_cancelled
from bb.engine.memory.journal import Journal, LogJournal
from bb.engine.outcome import Outcome
from bb.engine.runs.ask import Ask, was_cancelled
from bb.engine.runs.leases import Tenure
from bb.engine.runs.live import Live
from bb.engine.runs.walker import Walker
from bb.errors import BBError, Interruption, NotSavable, StoreError
from bb.log import Answered, Failed, History, Stopped, control_stream, load_given, millis
from bb.redaction import redacted


class Attempts:
    """Attempts at the durable runs of one app."""

    def __init__(self, walker: Walker) -> None:
        self._walker = walker
        self._store = walker.store
        self._clock = walker.clock

    async def make(self, live: Live, ask: Ask, history: History, tenure: Tenure) -> Outcome:
        """Walk a run under its lease, and record how it ends.

        Raises:
            BBError: it failed, or was interrupted or cancelled.
        """
        walker = self._walker
        journal = LogJournal(
            history, self._store, walker.codec, self._clock, tenure.lease, tenure.claim, walker.bells.ring
        )
        live.on_lost = journal.interrupt
        plan, root = ask.plan, ask.plan.root.segment
        new, was_over = history.started is None, history.ended is not None
        if tenure.lease is not None:
            await journal.record(walker.opening(ask, history, live.fingerprint))
        started = history.started
        assert started is not None
        live.fingerprint, live.session_id = started.fingerprint, started.session
        given = load_given(started.given, walker.codec)
        live.tenant = given.tenant
        live.begin()
        run = walker.new_run(
            evolve(
                ask,
                params=given.params,
                symbols=given.symbols,
                depth=given.depth,
                tenant=given.tenant,
                session_id=started.session,
            ),
            live,
            given.input,
            journal,
        )
        if tenure.lease is None and history.parked is not None:
            run.until = history.parked.path  # without a lease nothing is consumed; what comes just now wakes the run
        run.emit("run.start" if new else "run.resumed", root, plan.name)
        how = "interrupted"
        outcome: Outcome | None = None
        try:
            if ask.known and tenure.lease is not None and await self._cancel_is_pending(ask.run_id, was_over):
                live.cancel_asked = True
                live.lane.halt()
                if not plan.unwinds:
                    raise asyncio.CancelledError
            outcome = await walker.walk(run, live.lane)
            if outcome.waiting_for is not None:
                how = "parked"
                if history.idle_attempts and tenure.lease is not None:
                    await journal.record(Stopped(millis(self._clock.now())))
                return outcome
            if history.ended is None:
                await run.keep_symbols(f"end of attempt {run.attempt}")
                await self._walker.sessions.close(history, tenure.lease, over=False, waits=plan.waits)
                if plan.cause is not None and plan.responds:
                    await journal.record(Answered(millis(self._clock.now()), redacted(outcome.answer)))
                await journal.record(history.end("finished", millis(self._clock.now())))
            how = "finished"
            return outcome
        except asyncio.CancelledError:
            journal.check()
            if outcome is not None and history.finished:  # it came too late
                how = "finished"
                return outcome
            # one that nobody asked this task for is told again: the run was cancelled before a crash
            if not live.cancel_asked and is_cancelled():
                if history.idle_attempts:
                    with contextlib.suppress(Interruption):
                        await journal.record(Stopped(millis(self._clock.now())))
                raise
            error = await self._cancelled(run, journal)
            how = "cancelled"
            raise error from None
        except StoreError as error:
            run.emit("store.error", error.path or root, plan.name, str(error))
            raise
        except Interruption:
            raise
        except Exception as error:
            how = "failed"
            await self._failed(run, journal, error)
            raise
        finally:
            run.end(how)

    async def _failed(self, run: Run, journal: Journal, error: Exception) -> None:
        path = getattr(error, "path", "") or run.plan.root.segment
        with contextlib.suppress(Interruption, NotSavable):
            await run.keep_symbols(f"end of attempt {run.attempt}")
        with contextlib.suppress(Interruption):
            await journal.record(Failed.of(error, path, millis(self._clock.now()), final=True))

    async def _cancelled(self, run: Run, journal: Journal) -> BBError:
        """Record that the run is over on request."""
        if journal.history.ended is None:
            await self._walker.sessions.close(journal.history, journal.lease, over=False, waits=run.plan.waits)
            await journal.record(journal.history.end("cancelled", millis(self._clock.now())))
        await self._store.delete(control_stream(run.run_id))
        return was_cancelled(run.run_id, run.plan.name)

    async def _cancel_is_pending(self, run_id: str, was_over: bool) -> bool:
        """Whether a cancel came in while nobody looked; one that came when the run was over meant an earlier attempt."""
        asked = bool(await self._store.read(control_stream(run_id)))
        if asked and was_over:
            await self._store.delete(control_stream(run_id))
        return asked and not was_over
