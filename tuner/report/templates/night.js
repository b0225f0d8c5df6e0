"use strict";
// A column's name is a button that sorts its table; what was not measured stays last either way.
(() => {
  const NOTHING = new Set(["", "-", "not measured"]);
  const NUMBER = /^[+-]?\d[\d,]*(\.\d+)?/;
  const text = (row, column) => row.cells[column].textContent.trim();

  function order(texts) {
    const told = texts.filter((one) => !NOTHING.has(one));
    if (told.length && told.every((one) => NUMBER.test(one) && !/^\d{4}-?\d{2}-?\d{2}/.test(one))) {
      const value = (one) => parseFloat(one.match(NUMBER)[0].replaceAll(",", ""));
      return (a, b) => value(a) - value(b);
    }
    return (a, b) => a.localeCompare(b, "en", { numeric: true });
  }

  function sort(table, head, column) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    const rows = [...table.tBodies[0].rows];
    const compare = order(rows.map((row) => text(row, column)));
    rows.sort((one, other) => {
      const a = text(one, column), b = text(other, column);
      const none = NOTHING.has(a) - NOTHING.has(b);
      return none || (up ? 1 : -1) * (NOTHING.has(a) ? 0 : compare(a, b));
    });
    table.tBodies[0].append(...rows);
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const said = `${table.caption.textContent}: sorted by ${head.textContent}, ${up ? "ascending" : "descending"}`;
    document.getElementById("sorted").textContent = said;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, head, column));
      head.append(button);
    });
  }
})();
