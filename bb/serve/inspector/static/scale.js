// The timeline of a run. Long times in which nothing ran take little room, so that what ran can be seen.

const LEAST = 0.1; // of the time in which something ran: idle times longer than that are cut to it

export class Scale {
  #run;
  #marks = [];

  constructor(run) {
    this.#run = run;
    this.until(run.now);
  }

  /** Counts what is going on as going on until now. */
  until(now) {
    this.now = now;
    const run = this.#run;
    const going = run.status === "running";
    const end = going ? Math.max(now, run.progress) : run.status === "parked" ? Math.max(run.progress, now) : run.progress;
    const busy = merged(spans(run.root, now), run.started, end);
    const ran = Math.max(1, busy.reduce((sum, [from, to]) => sum + to - from, 0));
    this.took = end - run.started;
    this.#marks = [[run.started, 0]];
    const gaps = [];
    let at = run.started;
    let x = 0;
    for (const [from, to] of [...busy, [end, end]]) {
      if (from > at) {
        const cut = Math.min(from - at, ran * LEAST);
        if (cut < from - at && from - at > 1000) gaps.push({ from: x, to: x + cut, took: from - at });
        x += cut;
        this.#marks.push([from, x]);
      }
      x += to - from;
      this.#marks.push([to, x]);
      at = Math.max(at, to);
    }
    const width = x || 1;
    this.#marks = this.#marks.map(([time, place]) => [time, (place / width) * 100]);
    this.gaps = gaps.map((gap) => ({ left: (gap.from / width) * 100, width: ((gap.to - gap.from) / width) * 100, took: gap.took }));
  }

  /** Where a time is, in percent. */
  at(time) {
    let [before, left] = this.#marks[0];
    for (const [after, right] of this.#marks) {
      if (time <= after) return after === before ? right : left + ((time - before) / (after - before)) * (right - left);
      [before, left] = [after, right];
    }
    return left;
  }
}

/** When steps ran, each from and to. */
function spans(step, now) {
  const failed = (step.failures ?? []).map((failure) => [failure.began, failure.at]);
  if (step.parts) return [...failed, ...step.parts.flatMap((part) => spans(part, now))];
  if (step.began === undefined || step.kind === "await") return failed;
  return [...failed, [step.began, step.ended ?? (step.standing === "running" ? now : step.began)]];
}

function merged(all, start, end) {
  const out = [];
  for (const [from, to] of all.sort((a, b) => a[0] - b[0])) {
    const [low, high] = [Math.max(start, from), Math.min(end, Math.max(from, to))];
    if (high < low) continue;
    if (out.length && low <= out.at(-1)[1]) out.at(-1)[1] = Math.max(out.at(-1)[1], high);
    else out.push([low, high]);
  }
  return out;
}
