// The live page: shows what the process sends once a second.
// Everything it sends is shown as text (textContent), never as markup.

import { Chart } from "./charts.js";

const POINTS = 240;
const SILENCE = 8000; // milliseconds without an event after which the connection counts as lost
const AGAIN = 2000;
const LEVELS = ["fine", "worth a look", "trouble"];
const by = (id) => document.getElementById(id);
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

// -- words

const amount = (value) => value === null ? "–" : value !== 0 && Math.abs(value) < 10 ? String(Math.round(value * 10) / 10) : compact.format(value);
const percent = (share) => share === null ? "–" : `${Math.round(share * 100)} %`;
const at = (seconds) => clock.format(seconds * 1000);

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 150) return `${Math.round(seconds)} s`;
  return seconds < 9000 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

// -- the document: touched only where something has changed

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function mark(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function item(...parts) {
  const li = document.createElement("li");
  for (const [text, kind] of parts) {
    const span = document.createElement("span");
    span.textContent = text;
    if (kind) span.className = kind;
    li.append(span);
  }
  return li;
}

/** Fill a list, unless it has these items already. */
function list(element, items) {
  const said = JSON.stringify(items);
  if (element.said === said) return;
  element.said = said;
  element.replaceChildren(...items.map((parts) => item(...parts)));
}

const counted = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([word, count]) => [[word], [amount(count)]]);

// -- rows: one for each policy, and one for each queue

class Row {
  constructor(template, name, colours, label) {
    this.element = by(template).content.firstElementChild.cloneNode(true);
    this.fields = {};
    for (const field of this.element.querySelectorAll("[data-f]")) this.fields[field.dataset.f] = field;
    write(this.fields.name, name);
    this.colours = colours;
    this.spark = null;
    this.chart = null;
    this.place = this.element.querySelector(".chart");
    mark(this.place, "aria-label", `${label} of ${name}, over the last four minutes`);
    this.element.addEventListener("toggle", () => this.opened());
    seen.observe(this.element);
    this.element.row = this;
  }

  say(values) {
    for (const [name, text] of Object.entries(values)) write(this.fields[name], text);
  }

  fact(name, value, text) {
    write(this.fields[name], text);
    if (value) this.fields[name].removeAttribute("data-idle");
    else this.fields[name].setAttribute("data-idle", "");
  }

  gauge(share, level) {
    const width = percent(Math.min(1, share ?? 0)).replace(" ", "");
    if (this.fields.gauge.style.width !== width) this.fields.gauge.style.width = width;
    mark(this.fields.gauge, "data-level", level);
  }

  lines(kind) {
    return this.pick(past[kind].get(this.fields.name.textContent) ?? []);
  }

  opened() {
    if (this.element.open && !this.chart) this.chart = new Chart(this.place, this.colours);
    else if (!this.element.open && this.chart) this.chart = void this.chart.remove();
    this.draw();
  }

  watched(yes) {
    if (yes && !this.spark) this.spark = new Chart(this.element.querySelector(".spark"), this.colours, true);
    else if (!yes && this.spark) this.spark = void this.spark.remove();
    this.draw();
  }

  draw() {
    if (!this.spark && !this.chart) return;
    const lines = this.lines(this.kind);
    if (lines.length === 0) return;
    if (this.spark) this.spark.show(past.times, lines);
    if (this.chart) this.chart.show(past.times, lines);
  }

  remove() {
    seen.unobserve(this.element);
    this.spark?.remove();
    this.chart?.remove();
    this.element.remove();
  }
}

class Policy extends Row {
  kind = "policies";

  constructor(name) {
    super("policy", name, ["--calls", "--retries", "--failed"], "Calls, retries and failures per second");
  }

  pick(lines) {
    return lines;
  }

  update(row) {
    const { shelter } = row;
    this.fact("calls", row.calls, amount(row.calls));
    this.fact("retries", row.retries, amount(row.retries));
    this.fact("delay", row.delay, row.delay ? duration(row.delay[0]) : "–");
    this.fact("shelter", shelter && shelter.state !== "calm", shelter ? shelter.state : "–");
    mark(this.fields.shelter, "data-state", shelter ? shelter.state : null);
    this.gauge(row.share, row.share === null ? 0 : row.share < 0.1 ? 2 : row.share < 0.25 ? 1 : 0);
    this.say({ share: percent(row.share) });
    if (!this.element.open) return;
    const limit = shelter && shelter.limit !== null ? `, at most ${amount(shelter.limit)} in flight` : "";
    this.say({
      in_flight: amount(row.in_flight),
      failed: amount(row.failed),
      balance: row.balance !== null ? amount(row.balance) : row.wrong ? "–" : "no limit",
      delays: row.delay ? `half below ${duration(row.delay[0])}, longest ${duration(row.delay[1])}` : "no retry in the last minute",
      sheltered: shelter ? `${shelter.name} is ${shelter.state}, ${amount(shelter.waiters)} wait${limit}` : "none",
      error: row.error ? `${at(row.error[0])}  ${row.error[1]}` : "",
    });
    for (const name of ["reasons", "given_up", "refused"]) list(this.fields[name], counted(row[name]));
  }
}

