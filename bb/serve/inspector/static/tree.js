// The tree of a run beside its timeline, as a treegrid.

import { el, fill, moment, sign, span, write } from "./dom.js";
import { Scale } from "./scale.js";

export const WORDS = {
  done: "done",
  running: "running",
  waiting: "waiting",
  failed: "failed",
  undoing: "being undone",
  undone: "undone",
  open: "not finished",
  unrecorded: "gone by; leaves no record",
  skipped: "skipped",
  pending: "not reached",
};
const SPEAKING = new Set(["agents", "call", "notify", "bind", "memo", "ai_segment"]); // what they do is their name
const QUIET = new Set(["done", "skipped", "unrecorded", "pending", "undone"]);
const MANY = 40; // parts below something settled that are not unfolded by themselves

/** The parts that have no parts, in order. */
export function leaves(step) {
  return step.parts ? step.parts.flatMap(leaves) : [step];
}

/** What tells the rows apart: a part and the first of its tries have one path. */
function keyOf(step) {
  return `${step.kind}|${step.path}`;
}

export class Tree {
  #rows = new Map();
  #folded = new Map();
  #steps = [];
  #selected = null;
  #touched = false;
  #scale = null;
  #onSelect;
  #body = el("div.body", { role: "rowgroup" });
  #axis = el("div.axis", { "aria-hidden": "true" });
  #lines = el("div.lines", { "aria-hidden": "true" });
  #legend = el("p.legend", { hidden: true }, el("span.gap", { "aria-hidden": "true" }), "hatched: nothing ran, shortened");

