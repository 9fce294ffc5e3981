"use strict";
// Asks this sidecar while the page is visible, and shows what it says. Names of topics are hostile text: everything is
// put into the page as text, never as markup.
const SHORTEST_PAUSE = 2000; // ms
const WORK_PART = 20; // a pause is at least so many times as long as the answers took
const ANSWER_WITHIN = 8000, FLEET_WITHIN = 60000; // ms
const LONGEST_FLEET_PAUSE = 30000; // ms
const CHART_SECONDS = 600;
const GAP_SECONDS = 5;
const TREND_SECONDS = 60, SHORTEST_TREND_SECONDS = 10;
const MOST_SETTINGS = 200;
const SIDES = { leader: "Leader side", follower: "Follower side" };
const ABOUT = { leader: "what this broker sends", follower: "what this broker receives" };
const PASSES = {
  fetch_version: "Fetches of a newer version than weir knows",
  fetch_too_large: "Fetches that are too large",
  fetch_malformed: "Fetches that cannot be read",
  too_many_topics: "Connections with too many topics",
  too_many_partitions: "Connections with too many partitions",
  not_a_replica: "Fetches with a replica's id that are no replica's",
  tls: "Connections with TLS",
  sasl: "Connections with the SASL handshake v0",
  not_kafka: "Connections that are not Kafka's",
  throttle_error: "Connections for which the throttle failed (a bug)",
};
const SVG = "http://www.w3.org/2000/svg";

const one = (selector, within = document) => within.querySelector(selector);
const panels = new Map(); // by side
const memory = { throttle: null, throttleAt: 0, passedAtOpening: null, seen: new Map() };

// Texts

function amount(bytes) {
  for (const [power, prefix] of [[4, "T"], [3, "G"], [2, "M"], [1, "k"]]) {
    // what rounds up to the next unit is shown in it
    if (bytes >= 999.5 * 1000 ** (power - 1)) return `${figures(bytes / 1000 ** power)} ${prefix}B`;
  }
  return `${Math.round(bytes)} B`;
}
const figures = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
const rate = (bytes) => (bytes === null || bytes === undefined ? "none" : `${amount(bytes)}/s`);
// a limit is what somebody has typed: 5 MB/s, not 5.00 MB/s
const limit = (bytes) => rate(bytes).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
const count = (value) => Math.round(value).toLocaleString("en-US");
const counted = (value, what) => `${count(value)} ${what}${Math.round(value) === 1 ? "" : "s"}`;
function duration(seconds) {
  let rest = Math.ceil(seconds);
  if (rest > 86400) rest = Math.ceil(rest / 3600) * 3600;
  else if (rest > 3600) rest = Math.ceil(rest / 60) * 60;
  const parts = [];
  for (const [unit, scale] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const whole = Math.floor(rest / scale);
    rest -= whole * scale;
    if (whole) parts.push(`${whole} ${unit}`);
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}
const cut = (text, most) => (text.length > most ? `${text.slice(0, most)}… (${count(text.length)} characters)` : text);

// Elements

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function draw(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}
// a name may be folded after its dots
const foldable = (name) => name.split(/(?<=\.)/).flatMap((part) => [part, make("wbr")]);
const cell = (text, kind = "") => make("td", { class: kind }, text);
const number = (text, kind = "") => cell(text, `number ${kind}`);
function say(element, text, kind) {
  if (element.textContent !== text) element.textContent = text;
  if (kind !== undefined) element.className = kind;
}

// One side

function panelOf(name) {
  if (panels.has(name)) return panels.get(name);
  const section = one("#side").content.cloneNode(true).firstElementChild;
  section.id = name;
  one("h2", section).append(SIDES[name], make("span", { class: "note" }, ` ${ABOUT[name]}`));
  const panel = { section, samples: [], at: null };
  panels.set(name, panel);
  one("#sides").append(section);
  const chart = one(".chart", section);
  new ResizeObserver(() => drawChart(panel)).observe(chart);
  const pick = (event) => {
    const box = chart.getBoundingClientRect();
    read(panel, panel.plot && panel.plot.timeAt(event.clientX - box.left));
  };
  chart.addEventListener("pointermove", pick);
  chart.addEventListener("pointerdown", pick);
  chart.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") read(panel, null); });
  chart.addEventListener("blur", () => read(panel, null));
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !panel.samples.length) return;
    const last = panel.samples[panel.samples.length - 1].at;
    const steps = { ArrowLeft: -5, ArrowRight: 5, PageUp: -60, PageDown: 60 };
    if (event.key === "Escape") read(panel, null);
    else if (event.key === "Home") read(panel, panel.samples[0].at);
    else if (event.key === "End") read(panel, last);
    else if (event.key in steps) read(panel, (panel.at === null ? last : panel.at) + steps[event.key]);
    else return;
    event.preventDefault();
  });
  return panel;
}

