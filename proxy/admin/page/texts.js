// SPDX-License-Identifier: Apache-2.0
"use strict";
// How figures are shown, and how elements are made. All is put into the page as text, never as markup: names of topics are
// hostile.

const SVG = "http://www.w3.org/2000/svg";
const one = (selector, within = document) => within.querySelector(selector);

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
const foldable = (name) => name.split(".").flatMap((part, at) => (at ? [".", make("wbr"), part] : [part]));
const cell = (text, kind = "") => make("td", { class: kind }, text);
const number = (text, kind = "") => cell(text, `number ${kind}`);
function say(element, text, kind) {
  if (element.textContent !== text) element.textContent = text;
  if (kind !== undefined) element.className = kind;
}
