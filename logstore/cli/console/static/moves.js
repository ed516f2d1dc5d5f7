// Reassignments: propose, compare the load, execute, watch, cancel; and preferred elections.

import { html, useState } from "/vendor/htm-preact.js";
import { ask, bytes, change, count, link, plural, usePoll } from "/net.js";
import { Bar, Loading, Problem } from "/ui.js";

function UnderWay({ about }) {
  const found = usePoll(() => ask("/api/reassignments"), "moves");
  const [error, setError] = useState("");
  const cancel = (names) =>
    change("/api/reassignments/cancel", { partitions: names }).then(() => setError(""), (refused) => setError(refused.message));
  if (!found.data) return html`<${Loading} of=${found} />`;
  const { moving } = found.data;
  return html`<${Problem} text=${error || found.error} />
    <p role="status">${moving.length ? `${plural(moving.length, "partition")} moving` : "No reassignment is under way."}</p>
    ${moving.length > 0 &&
    html`<table class="list">
        <thead><tr><th>partition</th><th>adding</th><th>removing</th><th>copied by the furthest behind</th>${about.may_change && html`<th>change</th>`}</tr></thead>
        <tbody>${moving.slice(0, 200).map((one) => {
          const name = `${one.topic}-${one.partition}`;
          const behind = Math.max(0, ...one.lag.map((lag) => lag ?? one.end_offset ?? 0));
          const done = (one.end_offset ?? 0) - behind;
          return html`<tr>
            <td><a href=${link("partition", name)}>${name}</a></td>
            <td>${one.adding.join(", ") || "–"} <span class="dim">(${one.in_sync.length} in sync)</span></td><td>${one.removing.join(", ") || "–"}</td>
            <td><${Bar} part=${done} of=${one.end_offset || 1} label=${`${count(done)} of ${count(one.end_offset)} records`} />${count(behind)} records behind</td>
            ${about.may_change && html`<td><button onClick=${() => cancel([name])} aria-label=${`Cancel ${name}`}>Cancel</button></td>`}
          </tr>`;
        })}</tbody>
      </table>
      ${about.may_change && html`<p><button onClick=${() => cancel(moving.map((one) => `${one.topic}-${one.partition}`))}>Cancel all</button></p>`}`}`;
}

function Load({ load }) {
  const most = Math.max(1, ...load.flatMap((one) => [one.now.bytes, one.then.bytes]));
  const both = (now, then, write) => (now === then ? write(now) : html`${write(now)} → <b>${write(then)}</b>`);
  return html`<table class="list">
    <caption class="hidden">Load of the brokers now and with the plan</caption>
    <thead><tr><th>broker</th><th class="n">replicas</th><th class="n">preferred leader of</th><th class="n">bytes</th><th>bytes now, and with the plan</th></tr></thead>
    <tbody>${load.map(
      (one) => html`<tr><td>Broker ${one.broker}</td><td class="n">${both(one.now.replicas, one.then.replicas, count)}</td>
        <td class="n">${both(one.now.preferred, one.then.preferred, count)}</td><td class="n">${both(one.now.bytes, one.then.bytes, bytes)}</td>
        <td><${Bar} part=${one.now.bytes} of=${most} label=${`now ${bytes(one.now.bytes)}`} /><${Bar} part=${one.then.bytes} of=${most} label=${`then ${bytes(one.then.bytes)}`} /></td></tr>`,
    )}</tbody>
  </table>`;
}

