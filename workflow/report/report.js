"use strict";

// Tables: each heading becomes a button that sorts by its column.

function sortKey(cell) {
  if (cell.dataset.value !== undefined) return cell.dataset.value;
  return (cell.firstChild ? cell.firstChild.textContent : "").trim();
}

function asNumber(text) {
  const found = /^[\d,]+(\.\d+)?|^-?\d+(\.\d+)?(e[-+]?\d+)?/i.exec(text);
  return found ? Number(found[0].replaceAll(",", "")) : NaN;
}

function compare(a, b) {
  const [x, y] = [asNumber(a), asNumber(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
}

function sortBy(table, heading) {
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [sortKey(row.cells[heading.cellIndex]), row]);
  const isMissing = (key) => key === "" || key === "–";
  rows.sort(([a], [b]) => isMissing(a) - isMissing(b) || (down ? compare(b, a) : compare(a, b)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  if (table.tBodies[0].rows.length < 2) continue;
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, heading));
  }
}

// Boxes that scroll can be scrolled with the keyboard.

const boxes = [...document.querySelectorAll(".wide, .picture")];

function nameBoxes() {
  for (const box of boxes) {
    const name = box.querySelector("caption, title");
    const scrolls = box.scrollWidth > box.clientWidth + 1;
    for (const [key, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", name ? name.textContent : "table"]]) {
      if (scrolls) box.setAttribute(key, value);
      else box.removeAttribute(key);
    }
  }
}
nameBoxes();
addEventListener("resize", nameBoxes);

// Plots: a point shows its figures when the mouse is over it, or when it has the focus; arrow keys go from point to point.

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true"); // a screen reader reads the point's own label
document.body.append(tip);

function show(point) {
  tip.textContent = point.getAttribute("aria-label");
  tip.hidden = false;
  const at = point.getBoundingClientRect();
  const left = Math.min(at.right + 8, document.documentElement.clientWidth - tip.offsetWidth - 6);
  tip.style.left = `${Math.max(6, left) + scrollX}px`;
  tip.style.top = `${Math.max(4, at.top - tip.offsetHeight - 6) + scrollY}px`;
}

function hide() {
  tip.hidden = true;
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

for (const picture of document.querySelectorAll("figure svg")) {
  const points = [...picture.querySelectorAll(".value")];
  points.forEach((point, index) => {
    point.setAttribute("tabindex", index === 0 ? "0" : "-1");
    point.addEventListener("mouseenter", () => show(point));
    point.addEventListener("mouseleave", hide);
    point.addEventListener("focus", () => show(point));
    point.addEventListener("blur", hide);
    point.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return hide();
      const last = points.length - 1;
      const to = { Home: 0, End: last }[event.key] ?? index + (STEPS[event.key] ?? 0);
      if (to === index || to < 0 || to > last) return;
      event.preventDefault();
      point.setAttribute("tabindex", "-1");
      points[to].setAttribute("tabindex", "0");
      points[to].focus();
    });
  });
}
