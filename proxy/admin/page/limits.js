// SPDX-License-Identifier: Apache-2.0
// What is shown of clients with limits by records, and of the last ten minutes of the limits that hold most.
const limitPlots = new Map(); // by what has the limit
const KINDS = { sink: "sink task", source: "source task", dlq: "dead letters", mirror: "MirrorMaker 2" };
const records = (value) => `${value >= 9.95 || !(value % 1) ? count(value) : value.toFixed(1)}/s`;
const RECORDS = {
  limitText: records,
  legend: (hasLimit) => [["throttled", "records"], ...(hasLimit ? [["quota", "limit"]] : [])],
  moment: ({ throttled, quota }) => `${records(throttled)} ${quota === null ? "without a limit" : `of ${records(quota)}`}.`,
  minute: (mean, most) => `${records(mean("throttled"))} on average, ${records(most)} in the fullest second.`,
};

const limitKey = ({ entry, per, group }) => JSON.stringify([entry, per, group]);
const limitTitle = ({ entry, per, group }) => (per === "connector" ? `${entry}, all tasks of ${group}` : group || "clients without an id");

function takeLimits(limits, now) {
  for (const row of limits || []) {
    const key = limitKey(row);
    if (!limitPlots.has(key)) limitPlots.set(key, newPlot(cut(limitTitle(row), 60), RECORDS));
    const { samples } = limitPlots.get(key);
    row.at.forEach((at, place) => samples.push({ at, throttled: row.rate[place], other: 0, lag: 0, quota: row.allowed[place] }));
  }
  for (const [key, { figure, samples }] of limitPlots) {
    while (samples.length && samples[0].at < now - CHART_SECONDS) samples.shift();
    // one that holds no more is not told of
    if (samples.length && samples[samples.length - 1].at > now - TREND_SECONDS) continue;
    figure.remove();
    limitPlots.delete(key);
  }
}

function showLimits(limits) {
  const section = one("#limits");
  section.hidden = !limits;
  if (!limits) return;
  const { clients, more } = limits;
  const waiting = clients.filter((client) => client.throttled_ratio >= 0.005).length;
  say(one("#limits > p.note"), clients.length
    ? `${counted(clients.length + more, "client")} seen, ${waiting} of those below kept waiting in the last 30 s.` : "No client with a limit has been seen.");
  one(".scroll", section).hidden = !clients.length;
  one("tbody", section).replaceChildren(...clients.map(limitRow));
  say(one("#limits > p.more"), more ? `${count(more)} more are not shown.` : "");
  const charts = one(".charts", section);
  for (const [key, plot] of limitPlots) {
    if (plot.figure.parentElement !== charts) charts.append(plot.figure);
    const [entry, per, group] = JSON.parse(key);
    say(one("h3", plot.figure), cut(limitTitle({ entry, per, group }), 80));
    drawChart(plot);
  }
}

function limitRow(client) {
  const { client_id: id, kind, connector, task } = client;
  const who = connector === null ? "" : `${connector}, ${KINDS[kind]} ${task}`;
  const others = client.shares_with.map((other) => cut(other, 60)).join(", ");
  const more = client.shares_with_more ? ` and ${count(client.shares_with_more)} more` : "";
  return make("tr", {},
    make("th", { class: "name", scope: "row" }, ...foldable(id ? cut(id, 100) : "(no id)"), make("div", { class: "note" }, who)),
    number(records(client.records_per_second)), number(limitsText(client)),
    number(`${(100 * client.throttled_ratio).toFixed(0)} %`), cell(others ? others + more : "-", "wide"));
}

function limitsText({ limits, share }) {
  const texts = Object.entries(limits).map(([key, value]) => {
    if (key === "record.rate.limit") return records(value);
    if (key === "byte.rate.limit") return limit(value);
    return key === "record.batch.rate.limit" ? `${records(value)} batches` : `${key} ${value}`;
  });
  const here = share < 0.995 && texts.length ? ` (${(100 * share).toFixed(0)} % here)` : "";
  return (texts.join(", ") || "none") + here;
}
