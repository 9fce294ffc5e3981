// SPDX-License-Identifier: Apache-2.0
// Asks this sidecar while the page is visible.
const SHORTEST_PAUSE = 2000; // ms
const WORK_PART = 20; // a pause is at least so many times as long as the answers took
const ANSWER_WITHIN = 8000, FLEET_WITHIN = 60000; // ms
const LONGEST_FLEET_PAUSE = 30000; // ms
let throttle = null, throttleAt = 0, fleetDue = 0; // moments in ms
let answeredAt = performance.now(), uptime = 0, round = 0, timer = null;

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

function takeHistory({ now, sides, limits }) {
  takeLimits(limits, now);
  for (const [name, columns] of Object.entries(sides)) {
    if (!panels.has(name)) continue;
    const panel = panels.get(name);
    columns.at.forEach((at, row) => panel.samples.push({
      at, throttled: columns.throttled[row], other: columns.other[row], lag: columns.lag_messages[row],
      quotas: Object.fromEntries(Object.entries(columns.quotas).map(([quota, { rate, limit }]) => [quota, { rate: rate[row], limit: limit[row] }])),
    }));
    while (panel.samples.length && panel.samples[0].at < now - CHART_SECONDS) panel.samples.shift();
  }
}

const newestSample = () => Math.max(0, ...[...panels.values(), ...limitPlots.values()].map(({ samples }) => (samples.length ? samples[samples.length - 1].at : 0)));

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
    if (status.uptime_seconds < uptime) for (const { samples } of [...panels.values(), ...limitPlots.values()]) samples.length = 0;
    uptime = status.uptime_seconds;
    const history = await ask(`v1/history?after=${newestSample()}`);
    if (round % 2 === 0) {
      throttle = await ask("v1/throttle");
      throttleAt = performance.now();
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
  showLimits(status.limits);
  showThrottle(throttle, (performance.now() - throttleAt) / 1000);
  showPasses(status);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) look();
});
if (!document.hidden) look();
