// Brokers × partitions: only the rows of the grid that can be seen are in the page.
//
//              orders                          payments
//     1        ■ □ □ ■ □ □                     □ ■
//     2        □ ■ □ □ ■ □                     ■ □
//
// A line holds the partitions of one topic, or of several small ones. Arrow keys go from cell to cell.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "/vendor/htm-preact.js";
import { count } from "/net.js";

export const MARKS = {
  L: "leads, in sync",
  I: "follows, in sync",
  A: "is being added",
  O: "out of sync",
  S: "leads, and is silent or gone",
  D: "silent or gone",
  N: "nobody leads",
};
const BAD = new Set(["O", "S", "D", "N"]);
const CELL = 18;
const LABEL = 96;
const LEAST_COLUMNS = 5;
const HEAD = 22;
const GAP = 14;
const BEYOND = 300;

// Divide the partitions among lines of `columns` cells.
export function lines(page, columns) {
  const found = [];
  let line = null;
  let room = 0;
  const byTopic = new Map();
  for (const row of page.rows) {
    if (!byTopic.has(row[0])) byTopic.set(row[0], []);
    byTopic.get(row[0]).push(row);
  }
  const isInternal = ([topic]) => page.topics[topic].startsWith("__");
  for (const [topic, rows] of [...byTopic].sort((one, other) => isInternal(one) - isInternal(other))) {
    for (let at = 0; at < rows.length; at += columns) {
      const part = rows.slice(at, at + columns);
      const width = Math.max(part.length, LEAST_COLUMNS);
      if (line === null || room < width + 1) {
        line = [];
        room = columns;
        found.push(line);
      }
      line.push({ topic: page.topics[topic], rows: part, width });
      room -= width + 1;
    }
  }
  return found;
}

function Line({ line, brokers, choose, chosen, active }) {
  return html`<table class="line">
    <thead>
      <tr>
        <td class="corner"></td>
        ${line.map(
          (part) => html`<th scope="colgroup" colspan=${part.width + 1} title=${part.topic}>
            <a href=${`#/topic/${encodeURIComponent(part.topic)}`}>${part.topic}</a>
          </th>`,
        )}
      </tr>
    </thead>
    <tbody>
      ${brokers.map(
        (broker) => html`<tr>
          <th scope="row" class=${`state-${broker.state}`}>
            broker ${broker.id}${broker.state === "up" ? "" : html` <em>${broker.state}</em>`}
          </th>
          ${line.map((part) => [
            part.rows.map((row) => {
              const place = row[4].indexOf(broker.id);
              if (place < 0) return html`<td></td>`;
              const name = `${part.topic}-${row[1]}`;
              const mark = row[5][place];
              const lag = row[6] ? row[6][place] : 0;
              const key = `${name}@${broker.id}`;
              const told = `${name} on broker ${broker.id}: ${MARKS[mark]}${lag ? `, ${count(lag)} records behind` : ""}${row[7] ? ", moving" : ""}`;
              return html`<td>
                <button
                  class=${`cell m-${mark}${chosen === name ? " chosen" : ""}${row[7] ? " moving" : ""}`}
                  aria-label=${told}
                  data-key=${key}
                  tabindex=${active === key ? 0 : -1}
                  onClick=${() => choose(name, key)}
                ></button>
              </td>`;
            }),
            Array.from({ length: part.width + 1 - part.rows.length }, () => html`<td></td>`),
          ])}
        </tr>`,
      )}
    </tbody>
  </table>`;
}

export function Grid({ page, choose, chosen, focus }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 800, width: 1000 });
  const [active, setActive] = useState("");
  useLayoutEffect(() => {
    const look = () => {
      if (!box.current) return;
      const place = box.current.getBoundingClientRect();
      const top = Math.floor(-place.top / 100) * 100;
      setView((old) =>
        old.top === top && old.width === place.width && old.height === innerHeight
          ? old
          : { top, height: innerHeight, width: place.width },
      );
    };
    look();
    const watching = new ResizeObserver(look);
    watching.observe(box.current);
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      watching.disconnect();
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, []);
  const columns = Math.max(Math.floor((view.width - LABEL) / CELL) - 1, 10);
  const all = useMemo(() => lines(page, columns), [page, columns]);
  const height = HEAD + page.brokers.length * CELL + GAP;
  const first = Math.min(Math.max(Math.floor((view.top - BEYOND) / height), 0), all.length);
  const last = Math.min(Math.max(Math.ceil((view.top + view.height + BEYOND) / height), first + 2), all.length);
  const shown = all.slice(first, last);
  const entry = useMemo(() => {
    for (const line of shown) {
      for (const part of line) {
        for (const row of part.rows) return `${part.topic}-${row[1]}@${row[4][0]}`;
      }
    }
    return "";
  }, [shown]);
  const isActiveSeen = useRef(false);
  useEffect(() => {
    isActiveSeen.current = !!active && !!box.current.querySelector(`[data-key="${CSS.escape(active)}"]`);
  });
  // After the panel is closed the lines are wider: the cell may be another element by then.
  useEffect(() => {
    const cell = focus && box.current.querySelector(`[data-key="${CSS.escape(focus.key)}"]`);
    if (cell) cell.focus();
  }, [focus, columns]);
  const move = (event) => {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    const cell = event.target.closest("td");
    if (!step || !cell) return;
    event.preventDefault();
    const next = step[0] ? beside(cell, step[0]) : beneath(cell, step[1]);
    if (next) {
      setActive(next.dataset.key);
      next.focus();
    }
  };
  // A tooltip for the cell under the pointer alone: thousands of them would cost time.
  const tell = ({ target }) => {
    if (target.dataset.key) target.title = target.getAttribute("aria-label");
  };
  return html`<div class="grid" ref=${box} onKeyDown=${move} onMouseOver=${tell}>
    <div class="space" ref=${(each) => each && each.style.setProperty("height", `${first * height}px`)}></div>
    ${shown.map(
      (line) => html`<${Line}
        line=${line}
        brokers=${page.brokers}
        chosen=${chosen}
        active=${active && isActiveSeen.current ? active : entry}
        choose=${(name, key) => {
          setActive(key);
          choose(name, key);
        }}
      />`,
    )}
    <div class="space" ref=${(each) => each && each.style.setProperty("height", `${(all.length - last) * height}px`)}></div>
  </div>`;
}

function beside(cell, step) {
  for (let at = cell; at; ) {
    at = step > 0 ? at.nextElementSibling : at.previousElementSibling;
    const button = at && at.querySelector(".cell");
    if (button) return button;
  }
  return null;
}

function beneath(cell, step) {
  const place = cell.cellIndex;
  const rows = [...cell.closest(".grid").querySelectorAll("tbody tr")];
  for (let at = rows.indexOf(cell.parentElement) + step; at >= 0 && at < rows.length; at += step) {
    const button = rows[at].cells[place] && rows[at].cells[place].querySelector(".cell");
    if (button) return button;
  }
  return null;
}

export function Legend() {
  return html`<ul class="legend" aria-label="Legend of the grid">
    ${Object.entries(MARKS).map(
      ([mark, text]) => html`<li><span class=${`cell m-${mark}`} aria-hidden="true"></span>${text}</li>`,
    )}
  </ul>`;
}

export const isBad = (row) => [...row[5]].some((mark) => BAD.has(mark));
