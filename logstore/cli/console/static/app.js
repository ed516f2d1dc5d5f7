// The frame: what is asked for in the address, and the view of it.

import { html, render, useEffect, useRef, useState } from "/vendor/htm-preact.js";
import { GroupView, Groups, collect } from "/groups.js";
import { Messages } from "/messages.js";
import { Moves } from "/moves.js";
import { BrokerView, Overview } from "/overview.js";
import { PartitionView } from "/partition.js";
import { Timeline } from "/timeline.js";
import { TopicView, Topics } from "/topics.js";
import { ask, usePoll } from "/net.js";
import { Problem } from "/ui.js";

const TABS = [
  ["", "Overview"],
  ["topics", "Topics"],
  ["groups", "Groups"],
  ["timeline", "Timeline"],
  ["messages", "Messages"],
  ["moves", "Reassign"],
];
const PARENTS = { topic: "topics", group: "groups", partition: "", broker: "" };
const COLLECT_MS = 10_000;

function View({ parts, about }) {
  const [kind, name] = parts;
  switch (kind) {
    case "":
    case undefined: return html`<${Overview} />`;
    case "broker": return html`<${BrokerView} id=${name} key=${name} />`;
    case "topics": return html`<${Topics} />`;
    case "topic": return html`<${TopicView} name=${name} key=${name} />`;
    case "partition": return html`<${PartitionView} name=${name} key=${name} />`;
    case "groups": return html`<${Groups} />`;
    case "group": return html`<${GroupView} name=${name} key=${name} />`;
    case "timeline": return html`<${Timeline} name=${name} key=${name} />`;
    case "messages": return about && html`<${Messages} name=${name} key=${name} about=${about} />`;
    case "moves": return about && html`<${Moves} about=${about} />`;
    default: return html`<h1>Not found</h1><p>There is no view ${kind}.</p>`;
  }
}

const asked = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);

function App() {
  const [parts, setParts] = useState(asked());
  const main = useRef(null);
  const about = usePoll(() => ask("/api"), "about", 30_000);
  useEffect(() => {
    const moved = () => {
      setParts(asked());
      scrollTo(0, 0);
      main.current.focus({ preventScroll: true });
    };
    addEventListener("hashchange", moved);
    const collecting = setInterval(() => document.hidden || collect().catch(() => {}), COLLECT_MS);
    return () => {
      removeEventListener("hashchange", moved);
      clearInterval(collecting);
    };
  }, []);
  const tab = PARENTS[parts[0]] ?? parts[0] ?? "";
  useEffect(() => {
    document.title = `${parts[1] || (TABS.find(([name]) => name === tab) || ["", "logstore"])[1]} – logstore console`;
  }, [parts.join("/")]);
  return html`<header class="top">
      <span class="brand"><img src="/icon.svg" alt="" /> logstore</span>
      <nav aria-label="Views">
        ${TABS.map(([name, text]) => html`<a href=${`#/${name}`} aria-current=${tab === name ? "page" : undefined}>${text}</a>`)}
      </nav>
      <span class="where">${about.data ? `broker ${about.data.broker}, cluster ${about.data.cluster_id}${about.data.may_change ? "" : ", read only"}` : ""}</span>
    </header>
    <main ref=${main} tabindex="-1">
      <${Problem} text=${about.error} />
      <${View} parts=${parts} about=${about.data} />
    </main>`;
}

render(html`<${App} />`, document.getElementById("app"));
