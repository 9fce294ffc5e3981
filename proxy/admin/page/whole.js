// SPDX-License-Identifier: Apache-2.0
// What is shown of the sidecar as a whole, and of the others.
const MOST_SETTINGS = 200;
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
};
let passedAtOpening = null; // times by side and reason

function showHead(status) {
  document.title = `weir, broker ${status.broker_id}`;
  say(one("h1"), `Broker ${status.broker_id}`);
  say(one("#about"), `weir ${status.version}, up ${duration(status.uptime_seconds)}, busy ${Math.round(100 * (status.event_loop?.busy ?? 0))} % of the time`);
  const states = [make("li", { class: status.ready ? "good" : "bad" }, status.ready ? "ready" : "not ready")];
  if (status.topic_ids_unknown) states.push(make("li", { class: "bad" }, `${counted(status.topic_ids_unknown, "topic id")} without a name`));
  one("#states").replaceChildren(...states);
  const reasons = Object.values(status.troubles ?? {}).map((sentence) => ` ${sentence[0].toUpperCase()}${sentence.slice(1)}.`);
  trouble(`${status.not_ready.length ? `Not ready: ${status.not_ready.join("; ")}.` : ""}${reasons.join("")}`.trim());
}

function trouble(sentence) {
  const element = one("#trouble");
  element.hidden = !sentence;
  say(element, sentence);
}

// `passed`: seconds since it was asked for
function showThrottle(throttle, passed) {
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

function valueText(name, value) {
  if (typeof value === "number" && name.endsWith("rate")) return limit(value);
  if (typeof value !== "object") return String(value);
  return Object.entries(value).map(([key, one]) => `${key} ${key === "rate" ? limit(one) : [].concat(one).join(", ")}`).join("; ");
}

function settingRow(source, part, inForce, passed) {
  const topic = /^topics\.(.+)\.((?:leader|follower)\..+)$/.exec(part.part);
  const name = part.part === "*" ? "everything below" : topic ? `${topic[1]}: ${topic[2]}` : part.part;
  const value = part.removed ? "removed" : cut(valueText(part.part, part.value), 80);
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
  const opening = (passedAtOpening ||= new Map(passed.map(([side, reason, times]) => [`${side} ${reason}`, times])));
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
  const waits = !sidecar.error && Object.keys(sidecar.sides).length === 0;
  if (sidecar.error || waits) {
    const why = sidecar.error || sidecar.not_ready.join("; ");
    return [make("tr", {}, make("th", { scope: "row" }, link),
      make("td", {}, make("span", { class: "tag bad" }, waits ? "waiting" : "no answer")),
      make("td", { colspan: "7", class: "wide bad" }, `${sidecar.admin}: ${why}.`))];
  }
  const state = make("span", { class: `tag ${sidecar.ready ? "good" : "bad"}` }, sidecar.ready ? "ready" : "not ready");
  return Object.entries(sidecar.sides).map(([name, side], row) => {
    const { lag } = side;
    const quota = mainQuota(side);
    const left = lag.time_left_seconds !== null ? duration(lag.time_left_seconds) : lag.stands_still ? "stands still" : "-";
    return make("tr", {},
      row ? cell("") : make("th", { scope: "row" }, link), row ? cell("") : make("td", {}, state), cell(name),
      number(rate(quota.rate_bytes_per_second)), number(limit(quota.bytes_per_second)),
      number(count(lag.partitions_behind)), number(left, lag.stands_still ? "bad" : ""),
      cell(side.held_up_by && side.held_up_by.by !== "nobody" ? side.held_up_by.sentence : "-", "wide"),
      cell(row ? "" : sidecar.version));
  });
}