  constructor(onSelect) {
    this.#onSelect = onSelect;
    const head = el("div.row.heads", { role: "row" }, el("span", { role: "columnheader" }, "Step"), el("span.took", { role: "columnheader" }, "Took"), el("span.lane", { role: "columnheader", "aria-label": "Timeline" }, this.#axis));
    this.element = el("section.tree", { role: "treegrid", "aria-label": "Steps", keydown: (event) => this.#key(event) }, el("div", { role: "rowgroup" }, head), el("div.rows", {}, this.#lines, this.#body), this.#legend);
  }

  /** Shows a run; rows that were there stay. */
  draw(run) {
    this.run = run;
    this.#scale = new Scale(run);
    this.#axisOf();
    this.#flow();
  }

  /** Selects where to begin, as long as nobody has chosen. */
  begin(step) {
    if (!this.#touched) this.select(step, false);
    else this.select(this.#steps.find((one) => keyOf(one.step) === this.#selected)?.step ?? null, false);
  }

  /** Selects a step; null selects the run. */
  select(step, chosen) {
    if (chosen) this.#touched = true;
    if (step !== null && !this.#steps.some((one) => one.step === step)) this.#unfold(step);
    this.#selected = step === null ? null : keyOf(step);
    for (const [key, row] of this.#rows) row.element.setAttribute("aria-selected", String(key === this.#selected));
    this.#rove(this.#selected ?? (this.#steps[0] && keyOf(this.#steps[0].step)));
    this.#onSelect(step);
    if (chosen && step !== null) this.#rows.get(this.#selected)?.element.scrollIntoView({ block: "nearest" });
  }

  /** What a step is called. */
  nameOf(step) {
    if (step.kind === "round" || step.kind === "attempt") return `${step.kind === "round" ? "Round" : "Try"} ${step.title}`;
    if (step.id) return step.id;
    return (SPEAKING.has(step.kind) && step.title) || step.kind || step.path.split("/").at(-1);
  }

  /** Brings what is going on up to date. */
  tick(now) {
    this.#scale.until(now);
    for (const { step } of this.#steps) this.#place(this.#rows.get(keyOf(step)), step);
    this.#axisOf();
  }

  #unfold(step) {
    const parts = step.path.split("/");
    for (let at = 1; at <= parts.length; at++) {
      const path = parts.slice(0, at).join("/");
      for (const base of new Set([path, path.replace(/[#@]\d+$/, "")])) for (const key of this.#keysAt(this.run.root, base)) this.#folded.set(key, false);
    }
    this.#flow();
  }

  #keysAt(step, path) {
    return [...(step.path === path ? [keyOf(step)] : []), ...(step.parts ?? []).flatMap((part) => this.#keysAt(part, path))];
  }

  /** Lays out the rows that are unfolded. */
  #flow() {
    this.#steps = [];
    this.#walk(this.run.root, 1, 1, 1);
    const before = this.#rows;
    this.#rows = new Map();
    for (const one of this.#steps) {
      const key = keyOf(one.step);
      const row = before.get(key) ?? this.#made(key);
      this.#rows.set(key, row);
      this.#update(row, one);
    }
    fill(this.#body, [...this.#rows.values()].map((row) => row.element));
    const current = this.#selected !== null && this.#rows.has(this.#selected) ? this.#selected : keyOf(this.run.root);
    if (![...this.#rows.values()].some((row) => row.element.tabIndex === 0)) this.#rove(current);
  }

  #walk(step, level, at, of) {
    const key = keyOf(step);
    if (step.parts && !this.#folded.has(key)) this.#folded.set(key, QUIET.has(step.standing) && count(step) > MANY && level > 1);
    const folded = Boolean(step.parts) && this.#folded.get(key);
    this.#steps.push({ step, level, at, of, folded });
    if (step.parts && !folded) step.parts.forEach((part, index) => this.#walk(part, level + 1, index + 1, step.parts.length));
  }

  #made(key) {
    const fold = el("span.fold", { "aria-hidden": "true" });
    const mark = el("span.mark");
    const name = el("span.title");
    const what = el("span.what");
    const chips = el("span.chips");
    const took = el("span.took", { role: "gridcell" });
    const lane = el("span.lane", { role: "gridcell" });
    const cell = el("span.cell", { role: "gridcell" }, fold, mark, name, what, chips);
    const element = el("div.row", { role: "row", tabindex: "-1", "data-key": key }, cell, took, lane);
    element.addEventListener("click", (event) => {
      const { step } = this.#at(key);
      if (fold.contains(event.target)) this.#toggle(step);
      else this.select(step, true);
    });
    return { element, cell, fold, mark, name, what, chips, took, lane, drawn: "" };
  }

  #at(key) {
    return this.#steps.find((one) => keyOf(one.step) === key);
  }

  #update(row, { step, level, at, of, folded }) {
    const { element } = row;
    element.setAttribute("aria-level", level);
    element.setAttribute("aria-posinset", at);
    element.setAttribute("aria-setsize", of);
    if (step.parts) element.setAttribute("aria-expanded", String(!folded));
    else element.removeAttribute("aria-expanded");
    element.setAttribute("aria-selected", String(keyOf(step) === this.#selected));
    row.cell.style.setProperty("--level", level - 1);
    row.fold.classList.toggle("has", Boolean(step.parts));
    row.fold.classList.toggle("folded", folded);
    const { parts, ...own } = step;
    const said = JSON.stringify([own, count(step), folded]);
    if (row.drawn !== said) {
      row.drawn = said;
      element.dataset.standing = step.standing;
      element.dataset.path = step.path;
      fill(row.mark, [sign(step.standing), el("span.sr", {}, WORDS[step.standing])]);
      write(row.name, this.nameOf(step));
      write(row.what, whatOf(step, folded));
      row.cell.title = `${step.path} · ${WORDS[step.standing]}`;
      fill(row.chips, chipsOf(step));
    }
    this.#place(row, step);
  }

  #place(row, step) {
    const { began, ended, standing } = step;
    const going = standing === "running" || standing === "waiting" || standing === "undoing";
    const until = ended ?? (going ? this.#scale.now : began);
    write(row.took, began !== undefined && (going || ended !== undefined) ? span(until - began) : "");
    const bars = (step.failures ?? []).map((failure) => ({ kind: "is-failed", from: failure.began, until: failure.at, told: failure.error }));
    if (began !== undefined && (step.parts || !bars.length || standing !== "failed")) bars.push({ kind: `is-${standing}${step.parts ? " whole" : ""}${step.kind === "await" ? " idle" : ""}${step.replays ? " again" : ""}`, from: began, until: until ?? began, told: "" });
    while (row.lane.childElementCount > bars.length) row.lane.lastChild.remove();
    while (row.lane.childElementCount < bars.length) row.lane.append(el("span"));
    bars.forEach((bar, at) => {
      const [left, right] = [this.#scale.at(bar.from), this.#scale.at(bar.until)];
      const shown = row.lane.children[at];
      shown.className = `bar ${bar.kind}`;
      shown.style.left = `${left}%`;
      shown.style.width = `${Math.max(0, right - left)}%`;
      shown.title = [bar.told, moment(bar.from), bar.until > bar.from ? span(bar.until - bar.from) : ""].filter(Boolean).join(", ");
    });
  }

  #axisOf() {
    const scale = this.#scale;
    const tries = this.run.tries.slice(1).map((one, at) => {
      const line = el("span.try", { title: `Try ${at + 2}: ${one.cause}, ${moment(one.at)}` });
      line.style.left = `${scale.at(one.at)}%`;
      return line;
    });
    const gaps = scale.gaps.map((gap) => {
      const mark = el("span.gap", { title: `nothing ran for ${span(gap.took)}` });
      mark.style.left = `${gap.left}%`;
      mark.style.width = `${gap.width}%`;
      return mark;
    });
    this.#legend.hidden = gaps.length === 0;
    fill(this.#lines, [el("span.chart", {}, gaps, tries)]);
    fill(this.#axis, [el("span", {}, "0"), el("span", {}, span(scale.took))]);
  }

  #toggle(step, folded = !this.#folded.get(keyOf(step))) {
    if (!step.parts) return;
    this.#touched = true;
    this.#folded.set(keyOf(step), folded);
    this.#flow();
  }

  #rove(key) {
    for (const [each, row] of this.#rows) row.element.tabIndex = each === key ? 0 : -1;
  }

  #key(event) {
    const row = event.target.closest(".row[data-key]");
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this.#steps.findIndex((one) => keyOf(one.step) === row.dataset.key);
    const { step, level, folded } = this.#steps[at];
    const go = (to) => {
      const one = this.#steps[Math.max(0, Math.min(to, this.#steps.length - 1))];
      this.#rove(keyOf(one.step));
      this.#rows.get(keyOf(one.step)).element.focus();
    };
    const above = () => this.#steps.findLastIndex((one, index) => index < at && one.level < level);
    const keys = {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(this.#steps.length - 1),
      ArrowRight: () => (step.parts && folded ? this.#toggle(step, false) : step.parts && go(at + 1)),
      ArrowLeft: () => (step.parts && !folded ? this.#toggle(step, true) : above() >= 0 && go(above())),
      Enter: () => this.select(step, true),
      " ": () => this.select(step, true),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }
}

function count(step) {
  return (step.parts ?? []).reduce((sum, part) => sum + 1 + count(part), 0);
}

function whatOf(step, folded) {
  const more = folded ? ` · ${count(step)} inside` : "";
  if (step.kind === "round" || step.kind === "attempt") return more.slice(3);
  const kind = step.kind === "chain" || !(step.id || (SPEAKING.has(step.kind) && step.title)) ? "" : step.kind;
  const title = step.title === step.id || (SPEAKING.has(step.kind) && !step.id) ? "" : step.title;
  return [kind, title].filter(Boolean).join(" · ") + (kind || title ? more : more.slice(3));
}

function chipsOf(step) {
  const failures = step.failures?.length ?? 0;
  return [
    step.slot && el("span.chip", {}, step.slot),
    step.replays && el("span.chip.replayed", { title: `saved in try ${step.attempt}` }, step.replays > 1 ? `replayed ×${step.replays}` : "replayed"),
    failures > 0 && step.standing !== "failed" && el("span.chip.failed", {}, failures > 1 ? `failed ×${failures} before` : "failed before"),
    step.waits_for && el("span.chip.waiting", {}, `waits for ${step.waits_for}`),
    step.kind === "one" && step.decided && el("span.chip", {}, `won by ${step.decided}`),
    step.kind === "try" && step.decided && el("span.chip.failed", { title: step.decided }, "caught an error"),
  ];
}
