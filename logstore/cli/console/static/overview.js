// The first view: how the cluster is, its brokers, what is wrong, and the grid.

import { html, useEffect, useRef, useState } from "/vendor/htm-preact.js";
import { Grid, Legend } from "/grid.js";
import { ask, bytes, clock, count, link, plural, usePoll } from "/net.js";
import { Bar, Loading, Pager, Problem, ShortTrouble, Why } from "/ui.js";

const LIMIT = 5000;
const SHOWN = 5;

function Numbers({ of }) {
  const each = [
    ["brokers up", of.brokers.filter((one) => one.state === "up").length, `of ${of.brokers.length}`, of.brokers.some((one) => one.state !== "up")],
    ["topics", of.topics, ""],
    ["partitions", of.partitions, ""],
    ["without a leader", of.unavailable, "", of.unavailable > 0],
    ["not fully in sync", of.under_replicated, "", of.under_replicated > 0],
    ["moving", of.moving, ""],
  ];
  return html`<dl class="numbers">
    ${each.map(
      ([name, value, note, bad]) => html`<div class=${bad ? "bad" : ""}>
        <dt>${name}</dt><dd>${count(value)} ${note && html`<small>${note}</small>`}</dd>
      </div>`,
    )}
  </dl>`;
}

function Broker({ of, heading = "h3" }) {
  const disk = of.log_dirs.filter((one) => one.total_bytes > 0)[0];
  const used = disk ? disk.total_bytes - disk.usable_bytes : 0;
  const problems = of.log_dirs.filter((one) => one.problem);
  return html`<li class=${`broker state-${of.state}`}>
    <${heading} class="broker-head">
      <a href=${link("broker", of.id)}>Broker ${of.id}</a>
      ${of.is_controller && html`<span class="chip quiet">controller</span>`}
      <span class=${`chip state-${of.state}`}>${of.state}</span>
    <//>
    <p class="dim">${of.host ? `${of.host}:${of.port}` : "not registered"}${of.rack ? `, rack ${of.rack}` : ""}</p>
    <p>leads <b>${count(of.leads)}</b> of ${plural(of.replicas, "replica")}${of.out_of_sync ? html`, <b class="bad">${count(of.out_of_sync)} out of sync</b>` : ""}</p>
    ${disk &&
    html`<${Bar} alarms part=${used} of=${disk.total_bytes} label=${`${bytes(used)} of ${bytes(disk.total_bytes)} used`} />
      <p class="dim">logs ${bytes(of.bytes)}, free ${bytes(disk.usable_bytes)}</p>`}
    ${problems.map((one) => html`<p class="bad">${one.path}: ${one.problem}</p>`)}
  </li>`;
}

export function Panel({ name, close, renew }) {
  const head = useRef(null);
  useEffect(() => head.current && head.current.focus(), [name]);
  return html`<aside class="panel" aria-label=${`Why ${name}`} onKeyDown=${(event) => event.key === "Escape" && close()}>
    <header>
      <h2 tabindex="-1" ref=${head}>${name}</h2>
      <button onClick=${close}>Close</button>
    </header>
    <${Why} kind="partition" name=${name} renew=${renew} />
    <p class="links">
      <a href=${link("partition", name)}>Log layout</a>
      <a href=${link("timeline", name)}>Timeline</a>
      <a href=${link("messages", name)}>Messages</a>
    </p>
  </aside>`;
}

