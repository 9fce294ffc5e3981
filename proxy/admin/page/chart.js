// SPDX-License-Identifier: Apache-2.0
// The charts of one side, one for each quota that limits: what passed in each second, and what it allows. Where none
// limits, one chart of all that passes.
const CHART_SECONDS = 600;
const GAP_SECONDS = 5; // without a sample: the process stood still

const ALL = "";

// What a chart's values are, and how one of its moments is told. `limitText` names values on the axis.
const BYTES = {
  limitText: limit,
  legend: (hasQuota) => [["throttled", "throttled replicas"], hasQuota ? ["quota", "quota"] : ["other", "other replicas"]],
  moment: ({ throttled, other, quota, lag }) =>
    `${rate(throttled)} ${quota === null ? "without a quota" : `of ${limit(quota)}`}. Not throttled: ${rate(other)}. ${counted(lag, "message")} behind.`,
  minute: (mean, most) => `${rate(mean("throttled"))} on average, ${rate(most)} in the fullest second. Not throttled: ${rate(mean("other"))}.`,
};

function showCharts(panel, side) {
  const { samples, plots, section } = panel;
  const limited = new Set(samples.flatMap(({ quotas }) => Object.keys(quotas).filter((name) => quotas[name].limit !== null)));
  const order = side.quotas.map(({ name }) => name);
  const names = limited.size ? [...limited].sort((one, other) => order.indexOf(one) - order.indexOf(other)) : [ALL];
  for (const [name, plot] of plots) {
    if (names.includes(name)) continue;
    plot.figure.remove();
    plots.delete(name);
  }
  const charts = one(".charts", section);
  names.forEach((name, place) => {
    if (!plots.has(name)) plots.set(name, newPlot([SIDES[section.id], name && titleOf(name)].filter(Boolean).join(", "), BYTES));
    const plot = plots.get(name);
    // one that is moved loses the focus
    if (charts.children[place] !== plot.figure) charts.insertBefore(plot.figure, charts.children[place] || null);
    const quota = side.quotas.find((other) => other.name === name);
    say(one("h3", plot.figure), names.length > 1 || ![ALL, LISTED].includes(name) ? headingOf(name, quota) : "");
    plot.samples = samples.map(({ at, throttled, other, lag, quotas }) => {
      const of = quotas[name] || { rate: 0, limit: null };
      return name === ALL ? { at, throttled, other, lag, quota: null } : { at, throttled: of.rate, other, lag, quota: of.limit };
    });
    drawChart(plot);
  });
}

function headingOf(name, quota) {
  if (!quota || quota.bytes_per_second === null) return `${titleOf(name)}: no quota now`;
  const observed = quota.mode === "observe" ? `; only observed, ${count(quota.would_leave_out)} times it would have left a partition out` : "";
  return `${titleOf(name)}: ${rate(quota.rate_bytes_per_second)} of ${limit(quota.bytes_per_second)}${observed}`;
}

function newPlot(label, units) {
  const figure = one("#chart").content.cloneNode(true).firstElementChild;
  const plot = { figure, label, units, samples: [], at: null };
  const chart = one(".chart", figure);
  new ResizeObserver(() => drawChart(plot)).observe(chart);
  const pick = (event) => {
    const box = chart.getBoundingClientRect();
    if (plot.timeAt) read(plot, plot.timeAt(event.clientX - box.left));
  };
  chart.addEventListener("pointermove", pick);
  chart.addEventListener("pointerdown", pick);
  chart.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") read(plot, null); });
  chart.addEventListener("blur", () => read(plot, null));
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !plot.samples.length) return;
    const last = plot.samples[plot.samples.length - 1].at;
    const steps = { ArrowLeft: -5, ArrowRight: 5, PageUp: -60, PageDown: 60 };
    if (event.key === "Escape") read(plot, null);
    else if (event.key === "Home") read(plot, plot.samples[0].at);
    else if (event.key === "End") read(plot, last);
    else if (event.key in steps) read(plot, (plot.at === null ? last : plot.at) + steps[event.key]);
    else return;
    event.preventDefault();
  });
  return plot;
}

function niceTop(value) {
  if (!(value > 0)) return 1000;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * scale >= value) * scale;
}

