// One partition: why, its replicas, and how the log of the replica lies on the disk.

import { html } from "/vendor/htm-preact.js";
import { MARKS } from "/grid.js";
import { ask, bytes, count, link, moment, plural, usePoll } from "/net.js";
import { Loading, Problem, Why } from "/ui.js";

const WIDTH = 1200;
const HEIGHT = 64;
const TOP = 46;
const EPOCH_COLOURS = 6;

// The segments by their offsets, coloured by leader epoch, with the bounds of the log as marks.
export function LogDrawing({ log }) {
  const first = log.segments.length ? log.segments[0].base_offset : log.log_start_offset;
  const span = Math.max(log.log_end_offset - first, 1);
  const x = (offset) => 10 + ((Math.min(Math.max(offset, first), first + span) - first) / span) * (WIDTH - 20);
  const marks = [
    ["log start", log.log_start_offset, ""],
    ["recovery point", log.recovery_point, ""],
    ["last stable", log.last_stable_offset, "mark-lso"],
    ["high watermark", log.high_watermark, "mark-hw"],
    ["log end", log.log_end_offset, ""],
  ];
  const pieces = log.segments.flatMap((segment) => {
    const starts = [segment.base_offset, ...log.epochs.map((one) => one.start_offset)
      .filter((at) => at > segment.base_offset && at < segment.end_offset)];
    return starts.map((at, number) => [segment, at, starts[number + 1] ?? segment.end_offset]);
  });
  const epochAt = (offset) => log.epochs.filter((one) => one.start_offset <= offset).length - 1;
  let taken = [];
  const rows = marks.map(([name, offset]) => {
    const at = x(offset);
    const row = [0, 1, 2, 3, 4].find((each) => !taken.some(([other, place]) => other === each && Math.abs(place - at) < 190)) ?? 4;
    taken = [...taken, [row, at]];
    return row;
  });
  const bottom = TOP + HEIGHT;
  const height = bottom + 26 + 18 * (1 + Math.max(...rows));
  const told = `${log.segments_in_all} segments, offsets ${log.log_start_offset} to ${log.log_end_offset}, high watermark ${log.high_watermark}, ${log.epochs.length} leader epochs, ${log.losses.length} losses`;
  return html`<svg class="drawing" viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label=${told}>
    ${pieces.map(
      ([segment, from, to]) => html`<rect
        class=${`e${Math.max(epochAt(from), 0) % EPOCH_COLOURS}`}
        x=${x(from)} y=${TOP} width=${Math.max(x(to) - x(from), 1)} height=${HEIGHT} />`,
    )}
    ${log.segments.map(
      (one) => html`<rect fill="none" class=${`segment ${one.is_active ? "active" : ""}`} x=${x(one.base_offset) + 1} y=${TOP + 1}
          width=${Math.max(x(one.end_offset) - x(one.base_offset) - 2, 1)} height=${HEIGHT - 2} rx="3">
          <title>${`from ${count(one.base_offset)}, ${bytes(one.bytes)}${one.is_sealed ? ", sealed" : ""}${one.is_active ? ", active" : ""}`}</title>
        </rect>
        ${one.is_sealed && html`<circle class="seal" cx=${(x(one.base_offset) + x(one.end_offset)) / 2} cy=${TOP + HEIGHT - 10} r="3.5" />`}`,
    )}
    ${log.epochs.map(
      (one, number) => one.start_offset >= first && html`<text class="soft" x=${x(one.start_offset) + 4} y=${TOP - 8 - 14 * (number % 2)}>epoch ${one.epoch}</text>`,
    )}
    ${log.losses.map((one) => html`<rect class="loss" x=${x(one.first_offset)} y=${TOP - 4} width=${Math.max(x(one.last_offset + 1) - x(one.first_offset), 4)} height="4"><title>${one.why}</title></rect>`)}
    ${marks.map(([name, offset, kind], number) => {
      const at = x(offset);
      const y = bottom + 22 + 18 * rows[number];
      const isRight = at > WIDTH - 200;
      return html`<path class=${`mark ${kind}`} d=${`M${at},${TOP - 2}V${y - 4}`} />
        <text x=${at + (isRight ? -5 : 5)} y=${y} text-anchor=${isRight ? "end" : "start"}>${name} ${count(offset)}</text>`;
    })}
  </svg>`;
}