function showSide(name, side, settings) {
  const panel = panelOf(name);
  const section = panel.section;
  const { lag, held_up_by: held } = side;
  const quota = side.quota_bytes_per_second;
  const used = side.throttled_rate_bytes_per_second;
  say(one(".verdict", section), held.sentence, `verdict ${held.by}`);
  say(one(".rate", section), rate(used));
  say(one(".used", section), quota ? `${(100 * used / quota).toFixed(0)} % of the quota` : "of throttled replicas");
  say(one(".limit", section), limit(quota));
  say(one(".source", section), quotaNote(quota, side, settings[`${name}.replication.throttled.rate`]));
  say(one(".behind", section), count(lag.partitions_behind));
  say(one(".messages", section), lag.partitions_behind ? `partitions, ${counted(lag.messages, "message")}` : "partitions");
  const left = lag.time_left_seconds;
  const text = left !== null ? duration(left) : lag.partitions_behind ? (lag.stands_still ? "stands still" : "not known") : "-";
  say(one(".left", section), text, `left ${text.length > 9 ? "long" : ""} ${lag.stands_still ? "bad" : ""}`);
  say(one(".falls", section), fallNote(lag));
  showLate(section, lag);
  showLinks(section, side);
  drawChart(panel);
}

function quotaNote(quota, side, setting) {
  if (quota === null) return "nothing is throttled";
  if (!side.throttled_topics.length) return "no topic is listed";
  if (!setting) return "";
  return `from ${setting.source}${setting.ends_in_seconds === undefined ? "" : `, ${duration(setting.ends_in_seconds)} left`}`;
}

function fallNote(lag) {
  if (!lag.partitions_behind) return `nothing behind for ${duration(lag.none_for_seconds)}`;
  if (lag.falls_per_second === null) return "too early to tell";
  const speed = `${count(Math.abs(lag.falls_per_second))} messages/s`;
  return lag.falls_per_second > 0 ? `falls by ${speed}` : `grows by ${speed}`;
}

function showLate(section, lag) {
  const now = performance.now() / 1000;
  one(".late", section).hidden = !lag.worst.length;
  one(".late tbody", section).replaceChildren(...lag.worst.map((row) => {
    const key = JSON.stringify([section.id, row.topic, row.partition, row.replica]);
    return make("tr", {},
      make("th", { class: "name", scope: "row" }, ...foldable(`${row.topic}-${row.partition}`),
        make("span", { class: "note" }, ` replica ${row.replica}`)),
      number(count(row.lag_messages)),
      number(duration(row.lag_seconds)),
      number(row.stuck ? "stuck" : leftOf(key, row.lag_messages, now), row.stuck ? "bad" : ""));
  }));
  for (const [key, points] of memory.seen) if (now - points[points.length - 1][0] > TREND_SECONDS) memory.seen.delete(key);
}

// How long one partition takes at the pace of its last minute on this page.
function leftOf(key, messages, now) {
  const points = memory.seen.get(key) || [];
  memory.seen.set(key, points);
  points.push([now, messages]);
  while (now - points[0][0] > TREND_SECONDS) points.shift();
  const [since, before] = points[0];
  if (now - since < SHORTEST_TREND_SECONDS) return "…";
  return before > messages ? duration(messages * (now - since) / (before - messages)) : "waits";
}

