"use strict";

// The data contains bytes from segments. They are inserted as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const KINDS = Object.keys(data.kinds);
const PROMINENT = ["torn", "damaged"]; // drawn last, and at least 3 pixels wide
const $ = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const percent = (part, whole) => (whole ? `${(100 * part / whole).toFixed(part && part < whole / 100 ? 1 : 0)} %` : "");
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const sum = (values) => values.reduce((all, value) => all + value, 0);

function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const power = Math.min(Math.floor(Math.log2(bytes) / 10), 4);
  return `${(bytes / 1024 ** power).toFixed(1)} ${["", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// -- drawing: kinds differ by colour and by pattern ---------------------------------------------------------------------------

const PATTERNS = {
  header: (pen) => { pen.fillRect(0, 1, 8, 1.5); pen.fillRect(0, 5, 8, 1.5); },
  record: (pen) => { pen.fillRect(1, 1, 2, 2); pen.fillRect(5, 5, 2, 2); },
  dead: (pen) => { for (const at of [-8, 0, 8]) { pen.moveTo(at - 1, 9); pen.lineTo(at + 9, -1); } pen.stroke(); },
  hole: (pen) => { pen.fillRect(3, 3, 2, 2); },
  other: (pen) => { pen.fillRect(0, 3, 8, 1.5); },
  torn: (pen) => { pen.fillRect(1, 0, 2, 8); pen.fillRect(5, 0, 2, 8); },
  damaged: (pen) => { pen.moveTo(-1, -1); pen.lineTo(9, 9); pen.moveTo(-1, 9); pen.lineTo(9, -1); pen.stroke(); },
};
let inks = {};

function mixInks() {
  const colours = getComputedStyle(document.documentElement);
  for (const kind of KINDS) {
    const tile = make("canvas", { width: 8, height: 8 });
    const pen = tile.getContext("2d");
    pen.fillStyle = colours.getPropertyValue(`--${kind}`);
    pen.fillRect(0, 0, 8, 8);
    pen.fillStyle = pen.strokeStyle = colours.getPropertyValue(`--${kind}-mark`);
    PATTERNS[kind]?.(pen);
    inks[kind] = pen.createPattern(tile, "repeat");
  }
}

// Paint [offset, bytes, [[kind, share], ...]] to scale. Shares of one piece are on top of each other.
function paint(canvas, total, pieces) {
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * devicePixelRatio));
  const pen = canvas.getContext("2d");
  const draw = (from, width, parts) => {
    let top = 0;
    for (const [kind, share] of parts) {
      pen.fillStyle = inks[kind];
      pen.fillRect(from, top, width, share * canvas.height);
      top += share * canvas.height;
    }
  };
  const scale = canvas.width / total;
  const prominent = [];
  for (const [offset, bytes, parts] of pieces) {
    draw(offset * scale, bytes * scale, parts);
    for (const [kind] of parts) if (PROMINENT.includes(kind)) prominent.push([offset * scale, Math.max(bytes * scale, 3), kind]);
  }
  for (const [from, width, kind] of prominent) draw(Math.min(from, canvas.width - 3), width, [[kind, 1]]);
}

const swatch = (kind) => {
  const canvas = make("canvas", { "aria-hidden": "true" });
  canvas.paint = () => paint(canvas, 1, [[0, 1, [[kind, 1]]]]);
  return canvas;
};

// Canvases are painted when they scroll into view, and again when their width or the colours change.
const visible = new Set();
const visibility = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    visible[isIntersecting ? "add" : "delete"](target);
    if (isIntersecting) target.paint();
  }
}, { rootMargin: "300px" });

function repaint() {
  mixInks();
  for (const canvas of visible) canvas.paint();
}

// -- pieces of a segment: [bytes, kind, why, id, type, references], or [bytes, {kind: [number, bytes]}] of merged neighbours ------

const isMerged = ([, kind]) => typeof kind !== "string";

function offsetsOf(segment) {
  if (!segment.offsets) {
    let at = 0;
    segment.offsets = segment.pieces.map(([bytes]) => (at += bytes) - bytes);
  }
  return segment.offsets;
}

function pieceAt(segment, offset) {
  const offsets = offsetsOf(segment);
  let low = 0;
  let high = offsets.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= offset) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Describe one piece: a title, and lines of [label, value].
function describe(segment, at) {
  const [bytes, kind, why, id, type, references] = segment.pieces[at];
  const lines = [["segment", segment.file], ["offset", number(offsetsOf(segment)[at])], ["size", `${number(bytes)} bytes`]];
  if (isMerged(segment.pieces[at])) {
    const parts = Object.entries(kind).map(([name, [count, part]]) => [name, `${number(count)}, ${size(part)}`]);
    return [`${plural(sum(Object.values(kind).map(([count]) => count)), "neighbour")}, merged`, [...lines, ...parts]];
  }
  if (id) lines.unshift(["id", id]);
  if (type) lines.push(["record type", type]);
  if (references) lines.push(["references", number(references)]);
  if (why) lines.push(["reason", why]);
  return [id ? { record: "record, live or dead" }[kind] ?? `${kind} record` : kind, lines];
}

const cursor = make("div", { class: "cursor" });

function show(segment, bar, at) {
  const [title, lines] = describe(segment, at);
  bar.dataset.at = at;
  bar.append(cursor);
  cursor.style.left = `${100 * offsetsOf(segment)[at] / segment.size}%`;
  cursor.style.width = `${100 * segment.pieces[at][0] / segment.size}%`;
  const card = $("card");
  card.replaceChildren(make("b", {}, title), make("dl", {}, ...lines.flatMap(([what, value]) => [make("dt", {}, what), make("dd", {}, value)])));
  card.hidden = false;
  const [box, at_, below] = [card.getBoundingClientRect(), cursor.getBoundingClientRect(), bar.getBoundingClientRect().bottom + 8];
  card.style.left = `${Math.max(4, Math.min(at_.left, innerWidth - box.width - 4))}px`;
  card.style.top = `${below + box.height > innerHeight ? Math.max(4, below - box.height - 46) : below}px`;
}

function leave() {
  $("card").hidden = true;
  cursor.remove();
}

function step(event, segment, bar) {
  const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  const [row, other] = [bar.parentElement, { ArrowUp: "previousElementSibling", ArrowDown: "nextElementSibling" }[event.key]];
  if (by && segment.pieces.length) show(segment, bar, Math.min(Math.max(Number(bar.dataset.at || 0) + by, 0), segment.pieces.length - 1));
  if (other) row[other]?.querySelector(".bar").focus();
  if (by || other) event.preventDefault();
  if (event.key === "Escape") leave();
}

// -- a directory -------------------------------------------------------------------------------------------------------------

function makeRow(store, segment) {
  const canvas = make("canvas");
  canvas.paint = () => paint(canvas, segment.size || 1, segment.pieces.map((piece, at) => [
    offsetsOf(segment)[at], piece[0], isMerged(piece) ? Object.entries(piece[1]).map(([kind, [, bytes]]) => [kind, bytes / piece[0]]) : [[piece[1], 1]]]));
  visibility.observe(canvas);
  const parts = Object.entries(segment.totals).map(([kind, [count, bytes]]) => `${kind} ${number(count)}, ${size(bytes)}`);
  const bar = make("div", {
    class: "bar", role: "img", tabindex: 0, "aria-label": `${segment.file}, ${size(segment.size)}: ${parts.join("; ")}`,
    onpointermove: ({ clientX }) => {
      const box = bar.getBoundingClientRect();
      if (segment.size) show(segment, bar, pieceAt(segment, (clientX - box.left) / box.width * segment.size));
    },
    onpointerleave: leave,
    onblur: leave,
    onfocus: () => segment.size && bar.matches(":focus-visible") && show(segment, bar, Number(bar.dataset.at || 0)),
    onkeydown: (event) => step(event, segment, bar),
  }, canvas);
  return make("div", { class: "row", "data-file": segment.file },
    make("b", {}, segment.file, segment.quarantined ? make("small", { class: "bad" }, "damaged: never collected") : null),
    make("span", { class: "size" }, size(segment.size)), bar,
    make("span", { class: "share" }, store.live_known && segment.size ? `${percent((segment.totals.live || [0, 0])[1], segment.size)} live` : ""));
}

function stretch() {
  for (const store of data.stores) {
    const largest = Math.max(1, ...store.segments.map((segment) => segment.size));
    store.segments.forEach((segment, at) => {
      store.rows[at].querySelector(".bar").style.width = $("stretch").checked ? "100%" : `${100 * segment.size / largest}%`;
    });
  }
}

// Mark the segments that a policy would touch; none without a plan.
function choose(store, list, passed, plan) {
  list.classList.toggle("choosing", Boolean(plan));
  for (const row of store.rows) {
    row.querySelector(".does")?.remove();
    const action = plan?.steps.find(({ files }) => files.includes(row.dataset.file));
    row.classList.toggle("touched", Boolean(action));
    if (!action) continue;
    const others = action.files.filter((file) => file !== row.dataset.file);
    row.append(make("span", { class: "does", title: action.why }, action.what + (others.length ? ` with ${others.join(", ")}` : ""),
      make("small", {}, `frees about ${size(action.gives_back)}${others.length ? " together" : ""}`),
      action.messages_lost ? make("small", { class: "bad" }, `loses ${plural(action.messages_lost, "live message")}`) : null));
  }
  passed.replaceChildren(...(plan?.passed_over ?? []).map((text) => make("li", {}, `skipped: ${text}`)));
}

function choices(store, list, whole) {
  const passed = make("ul", { class: "faint" });
  const choice = (plan, ...content) => make("label", { class: "policy" },
    make("input", { type: "radio", name: `policy-${data.stores.indexOf(store)}`, checked: !plan, onchange: () => choose(store, list, passed, plan) }), ...content);
  const plans = store.plans.map((plan) => {
    const [freed, lost] = ["gives_back", "messages_lost"].map((name) => sum(plan.steps.map((step) => step[name])));
    const counts = {};
    for (const { what } of plan.steps) counts[what] = (counts[what] || 0) + 1; // as inventory counts them
    const steps = Object.entries(counts).map(([what, count]) => `${what} ${number(count)}`).join(", ") || "nothing to do";
    return choice(plan, make("b", {}, plan.name),
      plan.options ? make("span", {}, plan.options) : null,
      make("span", { class: plan.error ? "bad" : "" }, plan.error || (freed ? `${steps}: frees about ${size(freed)} (${percent(freed, whole)})` : steps)),
      lost ? make("span", { class: "bad" }, `loses ${plural(lost, "live message")}`) : null,
      make("span", { class: "faint" }, `${plan.summary}${plan.provider === "msgstore" ? "" : ` (${plan.provider})`}`));
  });
  return make("fieldset", {}, make("legend", {}, "What a GC policy would do now"),
    ...(store.unasked ? [make("p", { class: "note" }, `The policies were not asked: ${store.unasked}`)] : [choice(null, make("b", {}, "unchanged")), ...plans]),
    passed, store.size_limit ? make("p", { class: "faint" }, `A file_size_limit of ${size(store.size_limit)} is assumed: a directory does not remember its limit.`) : null);
}

function goTo(store, segment, at) {
  const bar = store.rows[store.segments.indexOf(segment)].querySelector(".bar");
  bar.scrollIntoView({ block: "center" });
  bar.focus();
  show(segment, bar, at);
}

function damageList(store) {
  if (!store.damage_count) return null;
  const rows = store.damage.map(([file, offset, bytes, why]) => {
    const segment = store.segments.find((one) => one.file === file);
    return make("tr", {}, make("td", {}, make("button", { onclick: () => goTo(store, segment, pieceAt(segment, offset)) }, file)),
      make("td", {}, number(offset)), make("td", {}, size(bytes)), make("td", {}, why));
  });
  const rest = store.damage_count - store.damage.length;
  return make("details", { open: true }, make("summary", {}, plural(store.damage_count, "damaged span")),
    make("table", {}, make("tr", {}, ...["segment", "offset", "size", "reason"].map((name) => make("th", {}, name))), ...rows),
    rest ? make("p", {}, `... and ${number(rest)} more: msgstore scan --json lists them all`) : null);
}

function showStore(store) {
  const whole = sum(store.segments.map((segment) => segment.size));
  const figure = (name, value, more) => make("div", {}, make("dt", {}, name), make("dd", { class: PROMINENT.includes(name) ? "bad" : "" }, value, " ", make("small", {}, more)));
  const figures = KINDS.map((kind) => [kind, ...[0, 1].map((at) => sum(store.segments.map(({ totals }) => (totals[kind] || [0, 0])[at])))])
    .filter(([kind, count]) => count && kind !== "header")
    .map(([kind, count, bytes]) => figure(kind, number(count), `${size(bytes)}, ${percent(bytes, whole)}`));
  const notes = [];
  if (!store.live_known) notes.push("Without an index, live records are unknown: the policies were asked as if all records were live. They would do more if some are dead. --refcounts FILE gives the counts.");
  if (store.not_shown) notes.push(`Not on this page: ${plural(store.not_shown, "segment")} of this directory. The policies were asked about the others only.`);
  store.rows = store.segments.map((segment) => makeRow(store, segment));
  const list = make("div", { class: "list" }, ...store.rows);
  const longest = Math.max(5, ...store.segments.map(({ file, quarantined }) => Math.max(file.length, quarantined ? 12 : 0)));
  list.style.setProperty("--names", `${Math.min(longest, 20) + 1}ch`);
  $("stores").append(make("section", {}, make("h2", {}, store.path),
    make("dl", { class: "totals" }, figure("segments", number(store.segments.length), size(whole)), ...figures),
    ...notes.map((text) => make("p", { class: "note" }, text)), damageList(store),
    make("div", { class: "body" }, choices(store, list, whole), list)));
}

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = $("id").value.trim().toLowerCase();
  $("found").textContent = "";
  for (const store of data.stores) {
    for (const segment of store.segments) {
      const at = segment.pieces.findIndex(([, , , id]) => wanted && id?.startsWith(wanted));
      if (at >= 0) return goTo(store, segment, at);
    }
  }
  $("found").textContent = `No message ${wanted} among the records that this page shows one by one.`;
});

$("made").textContent = `${data.made}, msgstore ${data.version}`;
const segments = data.stores.flatMap((store) => store.segments);
for (const kind of KINDS) if (segments.some(({ totals }) => totals[kind])) $("legend").append(make("li", {}, swatch(kind), data.kinds[kind]));
if (data.grain) {
  const merged = segments.flatMap(({ pieces }) => pieces.filter(isMerged));
  const spans = sum(merged.flatMap(([, parts]) => Object.values(parts).map(([count]) => count)));
  $("merged").textContent = `There is more here than a page can show one by one: ${number(spans)} records, holes and other spans shorter than ${size(data.grain)} are merged with their neighbours into ${plural(merged.length, "block")}, which give the number of each kind. Totals, damage and policies are exact. A map of fewer segments shows more. msgstore scan --json lists every record.`;
  $("merged").hidden = false;
}
data.stores.forEach(showStore);
stretch();
mixInks();
for (const canvas of document.querySelectorAll("#legend canvas")) visibility.observe(canvas);
$("stretch").addEventListener("change", () => { stretch(); repaint(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
new ResizeObserver(repaint).observe(document.body);