function Propose({ about }) {
  const brokers = usePoll(() => ask("/api/overview"), "overview", 3000);
  const topics = usePoll(() => ask("/api/topics", { limit: 200 }), "topics", 5000);
  const [names, setNames] = useState([]);
  const [left, setLeft] = useState([]);
  const [found, setFound] = useState({});
  const [plan, setPlan] = useState("");
  const [done, setDone] = useState({});
  if (!brokers.data || !topics.data) return html`<${Loading} of=${brokers.error ? brokers : topics} />`;
  const live = brokers.data.brokers.filter((one) => one.host !== null).map((one) => one.id);
  const flip = (list, set, one) => set(list.includes(one) ? list.filter((each) => each !== one) : [...list, one]);
  const propose = (event) => {
    event.preventDefault();
    setDone({});
    const target = live.filter((one) => !left.includes(one));
    ask("/api/reassignments/proposal", { topics: names.join(","), brokers: target.join(","), seed: Math.floor(Math.random() * 1e9) }).then(
      (data) => (setFound({ data }), setPlan(JSON.stringify(data.proposed, null, 1))),
      (error) => setFound({ error: error.message }),
    );
  };
  const execute = () => {
    let parsed;
    try {
      parsed = JSON.parse(plan);
    } catch (error) {
      setDone({ error: `the plan is not JSON: ${error.message}` });
      return;
    }
    change("/api/reassignments", { plan: parsed }).then((data) => setDone({ data }), (error) => setDone({ error: error.message }));
  };
  return html`<form onSubmit=${propose}>
      <fieldset><legend>Topics</legend>${topics.data.topics.map(
        (one) => html`<label class="check"><input type="checkbox" checked=${names.includes(one.name)} onChange=${() => flip(names, setNames, one.name)} />${one.name}</label>`,
      )}</fieldset>
      <fieldset><legend>Brokers to hold them</legend>${live.map(
        (one) => html`<label class="check"><input type="checkbox" checked=${!left.includes(one)} onChange=${() => flip(left, setLeft, one)} />broker ${one}</label>`,
      )}</fieldset>
      <button class=${found.data ? "" : "main"} type="submit" disabled=${names.length === 0 || left.length >= live.length}>${found.data ? "Propose another" : "Propose"}</button>
    </form>
    <${Problem} text=${found.error} />
    ${found.data &&
    html`<h3 class="after">The load with the plan</h3>
      <p>${plural(found.data.changed, "partition")} of ${count(found.data.proposed.partitions.length)} would change their replicas.</p>
      <${Load} load=${found.data.load} />
      <p><label for="plan">The plan; it can be edited, and is what <code>logstore reassign execute</code> takes</label></p>
      <textarea id="plan" spellcheck="false" value=${plan} onInput=${(event) => setPlan(event.target.value)}></textarea>
      ${about.may_change
        ? html`<p><button class="main" onClick=${execute}>Execute</button></p>`
        : html`<p class="note">This console changes nothing. Start the broker with <code>--console-admin</code>, or give the plan to <code>logstore reassign execute</code>.</p>`}`}
    <${Problem} text=${done.error} />
    ${done.data &&
    html`<p class="note" role="status">${plural(done.data.partitions, "partition")} asked to move. Keep this to roll back:</p><pre class="card"><code>${JSON.stringify(done.data.rollback)}</code></pre>`}`;
}

function Elect({ about }) {
  const found = usePoll(() => ask("/api/overview"), "overview", 2000);
  const [done, setDone] = useState({});
  if (!found.data) return html`<${Loading} of=${found} />`;
  const number = found.data.not_preferred;
  const elect = () =>
    change("/api/elections", { partitions: null }).then((data) => setDone({ data }), (error) => setDone({ error: error.message }));
  return html`<p>${number ? html`<b>${plural(number, "partition")}</b> not led by the first replica of the list.` : "Every partition is led by its preferred replica."}</p>
    <p class="dim">A preferred replica that is dead or out of sync is never elected, so this loses no records.</p>
    ${about.may_change
      ? html`<p><button onClick=${elect} disabled=${number === 0}>Elect preferred leaders</button></p>`
      : html`<p class="note">This console changes nothing; <code>logstore elect-preferred</code> does the same.</p>`}
    <${Problem} text=${done.error} />
    ${done.data && html`<p role="status">Asked for ${plural(done.data.needed, "partition")}.</p>`}`;
}

export function Moves({ about }) {
  return html`<h1>Reassignments and elections</h1>
    <section class="card"><h2>Under way</h2><${UnderWay} about=${about} /></section>
    <section class="card"><h2>Propose a reassignment</h2><${Propose} about=${about} /></section>
    <section class="card"><h2>Preferred leaders</h2><${Elect} about=${about} /></section>`;
}