function showLinks(section, side) {
  const peers = new Map();
  for (const link of side.links) {
    const peer = peers.get(link.peer) || { links: 0, behind: 0, waits: null };
    peer.links += 1;
    peer.behind += link.throttled_partitions_behind;
    if (link.left_out_for_seconds !== null) peer.waits = Math.max(peer.waits || 0, link.left_out_for_seconds);
    peers.set(link.peer, peer);
  }
  one(".links", section).hidden = !peers.size;
  one(".links h3", section).textContent = section.id === "leader" ? "Brokers that fetch here" : "Brokers fetched from";
  one(".links tbody", section).replaceChildren(...[...peers].map(([peer, { links, behind, waits }]) => make("tr", {},
    make("th", { scope: "row" }, String(peer)), number(count(links)), number(count(behind)),
    number(waits === null ? "-" : waits < 1 ? "less than 1 s" : duration(waits)))));
}

// The chart

function niceTop(value) {
  if (!(value > 0)) return 1000;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * scale >= value) * scale;
}

function drawChart(panel) {
  const { section, samples } = panel;
  const svg = one(".plot", section), width = svg.clientWidth, height = svg.clientHeight;
  if (!width || !samples.length) return;
  const newest = samples[samples.length - 1].at;
  const hasQuota = samples.some((sample) => sample.quota !== null);
  const top = niceTop(samples.reduce((most, { throttled, other, quota }) =>
    Math.max(most, 1.05 * (throttled + (hasQuota ? 0 : other)), quota === null ? 0 : 1.1 * quota), 0));
  const foot = 20, head = 8, plotHeight = height - foot - head;
  const x = (at) => width - (newest - at) * width / CHART_SECONDS;
  const y = (value) => head + plotHeight * (1 - Math.min(value, top) / top);
  panel.plot = { x, y, timeAt: (place) => newest - (width - place) * CHART_SECONDS / width };
  const parts = [];
  for (const part of [0.25, 0.5, 0.75, 1]) {
    const line = Math.round(y(top * part)) + 0.5;
    parts.push(draw("line", { class: "grid", x1: 0, x2: width, y1: line, y2: line }));
  }
  if (!hasQuota) parts.push(...area("other", samples, x, y, ({ throttled, other }) => throttled + other));
  parts.push(...area("throttled", samples, x, y, ({ throttled }) => throttled));
  parts.push(draw("path", { class: "line", d: quotaPath(samples, x, y) }));
  parts.push(draw("line", { class: "base", x1: 0, x2: width, y1: height - foot + 0.5, y2: height - foot + 0.5 }));
  for (const part of [0.5, 1]) parts.push(draw("text", { class: "tick", x: 2, y: y(top * part) + 12 }, limit(top * part)));
  const step = width < 420 ? 4 : 2;
  for (let minutes = 10 - (10 % step); minutes >= 0; minutes -= step) {
    const place = x(newest - 60 * minutes);
    const anchor = minutes === 0 ? "end" : place < 20 ? "start" : "middle";
    parts.push(draw("text", { class: "tick", x: Math.max(0, place), y: height - 4, "text-anchor": anchor }, minutes ? `${minutes} min ago` : "now"));
  }
  parts.push(draw("line", { class: "cursor", y1: head, y2: height - foot, visibility: "hidden" }));
  svg.replaceChildren(...parts);
  showLegend(section, hasQuota);
  read(panel, panel.at);
}

