// Consumer groups and their lag. The lag over time is kept by this browser tab, while the console is open.

import { html, useEffect, useRef, useState } from "/vendor/htm-preact.js";
import uPlot from "/vendor/uplot.js";
import { ask, count, link, usePoll } from "/net.js";
import { Loading, Pager, Problem, Why } from "/ui.js";

const LIMIT = 50;
const MOST_POINTS = 1500;
const KEPT = "logstore lag";

const kept = (() => {
  try {
    return new Map(JSON.parse(sessionStorage.getItem(KEPT)) || []);
  } catch {
    return new Map();
  }
})();

function keep(groups) {
  const now = Date.now() / 1000;
  for (const each of groups) {
    if (each.lag === undefined) continue;
    const [times, lags] = kept.get(each.name) || [[], []];
    times.push(Math.round(now * 10) / 10);
    lags.push(each.lag);
    kept.set(each.name, [times.slice(-MOST_POINTS), lags.slice(-MOST_POINTS)]);
  }
  try {
    sessionStorage.setItem(KEPT, JSON.stringify([...kept]));
  } catch {
    sessionStorage.removeItem(KEPT); // the tab's room is used up: what is in memory stays
  }
}

// Called by the application again and again, whatever view is open.
export async function collect() {
  const found = await ask("/api/groups", { limit: LIMIT });
  keep(found.groups);
  return found;
}

export function LagChart({ names, stamp }) {
  const box = useRef(null);
  const chart = useRef(null);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  useEffect(() => {
    const ink = getComputedStyle(document.body);
    const axis = { stroke: ink.getPropertyValue("--dim"), grid: { stroke: ink.getPropertyValue("--line") }, ticks: { stroke: ink.getPropertyValue("--line") } };
    const hues = [215, 25, 150, 285, 350, 185, 50, 110];
    const width = () => Math.max(box.current.clientWidth - 4, 200);
    chart.current = new uPlot(
      {
        width: width(),
        height: 220,
        axes: [axis, { ...axis, size: 70, values: (_, all) => all.map(count) }],
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 10)] } },
        series: [
          { label: "time" },
          ...names.map((name, number) => ({
            label: name,
            width: 2,
            spanGaps: true,
            stroke: `hsl(${hues[number % hues.length]} ${dark ? "80% 68%" : "75% 38%"})`,
          })),
        ],
      },
      data(names),
      box.current,
    );
    const watching = new ResizeObserver(() => chart.current.setSize({ width: width(), height: 220 }));
    watching.observe(box.current);
    return () => {
      watching.disconnect();
      chart.current.destroy();
    };
  }, [names.join(" ")]);
  useEffect(() => chart.current && chart.current.setData(data(names)), [stamp]);
  const told = names.map((name) => `${name} ${count((kept.get(name) || [[], []])[1].at(-1))}`).join(", ");
  return html`<figure class="chart"><figcaption class="dim">Lag in records, kept by this tab</figcaption>
    <div ref=${box} role="img" aria-label=${`Lag over time; now: ${told}`}></div></figure>`;
}

function data(names) {
  const all = [...new Set(names.flatMap((name) => (kept.get(name) || [[]])[0]))].sort((a, b) => a - b);
  const columns = names.map((name) => {
    const [times, lags] = kept.get(name) || [[], []];
    const at = new Map(times.map((time, number) => [time, lags[number]]));
    return all.map((time) => at.get(time) ?? null);
  });
  return [all, ...columns];
}

function State({ of }) {
  const kind = of === "Stable" ? "kind-good" : of === "Empty" ? "quiet" : "kind-warn";
  return html`<span class=${`chip ${kind}`}>${of || "unknown"}</span>`;
}

export function Groups() {
  const [match, setMatch] = useState("");
  const [offset, setOffset] = useState(0);
  const found = usePoll(async () => {
    const answer = await ask("/api/groups", { match, offset, limit: LIMIT });
    keep(answer.groups);
    return { ...answer, stamp: Date.now() };
  }, `${match} ${offset}`, 2000);
  const of = found.data;
  const worst = of ? [...of.groups].filter((one) => one.lag !== undefined).sort((a, b) => b.lag - a.lag).slice(0, 8) : [];
  return html`<h1>Consumer groups</h1>
    <div class="form">
      <div class="field"><label for="match">Name contains</label>
        <input id="match" type="search" value=${match} onInput=${(event) => (setOffset(0), setMatch(event.target.value))} /></div>
    </div>
    <${Problem} text=${found.error} />
    ${of
      ? html`${worst.length > 0 && html`<${LagChart} names=${worst.map((one) => one.name).sort()} stamp=${of.stamp} />`}
          ${of.silent.map((one) => html`<${Problem} text=${`broker ${one.broker}: ${one.error}; some of its groups are missing here`} />`)}
          <table class="list">
            <thead><tr><th>group</th><th>state</th><th class="n">members</th><th class="n">partitions</th><th class="n">lag</th></tr></thead>
            <tbody>
              ${of.groups.map(
                (one) => html`<tr><td><a href=${link("group", one.name)}>${one.name}</a></td><td><${State} of=${one.state} /> ${one.error || ""}</td>
                  <td class="n">${count(one.members)}</td><td class="n">${count(one.partitions)}</td><td class="n">${count(one.lag)}</td></tr>`,
              )}
            </tbody>
          </table>
          <${Pager} total=${of.total} offset=${offset} limit=${LIMIT} go=${setOffset} what="group" />`
      : html`<${Loading} of=${found} />`}`;
}

export function GroupView({ name }) {
  const found = usePoll(async () => {
    const answer = await ask("/api/group", { name });
    const lags = answer.partitions.map((one) => one.lag).filter((lag) => lag !== null);
    keep([{ name, lag: lags.reduce((sum, lag) => sum + lag, 0) }]);
    return { ...answer, stamp: Date.now() };
  }, name, 2000);
  const [asks, setAsks] = useState(0);
  const of = found.data;
  return html`<h1>Group ${name}</h1>
    <${Problem} text=${found.error} />
    ${of
      ? html`<p><${State} of=${of.state} /></p>
          <${LagChart} names=${[name]} stamp=${of.stamp} />
          <h2>Why</h2>
          ${asks ? html`<${Why} kind="group" name=${name} renew=${asks} />` : html`<p class="dim">It looks at the commits of the members for two seconds.</p>`}
          <p><button onClick=${() => setAsks(asks + 1)}>${asks ? "Look again" : "Explain"}</button></p>
          <h2>Partitions</h2>
          <table class="list">
            <thead><tr><th>partition</th><th class="n">committed</th><th class="n">end</th><th class="n">lag</th><th>read by</th></tr></thead>
            <tbody>${of.partitions.map(
              (one) => html`<tr><td><a href=${link("partition", one.partition)}>${one.partition}</a></td><td class="n">${count(one.committed)}</td>
                <td class="n">${count(one.end)}</td><td class="n">${count(one.lag)}</td><td>${one.member || "nobody"}</td></tr>`,
            )}</tbody>
          </table>
          <h2>Members</h2>
          ${of.members.length
            ? html`<table class="list">
                <thead><tr><th>client</th><th>host</th><th>reads</th><th>member</th></tr></thead>
                <tbody>${of.members.map(
                  (one) => html`<tr><td>${one.client}${one.is_awaited ? " (awaited)" : ""}</td><td>${one.host}</td><td>${one.partitions.join(", ")}</td><td><code>${one.id}</code></td></tr>`,
                )}</tbody>
              </table>`
            : html`<p class="dim">The group has no members.</p>`}`
      : html`<${Loading} of=${found} />`}`;
}
