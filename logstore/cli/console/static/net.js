// Asking the API, again and again while the page is seen; and how values are written.

import { useEffect, useRef, useState } from "/vendor/htm-preact.js";

export class Refused extends Error {}

export async function ask(path, given = {}) {
  const query = new URLSearchParams(
    Object.entries(given).filter(([, value]) => value !== undefined && value !== null && value !== ""),
  ).toString();
  return answer(fetch(query ? `${path}?${query}` : path));
}

export async function change(path, body) {
  return answer(
    fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
  );
}

async function answer(asking) {
  let found;
  try {
    found = await asking;
  } catch {
    throw new Refused("this broker does not answer; is it running?");
  }
  const facts = await found.json().catch(() => ({ error: `HTTP ${found.status}` }));
  if (!found.ok) throw new Refused(facts.error || `HTTP ${found.status}`);
  return facts;
}

// Ask now, and again every `everyMs` (more seldom if answers are slow). A key that changes asks at once.
export function usePoll(question, key, everyMs = 1000) {
  const [state, setState] = useState({ key: null, data: null, error: "" });
  const last = useRef(null);
  useEffect(() => {
    let isOver = false;
    let timer = 0;
    last.current = null;
    const again = async () => {
      const began = performance.now();
      if (!document.hidden || last.current === null) {
        try {
          const data = await question(last.current);
          if (isOver) return;
          if (!data.is_unchanged) last.current = data;
          setState({ key, data: last.current, error: "" });
        } catch (error) {
          if (isOver) return;
          setState({ key, data: last.current, error: error.message });
        }
      }
      timer = setTimeout(again, Math.max(everyMs, 3 * (performance.now() - began)));
    };
    const seen = () => {
      if (!document.hidden) {
        clearTimeout(timer);
        again();
      }
    };
    again();
    document.addEventListener("visibilitychange", seen);
    return () => {
      isOver = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key]);
  return state.key === key ? state : { data: null, error: "" };
}

export const count = (number) => (number === null || number === undefined ? "–" : number.toLocaleString("en"));

export function bytes(size) {
  if (size === null || size === undefined || size < 0) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (size >= 1023.5 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${size >= 100 || at === 0 ? Math.round(size) : size.toFixed(1)} ${units[at]}`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
export const moment = (ms) => (ms > 0 ? new Date(ms).toISOString().replace("T", " ").replace("Z", "") : "–");
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
