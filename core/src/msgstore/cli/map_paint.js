"use strict";

// The data contains bytes from segments. They are inserted as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const KINDS = new Map(data.kinds.map(([code, name, meaning]) => [code, { name, meaning }]));
const CODE = Object.fromEntries(data.kinds.map(([code, name]) => [name, code]));
const RECORDS = new Set([CODE.live, CODE.record, CODE.dead]);
const ALWAYS_SEEN = [CODE.damaged, CODE.torn];
const BLOCK = "+";
const ROWS = 1000; // bars that are drawn until the user asks for more
const SEPARATED = 4; // pixels; wider records are drawn separately

const $ = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const percent = (part, whole) => (whole ? `${(100 * part / whole).toFixed(part && part < whole / 100 ? 1 : 0)} %` : "");
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

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

// -- colours and patterns: kinds differ also without colour ----------------------------------------------------------------

const PATTERNS = {
  header: (pen) => { pen.fillRect(0, 1, 8, 1.5); pen.fillRect(0, 5, 8, 1.5); },
  record: (pen) => { pen.fillRect(1, 1, 2, 2); pen.fillRect(5, 5, 2, 2); },
  dead: (pen) => { for (const at of [-8, 0, 8]) { pen.moveTo(at - 1, 9); pen.lineTo(at + 9, -1); } pen.stroke(); },
  hole: (pen) => { pen.fillRect(3, 3, 2, 2); },
  other: (pen) => { pen.fillRect(0, 3, 8, 1.5); },
  torn: (pen) => { pen.fillRect(1, 0, 2, 8); pen.fillRect(5, 0, 2, 8); },
  damaged: (pen) => { pen.moveTo(-1, -1); pen.lineTo(9, 9); pen.moveTo(-1, 9); pen.lineTo(9, -1); pen.stroke(); },
};
let inks = new Map();

function mixInks() {
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => colours.getPropertyValue(`--${name}`).trim();
  const ratio = window.devicePixelRatio || 1;
  inks = new Map();
  for (const [code, { name }] of KINDS) {
    const tile = make("canvas", { width: Math.round(8 * ratio), height: Math.round(8 * ratio) });
    const pen = tile.getContext("2d");
    pen.scale(tile.width / 8, tile.height / 8);
    pen.fillStyle = colour(name);
    pen.fillRect(0, 0, 8, 8);
    pen.fillStyle = pen.strokeStyle = colour(`${name}-mark`);
    pen.lineWidth = 1.6;
    PATTERNS[name]?.(pen);
    inks.set(code, pen.createPattern(tile, "repeat"));
  }
}

// -- segments ----------------------------------------------------------------------------------------------------------------

const decoded = new Map();

function spread(runs, length) {
  const values = new Int32Array(length);
  let at = 0;
  for (let run = 0; run < runs.length; run += 2) {
    values.fill(runs[run], at, at + runs[run + 1]);
    at += runs[run + 1];
  }
  return values;
}

function decode(segment) {
  let found = decoded.get(segment);
  if (found) return found;
  const count = segment.sizes.length;
  const offsets = new Float64Array(count + 1);
  const ordinals = new Int32Array(count); // index of a record among the records, or of a block among the blocks
  let records = 0;
  let blocks = 0;
  for (let at = 0; at < count; at++) {
    offsets[at + 1] = offsets[at] + segment.sizes[at];
    const kind = segment.kinds[at];
    ordinals[at] = kind === BLOCK ? blocks++ : RECORDS.has(kind) ? records++ : -1;
  }
  found = {
    count, offsets, ordinals, records,
    ids: atob(segment.ids),
    types: spread(segment.types, records),
    references: spread(segment.references, records),
    whys: new Map(segment.whys),
  };
  decoded.set(segment, found);
  return found;
}

function hexadecimal(ids, record) {
  let text = "";
  for (let at = 16 * record; at < 16 * record + 16; at++) text += ids.charCodeAt(at).toString(16).padStart(2, "0");
  return text;
}

function pieceAt(segment, offset) {
  const { offsets, count } = decode(segment);
  let low = 0;
  let high = count - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= offset) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Describe one piece: a title, and lines of [label, value].