// Where no sample was taken for long (the process stood still) the area has a gap.
function area(kind, samples, x, y, value) {
  let path = "", line = "", run = [];
  const end = () => {
    if (run.length) {
      const [first, last] = [run[0], run[run.length - 1]];
      path += `M${x(first.at - 1).toFixed(1)} ${y(0)}`;
      const top = run.map((sample) => `L${x(sample.at).toFixed(1)} ${y(value(sample)).toFixed(1)}`).join("");
      line += `M${top.slice(1)}`;
      path += `${top}L${x(last.at).toFixed(1)} ${y(0)}Z`;
    }
    run = [];
  };
  for (const sample of samples) {
    if (run.length && sample.at - run[run.length - 1].at > GAP_SECONDS) end();
    run.push(sample);
  }
  end();
  return [draw("path", { class: `area ${kind}`, d: path }), draw("path", { class: `edge ${kind}`, d: line })];
}

function quotaPath(samples, x, y) {
  let path = "", before = null;
  for (const { at, quota } of samples) {
    if (quota !== null) {
      if (before === null) path += `M${x(at - 1).toFixed(1)} ${y(quota).toFixed(1)}`;
      else if (before !== quota) path += `V${y(quota).toFixed(1)}`;
      path += `H${x(at).toFixed(1)}`;
    }
    before = quota;
  }
  return path;
}

function showLegend(section, hasQuota) {
  const shown = [["throttled", "throttled replicas"], hasQuota ? ["quota", "quota"] : ["other", "other replicas"]];
  const key = shown.map(([kind]) => kind).join();
  const legend = one(".legend", section);
  if (legend.dataset.shown === key) return;
  legend.dataset.shown = key;
  legend.replaceChildren(...shown.map(([kind, text]) => make("li", {}, make("i", { class: kind }), text)));
}

function read(panel, at) {
  const { section, samples } = panel;
  const readout = one(".readout", section), cursor = one(".cursor", section), chart = one(".chart", section);
  if (!samples.length) return;
  const newest = samples[samples.length - 1].at;
  panel.at = at === null ? null : Math.min(newest, Math.max(samples[0].at, at));
  readout.classList.toggle("live", panel.at !== null);
  if (panel.at === null) {
    if (cursor) cursor.setAttribute("visibility", "hidden");
    readout.textContent = lastMinute(samples, newest);
    chart.setAttribute("aria-label", `${SIDES[section.id]}, last ten minutes. ${readout.textContent} Arrow keys read the values.`);
    return;
  }
  const sample = samples.reduce((best, other) => (Math.abs(other.at - panel.at) < Math.abs(best.at - panel.at) ? other : best));
  if (cursor) {
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, panel.plot.x(sample.at));
    cursor.setAttribute("visibility", "visible");
  }
  const ago = newest - sample.at < 0.5 ? "Now" : `${duration(newest - sample.at)} ago`;
  const of = sample.quota === null ? "without a quota" : `of ${limit(sample.quota)}`;
  readout.textContent = `${ago}: ${rate(sample.throttled)} ${of}. Not throttled: ${rate(sample.other)}. ${counted(sample.lag, "message")} behind.`;
}

function lastMinute(samples, newest) {
  const minute = samples.filter((sample) => sample.at > newest - 60);
  const sum = (field) => minute.reduce((total, sample) => total + sample[field], 0) / minute.length;
  const most = Math.max(...minute.map((sample) => sample.throttled));
  return `Last minute: ${rate(sum("throttled"))} on average, ${rate(most)} in the fullest second. Not throttled: ${rate(sum("other"))}.`;
}

// What all sides share

function showHead(status) {
  document.title = `weir, broker ${status.broker_id}`;
  say(one("h1"), `Broker ${status.broker_id}`);
  say(one("#about"), `weir ${status.version}, up ${duration(status.uptime_seconds)}`);
  const states = [make("li", { class: status.ready ? "good" : "bad" }, status.ready ? "ready" : "not ready")];
  if (status.topic_ids_unknown) states.push(make("li", { class: "bad" }, `${counted(status.topic_ids_unknown, "topic id")} without a name`));
  one("#states").replaceChildren(...states);
  trouble(status.not_ready.length ? `Not ready: ${status.not_ready.join("; ")}.` : "");
}

function trouble(sentence) {
  const element = one("#trouble");
  element.hidden = !sentence;
  say(element, sentence);
}