function drawChart(plot) {
  const { figure, samples } = plot;
  const svg = one(".plot", figure), width = svg.clientWidth, height = svg.clientHeight;
  if (!width || !samples.length) return;
  const newest = samples[samples.length - 1].at;
  const hasQuota = samples.some((sample) => sample.quota !== null);
  const top = niceTop(samples.reduce((most, { throttled, other, quota }) =>
    Math.max(most, 1.05 * (throttled + (hasQuota ? 0 : other)), quota === null ? 0 : 1.1 * quota), 0));
  const foot = 20, head = 8, plotHeight = height - foot - head;
  const x = (at) => width - (newest - at) * width / CHART_SECONDS;
  const y = (value) => head + plotHeight * (1 - Math.min(value, top) / top);
  plot.x = x;
  plot.timeAt = (place) => newest - (width - place) * CHART_SECONDS / width;
  const parts = [];
  for (const part of [0.25, 0.5, 0.75, 1]) {
    const line = Math.round(y(top * part)) + 0.5;
    parts.push(draw("line", { class: "grid", x1: 0, x2: width, y1: line, y2: line }));
  }
  if (!hasQuota) parts.push(...area("other", samples, x, y, ({ throttled, other }) => throttled + other));
  parts.push(...area("throttled", samples, x, y, ({ throttled }) => throttled));
  parts.push(draw("path", { class: "line", d: quotaPath(samples, x, y) }));
  parts.push(draw("line", { class: "base", x1: 0, x2: width, y1: height - foot + 0.5, y2: height - foot + 0.5 }));
  for (const part of [0.5, 1]) parts.push(draw("text", { class: "tick", x: 2, y: y(top * part) + 12 }, plot.units.limitText(top * part)));
  const step = width < 420 ? 4 : 2;
  for (let minutes = 10 - (10 % step); minutes >= 0; minutes -= step) {
    const place = x(newest - 60 * minutes);
    const anchor = minutes === 0 ? "end" : place < 20 ? "start" : "middle";
    parts.push(draw("text", { class: "tick", x: Math.max(0, place), y: height - 4, "text-anchor": anchor }, minutes ? `${minutes} min ago` : "now"));
  }
  parts.push(draw("line", { class: "cursor", y1: head, y2: height - foot, visibility: "hidden" }));
  svg.replaceChildren(...parts);
  showLegend(figure, plot.units.legend(hasQuota));
  read(plot, plot.at);
}

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

function showLegend(figure, shown) {
  const key = shown.map(([kind]) => kind).join();
  const legend = one(".legend", figure);
  if (legend.dataset.shown === key) return;
  legend.dataset.shown = key;
  legend.replaceChildren(...shown.map(([kind, text]) => make("li", {}, make("i", { class: kind }), text)));
}

function read(plot, at) {
  const { figure, samples } = plot;
  const readout = one(".readout", figure), cursor = one(".cursor", figure), chart = one(".chart", figure);
  if (!samples.length) return;
  const newest = samples[samples.length - 1].at;
  plot.at = at === null ? null : Math.min(newest, Math.max(samples[0].at, at));
  readout.classList.toggle("live", plot.at !== null);
  if (plot.at === null) {
    if (cursor) cursor.setAttribute("visibility", "hidden");
    readout.textContent = lastMinute(plot.units, samples, newest);
    chart.setAttribute("aria-label", `${plot.label}, last ten minutes. ${readout.textContent} Arrow keys read the values.`);
    return;
  }
  const sample = samples.reduce((best, other) => (Math.abs(other.at - plot.at) < Math.abs(best.at - plot.at) ? other : best));
  if (cursor) {
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.x(sample.at));
    cursor.setAttribute("visibility", "visible");
  }
  const ago = newest - sample.at < 0.5 ? "Now" : `${duration(newest - sample.at)} ago`;
  readout.textContent = `${ago}: ${plot.units.moment(sample)}`;
}

function lastMinute(units, samples, newest) {
  const minute = samples.filter((sample) => sample.at > newest - 60);
  const mean = (field) => minute.reduce((total, sample) => total + sample[field], 0) / minute.length;
  return `Last minute: ${units.minute(mean, Math.max(...minute.map((sample) => sample.throttled)))}`;
}
