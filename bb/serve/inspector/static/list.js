// The list of runs, those first that changed last.

import { address, el, fill, get, pageOf, pause, say, sign, span, when } from "./dom.js";

const STATUSES = ["queued", "running", "parked", "failed", "stuck", "interrupted", "finished", "cancelled", "expired"];
const OVER = new Set(["finished", "cancelled", "expired", "failed"]);

/** Shows the list, and keeps it up to date. */
export function showList(main) {
  const asked = new URLSearchParams(location.search);
  const text = el("input", { type: "search", name: "text", placeholder: "Run or session id", "aria-label": "Run or session id", autocomplete: "off", spellcheck: "false" });
  const flow = el("select", { name: "flow", "aria-label": "Flow" }, el("option", { value: "" }, "All flows"));
  const status = el("select", { name: "status", "aria-label": "Status" }, el("option", { value: "" }, "Any status"), STATUSES.map((one) => el("option", { value: one }, one)));
  const clear = el("button.quiet", { type: "reset" }, "Clear");
  const filters = el("form.filters", { role: "search", submit: (event) => event.preventDefault() }, text, flow, status, clear);
  const body = el("tbody");
  const heads = ["Status", "Run", "Flow", "Changed", "Took", "Tries", "Error or wait"];
  const table = el("table.runs", {}, el("thead", {}, el("tr", {}, heads.map((head) => el(`th.${head.split(" ")[0].toLowerCase()}`, { scope: "col" }, head)))), body);
  const empty = el("p.empty", { hidden: true });
  const count = el("span.count");
  const first = el("button.quiet", { type: "button", click: () => turn("") }, "Newest");
  const older = el("button.quiet", { type: "button", click: () => turn(next) }, "Older");
  main.append(el("h1.sr", {}, "Runs"), filters, table, empty, el("nav.pages", { "aria-label": "Pages" }, count, first, older));

  let start = asked.get("start") ?? "";
  let next = null;
  let turns = 0;
  let rows = new Map();
  text.value = asked.get("text") ?? "";
  status.value = asked.get("status") ?? "";
  know([asked.get("flow")].filter(Boolean));
  flow.value = asked.get("flow") ?? "";

  let timer;
  filters.addEventListener("input", () => {
    point(""); // at once: whoever reloads what they see gets the same
    clearTimeout(timer);
    timer = setTimeout(load, 150);
  });
  filters.addEventListener("reset", () => setTimeout(() => turn("")));
  keep();

  function know(flows) {
    const known = new Set([...flow.options].map((option) => option.value));
    for (const one of flows) if (!known.has(one)) flow.append(el("option", { value: one }, one));
  }

  function turn(to) {
    point(to);
    return load();
  }

  function point(to) {
    start = to ?? "";
    const now = new URLSearchParams();
    for (const [name, value] of [["text", text.value.trim()], ["flow", flow.value], ["status", status.value], ["start", start]]) if (value) now.set(name, value);
    history.replaceState(null, "", now.size ? `?${now}` : location.pathname);
  }

  async function load() {
    const mine = ++turns;
    const url = address("runs");
    for (const [name, value] of [["text", text.value.trim()], ["flow", flow.value], ["status", status.value], ["start", start]]) if (value) url.searchParams.set(name, value);
    try {
      const page = await get(url);
      if (mine !== turns) return;
      say("");
      draw(page);
    } catch (error) {
      if (mine === turns) say(error.message, true);
    }
  }

  function draw(page) {
    know(page.flows);
    next = page.next;
    const filtered = Boolean(text.value || flow.value || status.value);
    clear.hidden = !filtered;
    first.hidden = !start;
    older.hidden = !next;
    count.textContent = `${page.kept.toLocaleString()} ${page.kept === 1 ? "run" : "runs"} kept`;
    empty.hidden = page.runs.length > 0;
    table.hidden = page.runs.length === 0;
    empty.textContent = filtered ? "No run is like that." : "No run is kept yet.";
    const before = rows;
    rows = new Map();
    for (const run of page.runs) {
      const known = before.get(run.id);
      // a row that says the same stays the same element; what its clock says is brought up to date
      const same = known !== undefined && known.said === JSON.stringify(run);
      const row = same ? known.row : made(run, page.now);
      if (same) clock(row, run, page.now);
      rows.set(run.id, { row, said: JSON.stringify(run) });
    }
    const focused = document.activeElement?.closest?.("tr")?.dataset.id;
    fill(body, [...rows.values()].map((one) => one.row));
    if (focused && !body.contains(document.activeElement)) rows.get(focused)?.row.querySelector("a")?.focus();
  }

  function made(run, now) {
    const what = run.status === "parked" ? `waits for ${run.waiting_for}` : ["failed", "stuck", "interrupted"].includes(run.status) ? run.error : "";
    const row = el(
      "tr",
      { "data-id": run.id, "data-status": run.status },
      el("td.status", {}, el("span.state", { "data-status": run.status }, sign(run.status), run.status)),
      el("td.run", {}, el("a", { href: pageOf(run.id), title: run.id }, run.id), run.session === run.id ? null : el("span.session", { title: `session ${run.session}` }, run.session)),
      el("td.flow", { title: run.flow }, run.trigger || run.flow),
      el("td.changed"),
      el("td.took"),
      el("td.tries", {}, String(run.attempts)),
      el("td.error", { title: what || null }, what),
    );
    clock(row, run, now);
    return row;
  }

  function clock(row, run, now) {
    row.querySelector(".changed").replaceChildren(when(run.progress, now));
    const until = run.status === "running" ? now : run.progress;
    row.querySelector(".took").textContent = span(until - run.started);
    row.classList.toggle("over", OVER.has(run.status));
  }

  async function keep() {
    for (;;) {
      if (!document.hidden) await load();
      await pause(2000);
    }
  }
}