function showThrottle() {
  const { throttle } = memory;
  if (!throttle) return;
  const passed = (performance.now() - memory.throttleAt) / 1000;
  const rows = [];
  let more = 0;
  for (const { source, parts } of [...throttle.layers].reverse()) {
    for (const part of parts) {
      if (rows.length >= MOST_SETTINGS) more += 1;
      else rows.push(settingRow(source, part, throttle.sources[part.part] === source, passed));
    }
  }
  one("#throttle").hidden = false;
  one("#throttle tbody").replaceChildren(...rows);
  one("#throttle .scroll").hidden = !rows.length;
  say(one("#throttle .more"), more ? `${count(more)} more are not shown.` : rows.length ? "" : "Nothing is throttled: no layer has a setting.");
}

function settingRow(source, part, inForce, passed) {
  const topic = /^topics\.(.+)\.((?:leader|follower)\..+)$/.exec(part.part);
  const name = part.part === "*" ? "everything below" : topic ? `${topic[1]}: ${topic[2]}` : part.part;
  const value = part.removed ? "removed" : typeof part.value === "number" && part.part.endsWith("rate") ? limit(part.value) : cut(String(part.value), 80);
  const ends = part.expires_in_seconds === undefined ? "-" : duration(Math.max(0, part.expires_in_seconds - passed));
  const why = [part.owner, part.reason].filter(Boolean).join(": ") || "-";
  return make("tr", { class: inForce || part.removed ? "" : "over" }, make("th", { class: "name", scope: "row" }, ...foldable(name)),
    cell(value, "name"), cell(source), cell(inForce || part.removed ? "yes" : "no"), cell(ends), cell(why, "name"));
}

function showPasses(status) {
  const passed = [];
  for (const [side, { passthrough }] of Object.entries(status.sides)) {
    for (const [reason, times] of Object.entries(passthrough)) passed.push([side, reason, times]);
  }
  const opening = (memory.passedAtOpening ||= new Map(passed.map(([side, reason, times]) => [`${side} ${reason}`, times])));
  one("#passes").hidden = false;
  one("#passes .scroll").hidden = !passed.length;
  one("#passes tbody").replaceChildren(...passed.map(([side, reason, times]) => {
    const since = times - (opening.get(`${side} ${reason}`) || 0);
    return make("tr", {}, make("th", { scope: "row", class: "name" }, PASSES[reason] || reason), cell(side),
      number(count(times)), number(since ? `+${count(since)}` : "-", since ? "bad" : ""));
  }));
  say(one("#passes .more"), passed.length ? "" : "Nothing has passed undecoded since the start.");
}

function showFleet(fleet) {
  one("#fleet").hidden = false;
  const up = fleet.filter((sidecar) => !sidecar.error);
  // what is behind is seen by the leader's sidecar and by the follower's
  const behind = Math.max(...Object.keys(SIDES).map((name) =>
    up.reduce((sum, { sides }) => sum + (sides[name] ? sides[name].lag.partitions_behind : 0), 0)));
  say(one("#fleet .note"), `${up.length} of ${counted(fleet.length, "sidecar")} answer. ${behind ? `${counted(behind, "partition")} behind.` : "Nothing is behind."}`);
  one("#fleet tbody").replaceChildren(...fleet.flatMap(fleetRows));
}