class Queue extends Row {
  kind = "queues";

  constructor(name) {
    super("queue", name, ["--calls", "--failed", "--retries"], "Keys ended and failed per second, and keys ready,");
  }

  pick([ended = [], failed = [], , ready = []]) {
    return [ended, failed, ready];
  }

  update(row) {
    this.fact("ready", row.ready, amount(row.ready));
    this.fact("age", row.age, duration(row.age));
    this.fact("ended", row.ended, amount(row.ended));
    this.fact("dead", row.dead, amount(row.dead));
    this.gauge(row.live ? row.in_hand / row.workers : 0, 0);
    this.say({ hands: row.live ? `${row.in_hand} of ${row.workers}` : "no" });
    if (!this.element.open) return;
    this.say({
      delayed: amount(row.delayed),
      failed: amount(row.failed),
      busy: percent(row.busy),
      adds: row.adds === null ? "the store has them" : `${amount(row.adds)}, ${amount(row.coalesced)}`,
      failing: row.failing ?? "answers",
    });
    list(this.fields.endings, counted(row.endings));
    list(this.fields.hottest, row.hottest.map(([key, times]) => [[key], [amount(times)]]));
    list(this.fields.failing_keys, row.failing_keys.map(([key, times, error]) => [[key], [` ${times} times in a row: ${error}`, "dim"]]));
    list(this.fields.letters, row.dead_letters.map(([when, key, kind, reason]) => [[key], [` ${at(when)}, ${kind}: ${reason}`, "dim"]]));
  }
}

// -- lists of rows, the worst first

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.row.watched(entry.isIntersecting);
});
const changes = [];

class Rows {
  constructor(id, kind) {
    this.element = by(id);
    this.kind = kind;
    this.rows = new Map();
  }

  update(shown) {
    const names = new Set(shown.map((row) => row.name));
    for (const [name, row] of this.rows) {
      if (!names.has(name)) this.rows.delete(name), row.remove();
    }
    shown.forEach((values, place) => {
      let row = this.rows.get(values.name);
      if (!row) this.rows.set(values.name, (row = new this.kind(values.name)));
      this.settle(row.element, place);
      this.judge(row, values);
      row.update(values);
      row.values = values;
    });
    this.filter();
  }

  /** Move a row to its place, and keep the focus in it. */
  settle(element, place) {
    const there = this.element.children[place];
    if (there === element) return;
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    this.element.insertBefore(element, there ?? null);
    focused?.focus({ preventScroll: true });
  }

  judge(row, values) {
    const before = row.element.dataset.level;
    mark(row.element, "data-level", values.level);
    const why = values.why.join(", ");
    write(row.fields.why, why);
    if (before !== undefined && before !== String(values.level)) {
      changes.push(`${values.name}: ${LEVELS[values.level]}${why ? `, ${why}` : ""}`);
    }
  }

  filter() {
    const wanted = by("filter").value.trim().toLowerCase();
    for (const [name, row] of this.rows) row.element.hidden = !name.toLowerCase().includes(wanted);
  }

  draw() {
    for (const row of this.rows.values()) row.draw();
  }
}

const policies = new Rows("policy-rows", Policy);
const queues = new Rows("queue-rows", Queue);
let overview = null;
let past = { times: [], all: [[], [], []], policies: new Map(), queues: new Map() };

/** Announce changes to screen readers: changes of state, not each number, and a few at a time. */
setInterval(() => {
  const said = changes.splice(0);
  if (said.length) write(by("announced"), said.length > 3 ? `${said.slice(0, 3).join(". ")}, and ${said.length - 3} more` : said.join(". "));
}, 3000);

// -- data from the process

function push(lines, points) {
  points.forEach((point, place) => {
    const line = (lines[place] ??= []);
    line.push(point);
    if (line.length > POINTS) line.shift();
  });
  return lines;
}