function Layout({ log, broker }) {
  return html`<h2>Log on broker ${broker}</h2>
    <${LogDrawing} log=${log} />
    <p class="dim">A box is a segment, its colour the leader epoch. A dot is a seal; the framed segment takes appends. <code>${log.directory}</code></p>
    <details>
      <summary>${plural(log.segments_in_all, "segment")}, ${plural(log.epochs.length, "leader epoch")}${log.segments.length < log.segments_in_all ? `; the newest ${log.segments.length} are shown` : ""}</summary>
      <div class="columns">
        <table class="list">
          <thead><tr><th class="n">from offset</th><th class="n">to before</th><th class="n">bytes</th><th>seal</th></tr></thead>
          <tbody>${log.segments.map((one) => html`<tr><td class="n">${count(one.base_offset)}</td><td class="n">${count(one.end_offset)}</td>
            <td class="n">${bytes(one.bytes)}</td><td>${one.is_active ? "active" : one.is_sealed ? "sealed" : "none"}</td></tr>`)}</tbody>
        </table>
        <table class="list">
          <thead><tr><th class="n">leader epoch</th><th class="n">from offset</th></tr></thead>
          <tbody>${log.epochs.map((one) => html`<tr><td class="n">${one.epoch}</td><td class="n">${count(one.start_offset)}</td></tr>`)}</tbody>
        </table>
      </div>
    </details>
    ${log.losses.length > 0 &&
    html`<h3>Losses</h3>
      <table class="list">
        <thead><tr><th>when</th><th>what</th><th class="n">offsets</th><th class="n">records</th><th>why</th></tr></thead>
        <tbody>${log.losses.map((one) => html`<tr class=${one.below_high_watermark ? "red" : ""}><td>${moment(one.at_ms)}</td><td>${one.who}</td>
          <td class="n">${count(one.first_offset)} – ${count(one.last_offset)}</td><td class="n">${count(one.records)}</td><td>${one.why}</td></tr>`)}</tbody>
      </table>`}`;
}

export function PartitionView({ name }) {
  const found = usePoll(() => ask("/api/partition", { name }), name, 2000);
  const of = found.data;
  if (!of) return html`<h1>${name}</h1><${Loading} of=${found} />`;
  return html`<h1>${name}</h1>
    <${Problem} text=${found.error} />
    <p class="links">
      <a href=${link("topic", of.topic)}>Topic ${of.topic}</a>
      <a href=${link("timeline", name)}>Timeline</a>
      <a href=${link("messages", name)}>Messages</a>
    </p>
    <${Why} kind="partition" name=${name} renew=${of.as_of_ms} />
    <h2>Replicas</h2>
    <table class="list">
      <thead><tr><th>broker</th><th>state</th><th class="n">end offset</th><th class="n">records behind</th><th class="n">size</th><th>log dir</th></tr></thead>
      <tbody>
        ${of.replicas.map(
          (one) => html`<tr class=${"OSDN".includes(one.mark) ? "red" : ""}>
            <td><a href=${link("broker", one.broker)}>Broker ${one.broker}</a></td><td>${MARKS[one.mark]}</td>
            <td class="n">${count(one.end_offset)}</td><td class="n">${count(one.lag)}</td>
            <td class="n">${bytes(one.bytes)}</td><td><code>${one.log_dir || "–"}</code></td>
          </tr>`,
        )}
      </tbody>
    </table>
    ${of.logs.map((one) => html`<${Layout} log=${one.log} broker=${one.broker} />`)}
    ${of.logs.length === 0 &&
    html`<p class="note">No console that this one knows has a replica of it. Open the console of broker ${of.replicas.map((one) => one.broker).join(" or ")} to see the log, or name the other consoles with --console-peers.</p>`}`;
}
