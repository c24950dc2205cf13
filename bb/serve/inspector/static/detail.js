// One place of a run in full: when it ran, why it failed, what was said there and what came out.

import { address, el, fill, get, moment, sign, span } from "./dom.js";
import { WORDS } from "./tree.js";

export class Detail {
  #id;
  #shown = null;
  #turn = 0;
  #body = el("div");

  constructor(id) {
    this.#id = id;
    this.element = el("aside.detail", { "aria-label": "Details", tabindex: "-1" }, this.#body);
  }

  /** Shows a step, or what the run was given. */
  async show(step) {
    const said = JSON.stringify(step === null ? null : { ...step, parts: undefined });
    if (said === this.#shown) return;
    this.#shown = said;
    const mine = ++this.#turn;
    const held = el("div");
    const head = step === null ? [el("h2", {}, "Input")] : headOf(step);
    let more = [];
    if (step === null || step.attempt || step.entries) {
      const url = address("runs", this.#id, "at");
      url.searchParams.set("path", step?.path ?? "");
      try {
        more = contentsOf(await get(url), step === null);
      } catch (error) {
        more = [el("p.empty", {}, error.message)];
      }
    }
    if (mine !== this.#turn) return;
    fill(held, more);
    fill(this.#body, [...head, held]);
  }
}

function headOf(step) {
  const took = step.began !== undefined && step.ended !== undefined ? span(step.ended - step.began) : "";
  const facts = [
    ["Status", WORDS[step.standing]],
    ["Kind", step.kind],
    step.slot ? ["Body", step.slot] : null,
    step.began !== undefined ? ["Began", moment(step.began)] : null,
    took ? ["Took", took] : null,
    step.attempt ? ["Saved", `in try ${step.attempt}`] : null,
    step.replays ? ["Replayed", step.replays === 1 ? "in one later try" : `in ${step.replays} later tries`] : null,
    step.waits_for ? ["Waits for", step.waits_for] : null,
    step.usage ? ["Tokens", `${step.usage.input.toLocaleString()} in, ${step.usage.output.toLocaleString()} out`] : null,
    ["Path", el("code.path", {}, step.path)],
  ];
  const title = step.id || step.title || step.kind;
  return [
    el("h2", {}, sign(step.standing), title),
    step.id && step.title && step.title !== step.id ? el("p.subtitle", {}, step.title) : null,
    ...alike(step.failures ?? []).toReversed().map(({ last, tries }) =>
      el("section.failure", {}, el("h3", {}, last.error, el("span.aside", {}, `${counted(tries)}, ${moment(last.at)}`)), el("pre", {}, last.detail)),
    ),
    step.decided && step.kind !== "checkpoint" && step.kind !== "scope" ? el("section", {}, el("h3", {}, step.kind === "one" ? "Won by" : "Caught"), el("pre", {}, step.decided)) : null,
    el("dl.pairs", {}, facts.filter(Boolean).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  ];
}

/** Failures that followed each other and say the same, as one. */
function alike(failures) {
  const out = [];
  for (const failure of failures) {
    const before = out.at(-1);
    if (before?.last.error === failure.error && before.last.detail === failure.detail) {
      before.last = failure;
      before.tries.push(failure.attempt);
    } else out.push({ last: failure, tries: [failure.attempt] });
  }
  return out;
}

function counted(tries) {
  const [first, last] = [tries[0], tries.at(-1)];
  if (first === last) return `try ${first}`;
  return tries.length === 2 ? `tries ${first} and ${last}` : `tries ${first} to ${last}`;
}

function contentsOf(detail, given) {
  const { messages, entries } = detail;
  const out = [];
  if (messages.length) out.push(el("section", {}, el("h3", {}, given ? "Messages" : "Said"), messages.map(messageOf)));
  if (detail.selected) out.push(el("section", {}, el("h3", {}, "Selected"), el("pre", {}, detail.selected)));
  if (detail.has_value) out.push(el("section", {}, el("h3", {}, given ? "Given" : "Value"), el("pre.value", {}, pretty(detail.value))));
  if (entries.length) {
    out.push(el("section", {}, el("h3", {}, "Inside"), entries.map((entry) => el("details.entry", {}, el("summary", {}, el("span.chip", {}, entry.kind), entry.name), el("pre.value", {}, pretty(entry.value))))));
  }
  return out.length ? out : [el("p.empty", {}, given ? "It was given nothing." : "It said nothing.")];
}

function messageOf(message) {
  return el(
    "article.message",
    { "data-role": message.role },
    el("h4", {}, message.role),
    message.text ? el("div.text", {}, message.text) : null,
    message.calls.map((call) => el("div.call", {}, el("span.chip", {}, "calls"), el("code", {}, call.name), el("pre.value", {}, call.input))),
    message.results.map((result) => el("div.call", {}, el(result.is_error ? "span.chip.failed" : "span.chip", {}, "result"), el("pre.value", {}, result.text))),
  );
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
