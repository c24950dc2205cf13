// One run: how it stands, what can be done, its tree, and one place of it in full. It is followed while it goes on.

import { LIST, address, el, fill, get, moment, pause, post, say, sign, span, when, write } from "./dom.js";
import { Detail } from "./detail.js";
import { Tree, leaves } from "./tree.js";

const RETRIED = new Set(["failed", "cancelled", "interrupted", "stuck"]);
const OVER = new Set(["finished", "cancelled", "expired"]);
const GOES_ON = new Set(["running", "parked"]);

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });

/** Shows a run, and follows it. */
export async function showRun(main, id) {
  document.title = `${id} · Runs`;
  const state = el("span.state");
  const facts = el("dl.facts");
  const retry = el("button", { type: "button", click: () => act("retry", "It is tried again.") }, "Retry");
  const cancel = el("button.danger", { type: "button", click: () => sure.showModal() }, "Cancel run");
  const sure = confirmation(() => act("cancel", "It is cancelled."));
  const notices = el("div.notices");
  const detail = new Detail(id);
  const tree = new Tree((step) => detail.show(step));
  const trace = tracing(id);
  main.append(
    el("div.head", {}, el("div.name", {}, el("h1", {}, id), state), el("div.actions", {}, retry, cancel)),
    facts,
    notices,
    el("div.split", {}, tree.element, detail.element),
    trace,
    sure,
  );
  const waiting = waits(id, load);
  let run = null;
  let skew = 0;

  setInterval(() => run !== null && GOES_ON.has(run.status) && tick(), 1000);
  for (;;) {
    const known = run?.length ?? 0;
    if (!(await load())) {
      await pause(3000);
    } else if (run.status === "running" || run.length !== known) {
      await follow();
    } else {
      await pause(OVER.has(run.status) ? 10_000 : 1500);
    }
  }

  async function load() {
    try {
      const got = await get(address("runs", id));
      if (run !== null && run.status === got.status && run.length === got.length) return true;
      run = got;
      skew = Date.now() - run.now;
      draw();
      return true;
    } catch (error) {
      if (run === null) fill(notices, [el("p.notice.bad", {}, error.message, " ", el("a", { href: LIST }, "All runs"))]);
      else say(error.message, true);
      main.classList.toggle("gone", run === null);
      return false;
    }
  }

  /** Reads on whenever anything is recorded, until the run rests. */
  async function follow() {
    const leave = new AbortController();
    const looks = setInterval(load, 2000); // what a handler remembers is no event
    try {
      const headers = { "Last-Event-ID": `${id}:${run.length - 1}` };
      const stream = await fetch(address("runs", id, "events"), { headers, signal: leave.signal });
      if (stream.status === 200) {
        const reader = stream.body.getReader();
        while (!(await reader.read()).done) await load();
      }
    } catch {
      // the server went away: the next look says so
    } finally {
      clearInterval(looks);
      leave.abort();
    }
    await pause(200);
    await load();
    if (run.status === "running") await pause(300);
  }

  function draw() {
    main.classList.remove("gone");
    say("");
    state.dataset.status = run.status;
    fill(state, [sign(run.status), document.createTextNode(run.status)]);
    retry.hidden = !RETRIED.has(run.status) || !run.is_known;
    cancel.hidden = OVER.has(run.status);
    tree.draw(run);
    told();
    tick();
    const [failed, waits] = [one("failed"), one("waiting")];
    tree.begin(failed ?? waits ?? null);
    fill(notices, [notice(failed), waiting.drawn(run, waits)].flat());
  }

  function one(standing) {
    return leaves(run.root).find((step) => step.standing === standing) ?? null;
  }

  function tick() {
    const now = Date.now() - skew;
    const took = facts.querySelector(".took");
    const [from, until] = run.status === "parked" ? [run.progress, now] : [run.started, run.status === "running" ? now : run.progress];
    if (took) write(took, span(Math.max(0, until - from)));
    tree.tick(now);
  }

  function told() {
    const all = leaves(run.root);
    const ran = all.filter((step) => step.standing === "done");
    const replayed = ran.filter((step) => step.replays);
    const tokens = all.reduce((sum, step) => sum + (step.usage?.total ?? 0), 0);
    const tries = run.tries.filter((one) => one.cause !== "job").length;
    const pairs = [
      run.trigger ? ["Started by", run.trigger] : null,
      ["Flow", run.flow],
      ["Began", when(run.started, run.now)],
      [run.status === "parked" ? "Waiting for" : "Took", el("span.took")],
      ["Tries", String(Math.max(run.attempts, tries))],
      ["Saved", `${ran.length} ${ran.length === 1 ? "step" : "steps"}`],
      ["Replayed", replayed.length ? el("span.replayed", {}, `${replayed.length} of them`) : "none"],
      tokens ? ["Tokens", tokens.toLocaleString()] : null,
      run.session !== run.id ? ["Session", el("code", {}, run.session)] : null,
    ];
    fill(facts, pairs.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  function notice(failed) {
    const out = [];
    if (run.status === "failed" && failed !== null) {
      const last = failed.failures?.at(-1);
      const open = el("button.link", { type: "button", click: () => tree.select(failed, true) }, tree.nameOf(failed));
      out.push(el("section.notice.bad", { "aria-label": "Failure" }, el("p", {}, sign("failed"), el("strong", {}, open, " failed"), last ? el("code", {}, last.error) : null), el("pre", {}, last?.detail ?? failed.decided ?? run.error)));
    } else if (run.status === "failed") {
      out.push(el("section.notice.bad", { "aria-label": "Failure" }, el("p", {}, sign("failed"), el("strong", {}, "The run failed")), el("pre", {}, run.error)));
    }
    if (run.status === "stuck") out.push(el("p.notice.bad", {}, "It ended its process again and again without recording anything, and is left to people."));
    if (!run.is_known) out.push(el("p.notice", {}, "Its flow is not registered here: it can be looked at, and cancelled."));
    if (run.is_changed) out.push(el("p.notice", {}, "The registered flow has changed since: this is the flow that the run went by."));
    return out;
  }

  async function act(what, done) {
    for (const button of [retry, cancel]) button.disabled = true;
    try {
      await post(address("runs", id, what));
      await load();
      say(done);
    } catch (error) {
      say(error.message, true);
    }
    for (const button of [retry, cancel]) button.disabled = false;
  }
}

/** What asks before a run is ended for good. */
function confirmation(go) {
  const dialog = el("dialog", { "aria-labelledby": "sure" });
  const yes = el("button.danger", { type: "button", click: () => (dialog.close(), go()) }, "Cancel run");
  const no = el("button", { type: "button", click: () => dialog.close(), autofocus: true }, "Keep it");
  dialog.append(el("h2", { id: "sure" }, "Cancel this run?"), el("p", {}, "What it has open is undone, and its callers are told. It can be retried later."), el("div.actions", {}, no, yes));
  return dialog;
}

/** What a parked run waits for, and a way to deliver it; what was typed stays while the run is followed. */
function waits(id, load) {
  const text = el("textarea", { name: "payload", rows: 2, "aria-label": "Payload", required: true });
  const kind = el("select", { "aria-label": "Sent as" }, el("option", { value: "text" }, "as text"), el("option", { value: "json" }, "as JSON"));
  const send = el("button.main", { type: "submit" }, "Deliver");
  const asks = el("pre");
  const source = el("code");
  const form = el("form", { submit: deliver }, text, el("div.actions", {}, kind, send));
  const element = el("section.notice.wait", { "aria-label": "Waiting" }, el("p", {}, sign("waiting"), el("strong", {}, "Waits for ", source), el("span.since")), asks, form);
  let delivery = null;

  async function deliver(event) {
    event.preventDefault();
    let payload = text.value;
    try {
      if (kind.value === "json") payload = JSON.parse(payload);
    } catch (error) {
      return say(`This is no JSON: ${error.message}`, true);
    }
    // the same until it has arrived: sent twice, it counts once
    delivery ??= `inspector:${Date.now()}:${Math.random()}`;
    send.disabled = true;
    try {
      await post(address("runs", id, "deliver"), { source: source.textContent, payload, delivery_id: delivery });
      delivery = null;
      text.value = "";
      await load();
      say("It is delivered.");
    } catch (error) {
      say(error.message, true);
    }
    send.disabled = false;
    return undefined;
  }

  function drawn(run, step) {
    if (run.status !== "parked") return [];
    write(source, run.waiting_for ?? "");
    write(asks, run.asks);
    asks.hidden = !run.asks;
    element.querySelector(".since").replaceChildren(step?.began ? `since ${moment(step.began)}` : "");
    return [element];
  }
  return { drawn };
}

/** The last events of the run in the serving process, fetched when somebody looks. */
function tracing(id) {
  const body = el("tbody");
  const none = el("p.empty", { hidden: true }, "This process has seen nothing of the run lately.");
  const heads = ["Time", "Event", "Place", "Took", "Detail"].map((head) => el("th", { scope: "col" }, head));
  const table = el("table.trace", { hidden: true }, el("thead", {}, el("tr", {}, heads)), body);
  async function load() {
    try {
      const events = await get(address("runs", id, "trace"));
      none.hidden = events.length > 0;
      table.hidden = events.length === 0;
      fill(body, events.map(line));
    } catch (error) {
      say(error.message, true);
    }
  }
  function line(event) {
    const time = CLOCK.format(new Date(event.at));
    return el("tr", {}, el("td.time", {}, time), el("td.kind", {}, event.kind), el("td.place", {}, event.path), el("td.time", {}, event.dur_ns ? span(event.dur_ns / 1e6) : ""), el("td", {}, event.detail ?? ""));
  }
  return el("details.tracing", { toggle: (event) => event.target.open && load() }, el("summary", {}, "Trace of this process"), table, none);
}
