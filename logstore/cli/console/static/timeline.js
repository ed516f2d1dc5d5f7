// What happened: to a partition, a topic or the cluster.

import { html, useState } from "/vendor/htm-preact.js";
import { ask, link, usePoll } from "/net.js";
import { Loading, Problem } from "/ui.js";

const BAD = new Set(["truncation", "loss", "hw", "trouble"]);
const WARN = new Set(["isr", "reassignment", "controller", "node"]);

function split(name) {
  const found = /^(.*)-(\d+)$/.exec(name);
  return found ? { topic: found[1], partition: found[2] } : { topic: name, partition: "" };
}

export function Timeline({ name = "" }) {
  const [typed, setTyped] = useState(name);
  const [roles, setRoles] = useState(false);
  const [limit, setLimit] = useState(200);
  const wanted = split(name);
  const given = { ...wanted, roles: roles ? 1 : "", limit };
  const found = usePoll(() => ask("/api/timeline", given), JSON.stringify(given), 3000);
  const of = found.data;
  const show = (event) => {
    event.preventDefault();
    location.hash = typed ? link("timeline", typed) : "#/timeline";
  };
  return html`<h1>Timeline${name && html` of ${name}`}</h1>
    <form class="form" onSubmit=${show}>
      <div class="field"><label for="name">Topic, or partition like orders-0</label>
        <input id="name" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></div>
      <button type="submit">Show</button>
      <label class="check"><input type="checkbox" checked=${roles} onChange=${(event) => setRoles(event.target.checked)} /> also what brokers did about decisions</label>
    </form>
    <${Problem} text=${found.error} />
    ${of
      ? html`<p class="dim">From the records of broker ${of.brokers.join(", ")}.</p>
          ${of.silent.map((one) => html`<${Problem} text=${`${one.console}: ${one.error}; its records are missing here`} />`)}
          ${wanted.partition !== "" && of.events.length > 0 &&
          html`<div class="timeline-drawing" tabindex="0" role="group" aria-label="Drawing">
            <img alt=${`Drawing of the timeline of ${name}; the list below has the same events`}
              src=${`/api/timeline.svg?${new URLSearchParams({ ...given, limit: 40, n: of.total })}`} /></div>`}
          ${of.events.length
            ? html`<ol class="events" reversed>
                ${[...of.events].reverse().map(
                  (one) => html`<li>
                    <time>${one.time}</time>
                    <span>${one.node === null ? "" : `broker ${one.node}`}</span>
                    <span>${one.topic ? html`<a href=${link("partition", `${one.topic}-${one.partition}`)}>${one.topic}-${one.partition}</a>` : ""}</span>
                    <span><span class=${`chip ${BAD.has(one.kind) ? "kind-bad" : WARN.has(one.kind) ? "kind-warn" : one.kind === "role" ? "quiet" : ""}`}>${one.kind}</span></span>
                    <span>${one.text}</span>
                  </li>`,
                )}
              </ol>`
            : html`<p class="dim">Nothing is recorded here.</p>`}
          ${of.total > of.events.length && limit < 1000 && html`<button onClick=${() => setLimit(1000)}>Show more of ${of.total}</button>`}`
      : html`<${Loading} of=${found} />`}`;
}