function remember(frame) {
  if (past.times.at(-1) >= frame.at) return; // it came with the history
  push([past.times], [frame.at]);
  push(past.all, [frame.totals.calls, frame.totals.retries, frame.totals.failed]);
  const kept = (rows, lines, points) => new Map(rows.map((row) => [row.name, push(lines.get(row.name) ?? [], points(row))]));
  past.policies = kept(frame.policies, past.policies, (row) => [row.calls, row.retries, row.failed]);
  past.queues = kept(frame.queues, past.queues, (row) => [row.ended, row.failed, row.busy, row.ready ?? 0]);
}

function show(frame) {
  const sum = (rows, value) => rows.reduce((total, row) => total + (value(row) ?? 0), 0);
  const shelters = new Map(frame.policies.filter((row) => row.shelter).map((row) => [row.shelter.name, row.shelter]));
  const buried = sum(frame.queues, (row) => row.endings.buried);
  const tile = (id, value, level) => (write(by(id), amount(value)), mark(by(id), "data-level", level));
  tile("all-calls", frame.totals.calls, 0);
  tile("all-retries", frame.totals.retries, frame.totals.retries > 0.1 * frame.totals.calls ? 1 : 0);
  tile("all-failed", frame.totals.failed, frame.totals.failed > 0 ? 1 : 0);
  tile("all-waiters", sum([...shelters.values()], (each) => each.waiters), [...shelters.values()].some((each) => each.state === "storm" || each.state === "probing") ? 2 : 0);
  tile("all-ready", sum(frame.queues, (row) => row.ready), 0);
  tile("all-dead", sum(frame.queues, (row) => row.dead), buried ? 2 : 0);
  write(by("process"), frame.process);
  const troubled = [...frame.policies, ...frame.queues].filter((row) => row.level === 2).length;
  document.title = troubled ? `(${troubled}) abate` : "abate";
  policies.update(frame.policies);
  queues.update(frame.queues);
  list(by("notices"), frame.notices.map((each) => [
    [`${at(each.at)} `, "dim"], [`${each.name}: ${each.text}`], [each.times > 1 ? ` ${each.times} times` : "", "dim"],
  ]));
  list(by("layers"), frame.layers.map((each) => [[`${each.outer} around ${each.inner}`], [` ${amount(each.times)} times`, "dim"]]));
  list(by("stores"), frame.stores.map((each) => [[each.name], [each.degraded ? " doesn’t answer" : " answers", each.degraded ? "bad" : "dim"]]));
}

function draw() {
  overview ??= new Chart(by("all-chart"), ["--calls", "--retries", "--failed"]);
  overview.show(past.times, past.all);
  policies.draw();
  queues.draw();
}

// -- the connection, which is reopened until it succeeds

let source = null;
let heard = 0;
let renewing = false;

function connection(state, text) {
  mark(by("connection"), "data-state", state);
  write(by("connection"), text);
}

function connect() {
  source?.close();
  heard = Date.now();
  source = new EventSource("events");
  source.addEventListener("history", (event) => {
    past = JSON.parse(event.data);
    // names come from peers: a Map, as a plain object has properties of its own
    for (const kind of ["policies", "queues"]) past[kind] = new Map(Object.entries(past[kind]));
  });
  source.addEventListener("message", (event) => {
    heard = Date.now();
    connection("live", "live");
    const frame = JSON.parse(event.data);
    remember(frame);
    show(frame);
    if (!document.hidden) draw();
  });
  // the server may end a stream: the browser opens the next one at once
  source.addEventListener("renew", () => { renewing = true; });
  source.addEventListener("error", () => {
    if (!renewing) connection("lost", "connection lost, trying again");
    renewing = false;
  });
}

setInterval(() => {
  // a browser does not reconnect after a refusal, and does not notice a silent connection
  if (source.readyState === EventSource.CLOSED || Date.now() - heard > SILENCE) {
    connection("lost", "connection lost, trying again");
    connect();
  }
}, AGAIN);

document.addEventListener("visibilitychange", () => document.hidden || draw());
by("filter").addEventListener("input", () => (policies.filter(), queues.filter()));
// opening a row updates what was not updated while it was closed
for (const rows of [policies, queues]) {
  rows.element.addEventListener("toggle", (event) => event.target.row?.update(event.target.row.values), true);
}
/** Remove the token of a sign-in link from the address bar, if the browser is signed in already. */
function tidy() {
  if (location.search || location.hash) window.history.replaceState(null, "", location.pathname);
}
window.addEventListener("hashchange", tidy);
tidy();
connect();
