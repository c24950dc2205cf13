// Elements, times, and the server. Whatever is shown goes through text nodes and attributes: nothing is ever parsed as HTML.

const HOME = new URL("..", import.meta.url); // …/runs/

/** Where all runs are shown. */
export const LIST = HOME.href.replace(/\/$/, "");

/** An element: `el("a.name", { href }, "text", child)`. Values that are null or false are left out. */
export function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length) made.classList.add(...classes);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
const STROKES = {
  done: "M4.6 8.3l2.3 2.3 4.5-4.9",
  failed: "M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2",
  waiting: "M6.4 5.4v5.2M9.6 5.4v5.2",
  undone: "M5.2 7.2h4a1.9 1.9 0 0 1 0 3.8H7M7 5.2l-2 2 2 2",
  skipped: "M5 8h6",
  open: "M5.2 8h.1M8 8h.1M10.8 8h.1",
};
const SAME = { queued: "pending", undoing: "undone", interrupted: "open", stuck: "failed", parked: "waiting", finished: "done", cancelled: "skipped", expired: "skipped" };

/** The sign of how something stands; its form tells as much as its colour. */
export function sign(standing) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", `sign is-${standing}`);
  svg.setAttribute("aria-hidden", "true");
  const ring = document.createElementNS(SVG, "circle");
  for (const [key, value] of [["cx", 8], ["cy", 8], ["r", 6.5]]) ring.setAttribute(key, value);
  svg.append(ring);
  const stroke = STROKES[SAME[standing] ?? standing];
  if (stroke) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", stroke);
    svg.append(path);
  }
  return svg;
}

/** Puts children in place of those that are there; nothing moves when they are the same. */
export function fill(parent, children) {
  const wanted = children.filter(Boolean);
  wanted.forEach((child, at) => {
    if (parent.childNodes[at] !== child) parent.insertBefore(child, parent.childNodes[at] ?? null);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

/** Sets a text, unless it is the same: a selection in it stays. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A length of time for people. */
export function span(ms) {
  if (ms < 1) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const [big, small, units] = ms < 3_600_000 ? [60_000, 1000, "m s"] : ms < 86_400_000 ? [3_600_000, 60_000, "h m"] : [86_400_000, 3_600_000, "d h"];
  const [first, second] = units.split(" ");
  return `${Math.floor(ms / big)} ${first} ${Math.floor((ms % big) / small)} ${second}`;
}

/** How long ago something was. */
export function ago(at, now) {
  const ms = Math.max(0, now - at);
  if (ms < 10_000) return "just now";
  if (ms < 60_000) return `${Math.floor(ms / 1000)} s ago`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ago`;
  if (ms < 86_400_000) return `${Math.floor(ms / 3_600_000)} h ago`;
  return `${Math.floor(ms / 86_400_000)} d ago`;
}

const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** A time, exact and in the zone of who looks. */
export function moment(at) {
  return MOMENT.format(at);
}

/** A time as an element, said briefly and told exactly. */
export function when(at, now) {
  return el("time", { datetime: new Date(at).toISOString(), title: moment(at) }, ago(at, now));
}

/** Where a run is shown. */
export function pageOf(id) {
  return new URL(encodeURIComponent(id), HOME).href;
}

/** An address of the server: `address("runs", id, "at")`. */
export function address(...parts) {
  return new URL(`api/${parts.map(encodeURIComponent).join("/")}`, HOME);
}

/** What the server has at an address. Throws an Error that says what is wrong. */
export async function get(url, signal) {
  return answer(await fetch(url, { signal, headers: { Accept: "application/json" } }));
}

/** Asks the server to do something. Throws as `get` does. */
export async function post(url, body = {}) {
  return answer(await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));
}

async function answer(response) {
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(said.error?.message ?? `the server answered ${response.status}`);
  return said;
}

/** Says something to who looks, and to who listens. */
export function say(text, wrong = false) {
  const said = document.getElementById("said");
  write(said, text);
  said.classList.toggle("wrong", wrong);
}

/** Waits; ends early when the page is seen again. */
export function pause(ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      resolve();
    }
    function seen() {
      if (!document.hidden) done();
    }
    document.addEventListener("visibilitychange", seen);
  });
}
