// SPDX-License-Identifier: Apache-2.0
// What is shown of one side.
const SIDES = { leader: "Leader side", follower: "Follower side" };
const ABOUT = { leader: "what this broker sends", follower: "what this broker receives" };
const TREND_SECONDS = 60, SHORTEST_TREND_SECONDS = 10;
const LISTED = "configured"; // the quota of the listed replicas
const panels = new Map(); // by side
const seenBehind = new Map(); // times and messages of each partition that was shown lately

function panelOf(name) {
  if (panels.has(name)) return panels.get(name);
  const section = one("#side").content.cloneNode(true).firstElementChild;
  section.id = name;
  one("h2", section).append(SIDES[name], make("span", { class: "note" }, ` ${ABOUT[name]}`));
  const panel = { section, samples: [], plots: new Map() };
  panels.set(name, panel);
  one("#sides").append(section);
  return panel;
}

function showSide(name, side, settings) {
  const panel = panelOf(name);
  const section = panel.section;
  const { lag, held_up_by: held } = side;
  const quota = mainQuota(side);
  const allowed = quota.bytes_per_second, used = quota.rate_bytes_per_second;
  say(one(".verdict", section), held.sentence, `verdict ${held.by}`);
  say(one(".rate", section), rate(used));
  say(one(".used", section), allowed ? `${(100 * used / allowed).toFixed(0)} % of the quota` : "of throttled replicas");
  say(one(".limit", section), limit(allowed));
  say(one(".source", section), quotaNote(name, side, quota, settings));
  say(one(".behind", section), count(lag.partitions_behind));
  say(one(".messages", section), lag.partitions_behind ? `partitions, ${counted(lag.messages, "message")}` : "partitions");
  const left = lag.time_left_seconds;
  const text = left !== null ? duration(left) : lag.partitions_behind ? (lag.stands_still ? "stands still" : "not known") : "-";
  say(one(".left", section), text, `left ${text.length > 9 ? "long" : ""} ${lag.stands_still ? "bad" : ""}`);
  say(one(".falls", section), fallNote(lag));
  showLate(section, lag);
  showLinks(section, side);
  showCharts(panel, side);
}

// The quota of the listed replicas, or another one where that limits nothing.
const mainQuota = ({ quotas }) => quotas.find((quota) => quota.bytes_per_second !== null) || quotas[0];

const titleOf = (name) => ({ configured: "Listed replicas", reassignment: "Reassignments", recovery: "Recovery" })[name] || name;

function quotaNote(side, { throttled_topics: topics, quotas }, quota, settings) {
  if (quota.bytes_per_second === null) return "nothing is throttled";
  const isListed = quota.name === LISTED;
  if (isListed && !topics.length) return "no topic is listed";
  const setting = settings[`${side}.${isListed ? "replication" : quota.name}.throttled.rate`];
  const more = quotas.filter((other) => other !== quota && other.bytes_per_second !== null).length;
  return [
    isListed ? "" : titleOf(quota.name),
    setting ? `from ${setting.source}` : "",
    setting && setting.ends_in_seconds !== undefined ? `${duration(setting.ends_in_seconds)} left` : "",
    quota.mode === "observe" ? "only observed" : "",
    more ? `${more} more below` : "",
  ].filter(Boolean).join(", ");
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
  for (const [key, points] of seenBehind) if (now - points[points.length - 1][0] > TREND_SECONDS) seenBehind.delete(key);
}

// How long one partition takes at the pace of its last minute on this page.
function leftOf(key, messages, now) {
  const points = seenBehind.get(key) || [];
  seenBehind.set(key, points);
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
