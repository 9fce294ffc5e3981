// SPDX-License-Identifier: Apache-2.0
"use strict";
// Reads out the marks of charts: under the pointer, at a touch, or with the arrow keys in a chart that has the focus.
for (const walk of document.querySelectorAll(".walk")) {
  const readout = walk.closest("figure").querySelector(".readout");
  const whole = readout.textContent;
  const rows = [...walk.querySelectorAll(".marks")]
    .map((strip) => [...strip.querySelectorAll(".m")])
    .filter((marks) => marks.length);
  if (!rows.length) continue;
  let current = null;

  const middle = (mark) => parseFloat(mark.getAttribute("x")) + parseFloat(mark.getAttribute("width")) / 2;

  function read(mark) {
    if (current) current.classList.remove("on");
    current = mark;
    if (current) current.classList.add("on");
    readout.textContent = mark ? mark.querySelector("title").textContent : whole;
    readout.classList.toggle("live", mark !== null);
  }

  function nearest(row, place) {
    return row.reduce((best, mark) => (Math.abs(middle(mark) - place) < Math.abs(middle(best) - place) ? mark : best));
  }

  function next(key) {
    if (!current) return rows[0][0];
    const number = rows.findIndex((row) => row.includes(current));
    const row = rows[number];
    const at = row.indexOf(current);
    switch (key) {
      case "ArrowRight": return row[Math.min(at + 1, row.length - 1)];
      case "ArrowLeft": return row[Math.max(at - 1, 0)];
      case "Home": return row[0];
      case "End": return row[row.length - 1];
      case "ArrowDown": return nearest(rows[Math.min(number + 1, rows.length - 1)], middle(current));
      default: return nearest(rows[Math.max(number - 1, 0)], middle(current));
    }
  }

  const keys = ["ArrowRight", "ArrowLeft", "Home", "End", ...(rows.length > 1 ? ["ArrowDown", "ArrowUp"] : [])];
  walk.tabIndex = 0;
  walk.addEventListener("keydown", (event) => {
    if (event.key === "Escape") read(null);
    if (!keys.includes(event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    read(next(event.key));
  });
  walk.addEventListener("focus", () => {
    if (!current) readout.textContent = `${whole} (arrow keys read the values)`;
  });
  walk.addEventListener("blur", () => read(null));
  walk.addEventListener("pointerover", (event) => {
    const mark = event.target.closest(".m");
    if (mark) read(mark);
  });
  walk.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") read(null);
  });
}