function describe(store, segment, at) {
  const { offsets, ordinals, ids, types, references, whys } = decode(segment);
  const kind = segment.kinds[at];
  const place = [["segment", segment.file], ["offset", number(offsets[at])], ["size", `${number(segment.sizes[at])} bytes`]];
  if (kind === BLOCK) {
    const inside = segment.blocks[ordinals[at]];
    const lines = inside.map(([code, count, bytes]) => [KINDS.get(code).name, `${number(count)}, ${size(bytes)}`]);
    return { kinds: inside.map(([code]) => code), title: `${plural(inside.reduce((sum, [, count]) => sum + count, 0), "neighbour")}, merged`, lines: [...place, ...lines] };
  }
  const { name } = KINDS.get(kind);
  if (!RECORDS.has(kind)) {
    const reason = whys.has(at) ? [["reason", data.words[whys.get(at)]]] : [];
    return { kinds: [kind], title: name, lines: [...place, ...reason] };
  }
  const record = ordinals[at];
  const lines = [["id", hexadecimal(ids, record)], ...place];
  if (data.words[types[record]]) lines.push(["record type", data.words[types[record]]]);
  if (kind === CODE.live) lines.push(["references", number(references[record])]);
  if (whys.has(at)) lines.push(["why", data.words[whys.get(at)]]);
  return { kinds: [kind], title: kind === CODE.record ? "record, live or dead" : `${name} record`, lines };
}

// -- drawing -----------------------------------------------------------------------------------------------------------------

// Each column of pixels is divided among the kinds in it. Damage of any size takes the whole column.
function paint(canvas, total, pieces) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  canvas.width = width;
  canvas.height = height;
  const shares = new Map();
  const edges = [];
  const add = (code, from, to, weight) => {
    if (!shares.has(code)) shares.set(code, new Float32Array(width));
    const share = shares.get(code);
    for (let column = Math.floor(from); column < Math.min(to, width); column++) {
      share[column] += weight * (Math.min(to, column + 1) - Math.max(from, column));
    }
  };
  for (const [offset, bytes, parts] of pieces) {
    let from = offset / total * width;
    let to = (offset + bytes) / total * width;
    if (to - from >= 2) {
      from = Math.round(from);
      to = Math.round(to);
      if (to - from >= SEPARATED * ratio && parts.length === 1 && RECORDS.has(parts[0][0])) edges.push(to);
    }
    for (const [code, , part] of parts) {
      if (ALWAYS_SEEN.includes(code)) add(code, from, Math.max(to, from + 3), 1);
      else if (bytes) add(code, from, to, part / bytes);
    }
  }
  const pen = canvas.getContext("2d");
  const column = (at) => {
    const seen = ALWAYS_SEEN.find((code) => shares.has(code) && shares.get(code)[at] > 0);
    if (seen) return [[seen, 1]];
    const parts = [...KINDS.keys()].filter((code) => shares.has(code) && shares.get(code)[at] > 1e-4).map((code) => [code, shares.get(code)[at]]);
    const sum = parts.reduce((all, [, share]) => all + share, 0);
    return parts.map(([code, share]) => [code, share / sum]);
  };
  const fill = (from, to, parts) => {
    let top = 0;
    for (const [code, share] of parts) {
      pen.fillStyle = inks.get(code);
      pen.fillRect(from, top, to - from, parts.length === 1 ? height : share * height);
      top += share * height;
    }
  };
  let from = 0;
  let parts = column(0);
  for (let at = 1; at <= width; at++) {
    const next = at < width ? column(at) : [];
    if (parts.length === 1 && next.length === 1 && next[0][0] === parts[0][0]) continue;
    fill(from, at, parts);
    from = at;
    parts = next;
  }
  pen.fillStyle = "rgb(0 0 0 / 40%)";
  for (const edge of edges) if (edge < width) pen.fillRect(edge - Math.max(1, Math.round(ratio)), 0, Math.max(1, Math.round(ratio)), height);
}

function paintSegment(canvas, segment) {
  const { offsets, ordinals, count } = decode(segment);
  const pieces = [];
  for (let at = 0; at < count; at++) {
    const bytes = segment.sizes[at];
    const kind = segment.kinds[at];
    pieces.push([offsets[at], bytes, kind === BLOCK ? segment.blocks[ordinals[at]] : [[kind, 1, bytes]]]);
  }
  paint(canvas, segment.size, pieces);
  canvas.parentElement.dataset.pieces = count;
}

function swatch(codes) {
  const canvas = make("canvas", { width: 30, height: 14, "aria-hidden": "true" });
  const paintIt = () => {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = 30 * ratio;
    canvas.height = 14 * ratio;
    const pen = canvas.getContext("2d");
    codes.forEach((code, at) => {
      pen.fillStyle = inks.get(code);
      pen.fillRect(at * canvas.width / codes.length, 0, canvas.width / codes.length, canvas.height);
    });
  };
  paintIt();
  canvas.repaint = paintIt;
  return canvas;
}
