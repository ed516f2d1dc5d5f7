// Topics, and one with its settings.

import { html, useEffect, useState } from "/vendor/htm-preact.js";
import { Partitions } from "/overview.js";
import { ask, bytes, count, link, usePoll } from "/net.js";
import { Loading, Pager, Problem } from "/ui.js";

const LIMIT = 100;

export function Topics() {
  const [match, setMatch] = useState("");
  const [offset, setOffset] = useState(0);
  const found = usePoll(() => ask("/api/topics", { match, offset, limit: LIMIT }), `${match} ${offset}`, 2000);
  const of = found.data;
  return html`<h1>Topics</h1>
    <div class="form">
      <div class="field"><label for="match">Name contains</label>
        <input id="match" type="search" value=${match} onInput=${(event) => (setOffset(0), setMatch(event.target.value))} /></div>
    </div>
    <${Problem} text=${found.error} />
    ${of
      ? html`<table class="list">
            <thead><tr><th>topic</th><th class="n">partitions</th><th class="n">replicas</th><th class="n">min ISR</th>
              <th class="n">bytes, all replicas</th><th>state</th></tr></thead>
            <tbody>
              ${of.topics.map(
                (one) => html`<tr>
                  <td><a href=${link("topic", one.name)}>${one.name}</a></td><td class="n">${count(one.partitions)}</td>
                  <td class="n">${one.replication_factor}</td><td class="n">${one.min_isr ?? "–"}</td><td class="n">${bytes(one.bytes)}</td>
                  <td>${one.is_doomed
                    ? html`<span class="chip kind-warn">being deleted</span>`
                    : one.unavailable
                      ? html`<span class="chip kind-bad">${one.unavailable} without a leader</span>`
                      : one.under_replicated
                        ? html`<span class="chip kind-bad">${one.under_replicated} not in sync</span>`
                        : html`<span class="chip kind-good">in sync</span>`}</td>
                </tr>`,
              )}
            </tbody>
          </table>
          <${Pager} total=${of.total} offset=${offset} limit=${LIMIT} go=${setOffset} what="topic" />`
      : html`<${Loading} of=${found} />`}`;
}

export function TopicView({ name }) {
  const [found, setFound] = useState({});
  const [all, setAll] = useState(false);
  useEffect(() => {
    setFound({});
    ask("/api/topic", { name }).then((data) => setFound({ data }), (error) => setFound({ error: error.message }));
  }, [name]);
  const of = found.data;
  const shown = of ? of.settings.filter((one) => all || one.source !== "default") : [];
  return html`<h1>${name}</h1>
    ${of
      ? html`<dl class="facts">
            <div><dt>partitions</dt><dd>${count(of.partitions)}</dd></div>
            <div><dt>replicas</dt><dd>${of.replication_factor}</dd></div>
            <div><dt>min ISR</dt><dd>${of.min_isr ?? "–"}</dd></div>
            <div><dt>bytes, all replicas</dt><dd>${bytes(of.bytes)}</dd></div>
          </dl>
          <h2>Partitions</h2>
          <${Partitions} topic=${name} key=${name} />
          <h2>Settings</h2>
          <label class="check"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> with the defaults</label>
          ${shown.length > 0
            ? html`<table class="list">
                <thead><tr><th>setting</th><th>value</th><th>from</th></tr></thead>
                <tbody>${shown.map((one) => html`<tr class=${one.is_own ? "own" : ""}><td><code>${one.name}</code></td>
                  <td><code>${one.value ?? "hidden"}</code></td><td>${one.source}</td></tr>`)}</tbody>
              </table>`
            : html`<p class="dim">All settings are the defaults.</p>`}`
      : html`<${Loading} of=${found} />`}`;
}
