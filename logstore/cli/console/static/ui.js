// Small parts that the views share.

import { html, useEffect, useState } from "/vendor/htm-preact.js";
import { ask, link, plural } from "/net.js";

export const RANKS = {
  unavailable: "unavailable",
  refuses_writes: "refuses writes",
  at_risk: "at risk",
  under_way: "under way",
};

export function Problem({ text }) {
  return text ? html`<p class="problem" role="alert">${text}</p>` : null;
}

export function Loading({ of }) {
  return of.error ? html`<${Problem} text=${of.error} />` : html`<p class="dim">Loading …</p>`;
}

// A trouble in one line, which opens.
export function ShortTrouble({ trouble }) {
  return html`<details class=${`trouble rank-${trouble.rank}`}>
    <summary><span class="chip">${RANKS[trouble.rank] || trouble.rank}</span> <b>${trouble.subject}</b> ${trouble.says}</summary>
    <${Facts} of=${trouble} />
  </details>`;
}

function Facts({ of }) {
  return html`<dl>
    <dt>because</dt><dd>${of.evidence}</dd>
    ${of.waits_for && html`<dt>waits for</dt><dd>${of.waits_for}</dd>`}
    <dt>who acts</dt><dd>${of.acts}</dd>
    <dt>next step</dt><dd class="next">${of.next_step}</dd>
    ${of.no_help && html`<dt>no help</dt><dd>${of.no_help}</dd>`}
  </dl>`;
}

export function Trouble({ trouble, heading = "h3" }) {
  const partition = /^[\w.-]+-\d+$/.test(trouble.subject);
  return html`<article class=${`trouble rank-${trouble.rank}`}>
    <${heading} class="trouble-head">
      <span class="chip">${RANKS[trouble.rank] || trouble.rank}</span>
      ${partition
        ? html`<a href=${link("partition", trouble.subject)}>${trouble.subject}</a>`
        : html`<span>${trouble.subject}</span>`}
    <//>
    <p class="says">${trouble.says}</p>
    <${Facts} of=${trouble} />
  </article>`;
}

// What `logstore why` says of a thing.
export function Why({ kind, name, heading = "h3", renew = 0 }) {
  const [found, setFound] = useState({});
  useEffect(() => {
    let isOver = false;
    ask("/api/why", { kind, name }).then(
      (data) => isOver || setFound({ data }),
      (error) => isOver || setFound({ error: error.message }),
    );
    return () => {
      isOver = true;
    };
  }, [kind, name, renew]);
  if (!found.data) return html`<${Loading} of=${{ error: found.error }} />`;
  const { data } = found;
  return html`<div class="why">
    <p class="state">${data.state}${data.since && html` <span class="dim">since ${data.since}</span>`}</p>
    <p class="dim">because ${data.evidence}</p>
    ${data.troubles.length
      ? data.troubles.map((each) => html`<${Trouble} trouble=${each} heading=${heading} />`)
      : html`<p class="good">Nothing is wrong.</p>`}
  </div>`;
}

export function Pager({ total, offset, limit, go, what }) {
  if (total <= limit && offset === 0) return html`<p class="dim">${plural(total, what)}</p>`;
  const last = Math.min(offset + limit, total);
  return html`<nav class="pager" aria-label="Pages">
    <button disabled=${offset === 0} onClick=${() => go(Math.max(offset - limit, 0))}>Previous</button>
    <span>${offset + 1}–${last} of ${plural(total, what)}</span>
    <button disabled=${last >= total} onClick=${() => go(offset + limit)}>Next</button>
  </nav>`;
}

export function Bar({ part, of, label, alarms = false }) {
  const share = of > 0 ? Math.min(Math.max(part / of, 0), 1) : 0;
  return html`<svg class=${`bar ${alarms && share > 0.95 ? "full" : ""}`} viewBox="0 0 100 6" preserveAspectRatio="none"
    role="img" aria-label=${label}>
    <rect class="bar-back" width="100" height="6" /><rect class="bar-fill" width=${100 * share} height="6" />
  </svg>`;
}
