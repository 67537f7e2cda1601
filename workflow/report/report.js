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

const boxes = [...document.querySelectorAll(".wide")];

function nameBoxes() {
  for (const box of boxes) {
    const name = box.querySelector("caption");
    const scrolls = box.scrollWidth > box.clientWidth + 1;
    for (const [key, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", name ? name.textContent : "table"]]) {
      if (scrolls) box.setAttribute(key, value);
      else box.removeAttribute(key);
    }
  }
}
nameBoxes();
addEventListener("resize", nameBoxes);