export function Partitions({ topic = "" }) {
  const [onlyBad, setOnlyBad] = useState(false);
  const [offset, setOffset] = useState(0);
  const [chosen, setChosen] = useState(null);
  const [focus, setFocus] = useState(null);
  const found = usePoll(
    (last) =>
      ask("/api/partitions", { offset, limit: LIMIT, topic, only_bad: onlyBad ? 1 : "", after_ms: last && last.as_of_ms }),
    `${topic} ${onlyBad} ${offset}`,
  );
  useEffect(() => {
    // When the grid was first drawn, for whoever measures it.
    if (found.data && !performance.getEntriesByName("first view").length) {
      requestAnimationFrame(() => performance.mark("first view"));
    }
  }, [!!found.data]);
  const close = () => {
    setFocus(chosen);
    setChosen(null);
  };
  return html`<section class=${chosen ? "with-panel" : ""} aria-label="Brokers by partitions">
    <div class="grid-side">
      <div class="tools">
        <${Legend} />
        <label class="check">
          <input type="checkbox" checked=${onlyBad} onChange=${(event) => (setOffset(0), setOnlyBad(event.target.checked))} />
          only what is wrong
        </label>
      </div>
      ${found.error && html`<${Problem} text=${found.error} />`}
      ${found.data
        ? html`<${Grid} page=${found.data} chosen=${chosen && chosen.name} focus=${focus}
              choose=${(name, key) => (setFocus(null), setChosen({ name, key }))} />
            ${found.data.total === 0 && html`<p class="dim">${onlyBad ? "Nothing is wrong." : "There are no partitions yet."}</p>`}
            <${Pager} total=${found.data.total} offset=${offset} limit=${LIMIT} go=${setOffset} what="partition" />`
        : !found.error && html`<p class="dim">Loading …</p>`}
    </div>
    ${chosen && html`<${Panel} name=${chosen.name} close=${close} renew=${found.data ? found.data.as_of_ms : 0} />`}
  </section>`;
}

export function Overview() {
  const found = usePoll(() => ask("/api/overview"), "overview");
  const [all, setAll] = useState(false);
  const of = found.data;
  const wrong = of ? of.troubles.filter((one) => one.rank !== "under_way").length : 0;
  return html`<h1 class="hidden">Overview</h1>
    ${found.error && html`<${Problem} text=${found.error} />`}
    ${of
      ? html`<section class="status" aria-label="Status">
            <p class=${`verdict ${of.is_sound ? "good" : "bad"}`} role="status">
              ${of.is_sound ? "Nothing is wrong" : plural(of.troubles_in_all, "trouble")}
              <small>as of ${clock(of.as_of_ms)}${of.controller === null ? ", no controller" : ""}</small>
            </p>
            <${Numbers} of=${of} />
          </section>
          ${of.troubles.length > 0 &&
          html`<section aria-label="What is wrong" class="troubles">
            <h2>${wrong ? "What is wrong, worst first" : "What is under way"}</h2>
            ${of.troubles.slice(0, all ? of.troubles.length : SHOWN).map((each) => html`<${ShortTrouble} trouble=${each} key=${each.subject + each.says} />`)}
            ${of.troubles.length > SHOWN &&
            html`<button onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show ${of.troubles.length - SHOWN} more`}</button>`}
          </section>`}
          <section aria-label="Brokers">
            <h2>Brokers</h2>
            <ul class="brokers">${of.brokers.map((each) => html`<${Broker} of=${each} />`)}</ul>
          </section>`
      : !found.error && html`<${Loading} of=${found} />`}
    <h2>Partitions</h2>
    <${Partitions} />`;
}

export function BrokerView({ id }) {
  const found = usePoll(() => ask("/api/overview"), "overview");
  const of = found.data && found.data.brokers.find((one) => String(one.id) === id);
  return html`<h1>Broker ${id}</h1>
    ${of && html`<ul class="brokers"><${Broker} of=${of} heading="h2" /></ul>`}
    <h2>Why</h2>
    <${Why} kind="broker" name=${id} renew=${found.data ? found.data.as_of_ms : 0} />
    ${of &&
    html`<h2>Log dirs</h2>
      <table class="list">
        <thead><tr><th>directory</th><th class="n">replicas</th><th class="n">free</th><th class="n">size</th><th>problem</th></tr></thead>
        <tbody>
          ${of.log_dirs.map(
            (one) => html`<tr><td><code>${one.path}</code></td><td class="n">${count(one.replicas)}</td>
              <td class="n">${bytes(one.usable_bytes)}</td><td class="n">${bytes(one.total_bytes)}</td><td>${one.problem || "none"}</td></tr>`,
          )}
        </tbody>
      </table>`}`;
}