function fleetRows(sidecar) {
  const broker = sidecar.broker_id === null ? sidecar.admin : String(sidecar.broker_id);
  const link = make("a", { href: `http://${sidecar.admin}/`, rel: "noreferrer" }, broker);
  if (sidecar.error) {
    return [make("tr", {}, make("th", { scope: "row" }, link), make("td", {}, make("span", { class: "tag bad" }, "no answer")),
      make("td", { colspan: "7", class: "wide bad" }, `${sidecar.admin}: ${sidecar.error}.`))];
  }
  const state = make("span", { class: `tag ${sidecar.ready ? "good" : "bad"}` }, sidecar.ready ? "ready" : "not ready");
  return Object.entries(sidecar.sides).map(([name, side], row) => {
    const { lag } = side;
    const left = lag.time_left_seconds !== null ? duration(lag.time_left_seconds) : lag.stands_still ? "stands still" : "-";
    return make("tr", {},
      row ? cell("") : make("th", { scope: "row" }, link), row ? cell("") : make("td", {}, state), cell(name),
      number(rate(side.throttled_rate_bytes_per_second)), number(limit(side.quota_bytes_per_second)),
      number(count(lag.partitions_behind)), number(left, lag.stands_still ? "bad" : ""),
      cell(side.held_up_by && side.held_up_by.by !== "nobody" ? side.held_up_by.sentence : "-", "wide"),
      cell(row ? "" : sidecar.version));
  });
}

// Asking

async function ask(path, within = ANSWER_WITHIN) {
  const end = new AbortController();
  const timer = setTimeout(() => end.abort(), within);
  try {
    const response = await fetch(path, { signal: end.signal, cache: "no-store" });
    if (!response.ok) throw new Error(`${path} was answered with ${response.status}`);
    return await response.json();
  } finally {
    clearTimeout(timer);
  }
}

function takeHistory({ now, sides }) {
  for (const [name, columns] of Object.entries(sides)) {
    if (!panels.has(name)) continue;
    const panel = panels.get(name);
    columns.at.forEach((at, row) => panel.samples.push({
      at, throttled: columns.throttled[row], other: columns.other[row], quota: columns.quota[row], lag: columns.lag_messages[row],
    }));
    while (panel.samples.length && panel.samples[0].at < now - CHART_SECONDS) panel.samples.shift();
  }
}

const newestSample = () => Math.max(0, ...[...panels.values()].map(({ samples }) => (samples.length ? samples[samples.length - 1].at : 0)));

let answeredAt = performance.now(), uptime = 0, round = 0, timer = null, fleetDue = 0;

async function look() {
  const begun = performance.now();
  let busy = 0;
  try {
    const answers = await askAll();
    busy = performance.now() - begun;
    if (answers) show(answers);
  } finally {
    timer = setTimeout(look, Math.max(SHORTEST_PAUSE, WORK_PART * busy));
  }
}

async function askAll() {
  try {
    const status = await ask("v1/status");
    // a sidecar that was started anew has another clock
    if (status.uptime_seconds < uptime) for (const panel of panels.values()) panel.samples.length = 0;
    uptime = status.uptime_seconds;
    const history = await ask(`v1/history?after=${newestSample()}`);
    if (round % 2 === 0) {
      memory.throttle = await ask("v1/throttle");
      memory.throttleAt = performance.now();
    }
    if (status.fleet && performance.now() >= fleetDue) askFleet();
    round += 1;
    answeredAt = performance.now();
    return { status, history };
  } catch (error) {
    document.body.classList.add("lost");
    trouble(`No answer from the sidecar for ${duration((performance.now() - answeredAt) / 1000)}: these figures are old.`);
    return null;
  }
}

// Not waited for: sidecars that are down take seconds each.
async function askFleet() {
  const begun = performance.now();
  fleetDue = Infinity;
  try {
    showFleet((await ask("v1/fleet", FLEET_WITHIN)).sidecars);
  } catch (error) {
    say(one("#fleet .note"), "No answer on the other sidecars: these figures are old.");
  } finally {
    const now = performance.now();
    fleetDue = now + Math.min(LONGEST_FLEET_PAUSE, Math.max(2 * SHORTEST_PAUSE, WORK_PART * (now - begun)));
  }
}

function show({ status, history }) {
  const routes = new Set(status.routes.map(({ side }) => side));
  const shown = Object.keys(SIDES).filter((name) => routes.has(name));
  document.body.classList.remove("lost");
  showHead(status);
  shown.forEach(panelOf);
  takeHistory(history);
  for (const name of shown) showSide(name, status.sides[name], status.settings);
  showThrottle();
  showPasses(status);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) look();
});
if (!document.hidden) look();
