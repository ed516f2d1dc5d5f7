// The records of a partition, with decoders.

import { html, useEffect, useState } from "/vendor/htm-preact.js";
import { ask, count, moment } from "/net.js";
import { Problem } from "/ui.js";

const text = (value) => (value === null ? html`<span class="dim">null</span>` : typeof value === "string" ? value : JSON.stringify(value, null, 1));

export function Messages({ name = "", about }) {
  const [given, setGiven] = useState({ partition: name, at: "latest", where: "", key: "utf8", value: "utf8", limit: 50 });
  const [found, setFound] = useState({});
  const set = (field) => (event) => setGiven({ ...given, [field]: event.target.value });
  const load = (offset) => {
    const place = offset !== undefined ? { offset } : given.at === "earliest" ? { offset: 0 } : given.at === "offset" ? { offset: given.where || 0 }
      : given.at === "time" ? { time_ms: new Date(`${given.where}Z`).getTime() || 0 } : {};
    setFound({ isLoading: true });
    const { partition, key, value, limit } = given;
    ask("/api/messages", { partition, key, value, limit, ...place }).then(
      (data) => setFound({ data }),
      (error) => setFound({ error: error.message }),
    );
  };
  useEffect(() => {
    if (name && about.may_read_messages) load();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    load();
  };
  const of = found.data;
  const decoders = (chosen) => about.decoders.map((each) => html`<option value=${each} selected=${each === chosen}>${each}</option>`);
  return html`<h1>Messages${name && html` of ${name}`}</h1>
    ${!about.may_read_messages &&
    html`<p class="note">The brokers have logins or permissions, and this port has none: records are not shown. <code>--console-messages</code> shows them to everyone who reaches the port.</p>`}
    <form class="form" onSubmit=${submit}>
      <div class="field"><label for="partition">Partition</label><input id="partition" required placeholder="orders-0" value=${given.partition} onInput=${set("partition")} /></div>
      <div class="field"><label for="at">From</label>
        <select id="at" value=${given.at} onChange=${set("at")}>
          <option value="latest">the last ones</option><option value="earliest">the first ones</option><option value="offset">an offset</option><option value="time">a time (UTC)</option>
        </select></div>
      ${(given.at === "offset" || given.at === "time") &&
      html`<div class="field"><label for="where">${given.at === "offset" ? "Offset" : "Time"}</label>
        <input id="where" type=${given.at === "offset" ? "number" : "datetime-local"} min="0" step=${given.at === "offset" ? 1 : "any"} value=${given.where} onInput=${set("where")} /></div>`}
      <div class="field"><label for="key">Key as</label><select id="key" onChange=${set("key")}>${decoders(given.key)}</select></div>
      <div class="field"><label for="value">Value as</label><select id="value" onChange=${set("value")}>${decoders(given.value)}</select></div>
      <div class="field"><label for="limit">At most</label><select id="limit" onChange=${set("limit")}>${[10, 50, 200].map((each) => html`<option value=${each} selected=${each === Number(given.limit)}>${each}</option>`)}</select></div>
      <button class="main" type="submit" disabled=${!about.may_read_messages}>Show</button>
    </form>
    <${Problem} text=${found.error} />
    ${found.isLoading && html`<p class="dim">Loading …</p>`}
    ${of &&
    html`<nav class="pager" aria-label="Pages">
        <button disabled=${of.from <= of.log_start_offset} onClick=${() => load(Math.max(of.from - given.limit, of.log_start_offset))}>Earlier</button>
        <span>offsets ${count(of.from)} to before ${count(of.next)}; the log has ${count(of.log_start_offset)} to before ${count(of.high_watermark)}</span>
        <button disabled=${of.next >= of.high_watermark} onClick=${() => load(of.next)}>Later</button>
      </nav>
      ${of.problems.map((one) => html`<${Problem} text=${one} />`)}
      <div class="scroll" tabindex="0" role="region" aria-label="Records">
      <table class="list">
        <thead><tr><th class="n">offset</th><th>time</th><th>key</th><th>value</th><th>headers</th><th class="n">epoch</th><th>codec</th></tr></thead>
        <tbody>${of.records.map(
          (one) => html`<tr>
            <td class="n">${one.offset}</td><td class="time">${moment(one.timestamp)}</td><td><pre>${text(one.key)}</pre></td>
            <td class="long"><pre>${text(one.value)}</pre>${one.is_control && html` <span class="chip quiet">control</span>`}${one.is_cut && html` <span class="chip kind-warn">cut</span>`}</td>
            <td>${Array.isArray(one.headers) ? one.headers.map(([header, value]) => html`<div><code>${header}: ${text(value)}</code></div>`) : one.headers}</td>
            <td class="n">${one.leader_epoch}</td><td>${one.codec}</td>
          </tr>`,
        )}</tbody>
      </table></div>
      ${of.records.length === 0 && html`<p class="dim">There are no records here.</p>`}`}`;
}
