// Interaction with the page: pointing, stepping, choosing policies. map_paint.js precedes this file in the page.

// -- pointing and stepping ---------------------------------------------------------------------------------------------------

const card = $("card");
const cursor = make("div", { class: "cursor" });

function point(view, segment, bar, at, where, company = 0) {
  const { offsets } = decode(segment);
  const description = describe(view.store, segment, at);
  bar.append(cursor);
  cursor.style.left = `${100 * offsets[at] / segment.size}%`;
  cursor.style.width = `${100 * segment.sizes[at] / segment.size}%`;
  card.replaceChildren(
    make("b", {}, swatch(description.kinds), description.title),
    make("dl", {}, ...description.lines.flatMap(([what, value]) => [make("dt", {}, what), make("dd", { class: what === "id" ? "mono" : "" }, value)])),
    ...(company > 0 ? [make("p", {}, `and ${plural(company, "neighbour")} in the same pixel: click, then use ← → to step through them`)] : []),
  );
  card.hidden = false;
  const box = card.getBoundingClientRect();
  const beside = where.x + 16 + box.width > innerWidth ? where.x - 16 - box.width : where.x + 16;
  card.style.left = `${Math.max(4, beside)}px`;
  card.style.top = `${where.y + 22 + box.height > innerHeight ? Math.max(4, where.y - 14 - box.height) : where.y + 22}px`;
  return `${description.title}. ${description.lines.map((line) => line.join(" ")).join(", ")}`;
}

function leave() {
  card.hidden = true;
  cursor.remove();
}

function hover(event, view, segment, bar) {
  if (!segment.size) return 0;
  const box = bar.getBoundingClientRect();
  const each = segment.size / box.width; // bytes per pixel
  const x = Math.min(Math.max(event.clientX - box.left, 0), box.width - 0.01);
  const at = pieceAt(segment, x * each);
  const first = pieceAt(segment, Math.floor(x) * each);
  const last = pieceAt(segment, Math.min((Math.floor(x) + 1) * each, segment.size) - 1);
  point(view, segment, bar, at, { x: event.clientX, y: event.clientY }, last - first > 1 ? last - first : 0);
  return at;
}

function select(view, segment, bar, at) {
  const { offsets, count } = decode(segment);
  if (!count) return;
  at = Math.min(Math.max(at, 0), count - 1);
  bar.dataset.at = at;
  const box = bar.getBoundingClientRect();
  const x = box.left + (offsets[at] + segment.sizes[at] / 2) / segment.size * box.width;
  $("spoken").textContent = point(view, segment, bar, at, { x, y: box.top + 10 });
}

function step(event, view, segment, bar) {
  const at = Number(bar.dataset.at || 0);
  const rows = [...view.list.querySelectorAll(".bar")];
  const go = (to) => { event.preventDefault(); select(view, segment, bar, to); };
  const other = (by) => {
    event.preventDefault();
    rows[rows.indexOf(bar) + by]?.focus();
  };
  const keys = {
    ArrowLeft: () => go(at - 1), ArrowRight: () => go(at + 1), Home: () => go(0), End: () => go(Infinity),
    PageUp: () => go(at - 50), PageDown: () => go(at + 50),
    ArrowUp: () => other(-1), ArrowDown: () => other(1), Escape: leave,
  };
  keys[event.key]?.();
}

// -- a directory -------------------------------------------------------------------------------------------------------------

// Bars are painted when they scroll into view, and again when the width or the colours change.
const visible = new Set();
const visibility = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) { visible.add(target); target.paint(); }
    else visible.delete(target);
  }
}, { rootMargin: "300px" });

function repaint() {
  mixInks();
  for (const canvas of document.querySelectorAll("#legend canvas")) canvas.repaint();
  for (const canvas of visible) canvas.paint();
}

function makeRow(view, segment, largest) {
  const action = view.plan?.byFile.get(segment.file);
  const canvas = make("canvas");
  canvas.paint = () => paintSegment(canvas, segment);
  const total = (name) => segment.totals[CODE[name]] || [0, 0];
  const kinds = Object.entries(segment.totals).map(([code, [count, bytes]]) => `${KINDS.get(code).name} ${number(count)}, ${size(bytes)}`);
  const bar = make("div", {
    class: "bar", role: "img", tabindex: view.list.childElementCount ? -1 : 0,
    "aria-label": `${segment.file}, ${size(segment.size)}: ${kinds.join("; ")}`,
    onpointermove: (event) => hover(event, view, segment, bar),
    onpointerleave: leave,
    onclick: (event) => { bar.focus(); bar.dataset.at = hover(event, view, segment, bar); },
    onkeydown: (event) => step(event, view, segment, bar),
    onfocus: () => {
      view.list.querySelector('.bar[tabindex="0"]')?.setAttribute("tabindex", -1);
      bar.setAttribute("tabindex", 0);
      if (bar.matches(":focus-visible")) select(view, segment, bar, Number(bar.dataset.at || 0));
    },
    onblur: leave,
  }, canvas);
  const flag = segment.quarantined ? make("span", { class: "flag bad" }, "damaged: never collected")
    : segment.file === view.store.current ? make("span", { class: "flag", title: "New messages go to this segment: never collected." }, "current") : null;
  const line = make("div", { class: `row${action ? " touched" : ""}`, "data-file": segment.file },
    make("span", { class: "file" }, segment.file, flag), make("span", { class: "size" }, size(segment.size)), bar,
    make("span", { class: "live" }, view.store.live_known && segment.size ? `${percent(total("live")[1], segment.size)} live` : ""),
    view.plan ? make("span", { class: "does" }, ...describeAction(action, segment)) : null);
  const share = $("stretch").checked ? 1 : segment.size / largest;
  bar.style.width = `${100 * share}%`;
  visibility.observe(canvas);
  return line;
}

function describeAction(action, segment) {
  if (!action) return [];
  const others = action.files.filter((file) => file !== segment.file);
  return [
    action.what + (others.length ? ` with ${others.join(", ")}` : ""),
    make("small", { title: action.why }, `frees ${action.what === "delete" || action.what === "drop" ? "" : "about "}${size(action.gives_back)}${others.length ? " together" : ""}`),
    action.messages_lost ? make("small", { class: "lost" }, `loses ${plural(action.messages_lost, "live message")}`) : null,
  ].filter((part) => part !== null);
}

function outcome(plan, whole) {
  const sum = (name) => plan.steps.reduce((all, step) => all + step[name], 0);
  const counts = {};
  for (const step of plan.steps) counts[step.what] = (counts[step.what] || 0) + step.files.length;
  const steps = Object.entries(counts).map(([what, count]) => `${what} ${number(count)}`).join(", ");
  return { steps, freed: sum("gives_back"), lost: sum("messages_lost"), share: percent(sum("gives_back"), whole) };
}

function choices(view, whole) {
  const { store } = view;
  const name = `policy-${data.stores.indexOf(store)}`;
  const choice = (plan, ...content) => make("label", { class: "policy", title: plan?.summary ?? "" },
    make("input", { type: "radio", name, value: plan ? store.plans.indexOf(plan) : "", onchange: () => choose(view, plan) }), ...content);
  const list = store.plans.map((plan) => {
    const { steps, freed, lost, share } = outcome(plan, whole);
    const idle = !plan.steps.length && !plan.error;
    return choice(plan,
      make("b", {}, plan.name, idle ? make("small", {}, " nothing to do") : ""),
      plan.options ? make("span", {}, make("code", {}, plan.options)) : null,
      plan.error ? make("span", { class: "error" }, plan.error) : null,
      plan.steps.length ? make("span", { class: "forecast" }, `${steps}: frees about ${size(freed)} (${share})`) : null,
      lost ? make("span", { class: "lost" }, `loses ${plural(lost, "live message")}`) : null,
      plan.summary && !idle ? make("span", { class: "faint" }, plan.summary) : null,
      plan.provider === "msgstore" ? null : make("span", { class: "faint" }, `from ${plan.provider}`));
  });
  const none = choice(null, make("b", {}, "unchanged"));
  none.querySelector("input").checked = true;
  view.passed = make("ul", { class: "passed", hidden: true });
  view.only = make("input", { type: "checkbox", onchange: () => showRows(view) });
  view.onlyLabel = make("label", { class: "only", hidden: true }, view.only, " show only its segments");
  return make("fieldset", { class: "policies" }, make("legend", {}, "What a GC policy would do now"),
    store.unasked ? make("p", { class: "note" }, `The policies were not asked: ${store.unasked}`) : make("div", { class: "choices" }, none, ...list),
    view.onlyLabel, view.passed);
}

function choose(view, plan) {
  view.plan = plan && { ...plan, byFile: new Map(plan.steps.flatMap((step) => step.files.map((file) => [file, step]))) };
  view.onlyLabel.hidden = !plan;
  if (!plan) view.only.checked = false;
  view.passed.hidden = !plan?.passed_over.length;
  view.passed.replaceChildren(...(plan?.passed_over ?? []).map((text) => make("li", {}, `skipped: ${text}`)));
  view.list.classList.toggle("choosing", Boolean(plan));
  view.list.classList.toggle("marking", Boolean(plan?.steps.length));
  showRows(view);
}

// The bars, up to a number that a browser can draw.
function showRows(view, upTo = ROWS) {
  const shown = view.store.segments.filter((segment) => !view.only.checked || view.plan.byFile.has(segment.file));
  const largest = view.store.segments.reduce((most, segment) => Math.max(most, segment.size), 1);
  for (const canvas of view.list.querySelectorAll("canvas")) { visibility.unobserve(canvas); visible.delete(canvas); }
  view.list.replaceChildren();
  view.shown = upTo;
  for (const segment of shown.slice(0, upTo)) view.list.append(makeRow(view, segment, largest));
  if (shown.length > upTo) {
    view.list.append(make("button", { class: "more", onclick: () => showRows(view, upTo + ROWS) },
      `${number(upTo)} of ${plural(shown.length, "segment")} are shown; show ${number(Math.min(ROWS, shown.length - upTo))} more`));
  }
  if (!shown.length) view.list.append(make("p", { class: "axis" }, view.only.checked ? "The policy changes no segment." : "No segments."));
}

function goTo(view, segment, offset) {
  const at = view.store.segments.indexOf(segment);
  if (view.only.checked || at >= view.shown) { view.only.checked = false; showRows(view, Math.max(ROWS, at + 1)); }
  const bar = view.list.querySelectorAll(".bar")[at];
  bar.scrollIntoView({ block: "center" });
  bar.focus();
  select(view, segment, bar, pieceAt(segment, offset));
}

function damageList(view) {
  const { store } = view;
  if (!store.spot_count) return null;
  const byFile = new Map(store.segments.map((segment) => [segment.file, segment]));
  const lines = store.spots.map(([file, offset, bytes, why]) => make("tr", {},
    make("td", {}, make("button", { onclick: () => goTo(view, byFile.get(file), offset) }, file)),
    make("td", {}, number(offset)), make("td", {}, size(bytes)), make("td", {}, why)));
  const rest = store.spot_count - store.spots.length;
  return make("details", { class: "spots", open: store.spots.length <= 12 }, make("summary", {}, plural(store.spot_count, "damaged span")),
    make("table", {}, make("thead", {}, make("tr", {}, ...["segment", "offset", "size", "reason"].map((name) => make("th", {}, name)))), make("tbody", {}, ...lines)),
    rest ? make("p", {}, `... and ${number(rest)} more: msgstore scan --json lists them all`) : null);
}

function totals(store) {
  const sums = new Map([...KINDS.keys()].map((code) => [code, [0, 0]]));
  for (const segment of store.segments) {
    for (const [code, [count, bytes]] of Object.entries(segment.totals)) {
      sums.get(code)[0] += count;
      sums.get(code)[1] += bytes;
    }
  }
  return sums;
}

function figures(store, sums, whole) {
  const figure = (name, value, more, bad = false) => make("div", { class: bad ? "bad" : "" }, make("dt", {}, name), make("dd", {}, value, " ", make("small", {}, more)));
  const of = (name) => sums.get(CODE[name]);
  const made = [figure("segments", number(store.segments.length), ""), figure("on disk", size(whole), "")];
  for (const [name, title] of [["live", "live records"], ["record", "records"], ["dead", "dead records"], ["hole", "holes"], ["torn", "torn"], ["damaged", "damaged"]]) {
    const [count, bytes] = of(name);
    const counted = name === "dead" ? store.live_known || count : name === "live" ? store.live_known : name === "hole" || count;
    if (counted) made.push(figure(title, number(count), `${size(bytes)}${bytes ? `, ${percent(bytes, whole)}` : ""}`, ALWAYS_SEEN.includes(CODE[name])));
  }
  return make("dl", { class: "totals" }, ...made);
}

const views = [];

function showStore(store) {
  const sums = totals(store);
  const whole = store.segments.reduce((sum, segment) => sum + segment.size, 0);
  const view = { store, plan: null };
  views.push(view);
  const strip = make("canvas", { class: "whole", role: "img", "aria-label": "all segments together" });
  strip.paint = () => {
    let at = 0;
    paint(strip, whole || 1, [...sums].filter(([, [, bytes]]) => bytes).map(([code, [count, bytes]]) => [(at += bytes) - bytes, bytes, [[code, count, bytes]]]));
  };
  const notes = [];
  if (!store.live_known && store.segments.length) {
    notes.push("Without an index, live records are unknown: the policies were asked as if all records were live. They would do more if some are dead. --refcounts FILE gives the counts.");
  }
  if (store.not_shown) notes.push(`${plural(store.not_shown, "segment")} of this directory ${store.not_shown === 1 ? "is" : "are"} not on this page: the policies were asked only about the others.`);
  view.list = make("div", { class: "list" });
  const longest = store.segments.reduce((most, segment) => Math.max(most, segment.file.length, segment.quarantined ? 13 : segment.file === store.current ? 7 : 0), 4);
  view.list.style.setProperty("--names", `${Math.min(longest, 22) + 1}ch`);
  const policies = choices(view, whole);
  $("stores").append(make("section", { class: "store" },
    make("h2", { class: "mono" }, store.path),
    figures(store, sums, whole), strip, ...notes.map((text) => make("p", { class: "note" }, text)), damageList(view),
    make("div", { class: "body" }, policies, view.list)));
  if (store.size_limit) policies.append(make("p", { class: "faint" }, `A segment size limit of ${size(store.size_limit)} is assumed: a directory does not remember its limit.`));
  showRows(view);
  visibility.observe(strip);
}

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = $("id").value.trim().toLowerCase();
  if (!/^[0-9a-f]{1,32}$/.test(wanted)) { $("found").textContent = "An id is up to 32 hexadecimal digits."; return; }
  let searched = 0;
  for (const view of views) {
    for (const segment of view.store.segments) {
      const { ids, records, ordinals, offsets } = decode(segment);
      searched += records;
      for (let record = 0; record < records; record++) {
        if (hexadecimal(ids, record).startsWith(wanted)) {
          $("found").textContent = "";
          goTo(view, segment, offsets[[...segment.kinds].findIndex((kind, at) => kind !== BLOCK && ordinals[at] === record)]);
          return;
        }
      }
    }
  }
  $("found").textContent = `No message ${wanted} among the ${plural(searched, "record")} that this page shows separately.`;
});

mixInks();
$("made").textContent = `${data.made}, msgstore ${data.version}`;
const seen = new Set(data.stores.flatMap((store) => store.segments.flatMap((segment) => Object.keys(segment.totals))));
for (const [code, { meaning }] of KINDS) if (seen.has(code)) $("legend").append(make("li", {}, swatch([code]), meaning));
if (data.grain) {
  const blocks = data.stores.reduce((all, store) => all + store.segments.reduce((sum, segment) => sum + segment.blocks.length, 0), 0);
  const inside = data.stores.reduce((all, store) => all + store.segments.reduce((sum, segment) => sum + segment.blocks.reduce((counts, parts) => counts + parts.reduce((of, [, count]) => of + count, 0), 0), 0), 0);
  $("merged").textContent = `There is more here than a page can show one by one: ${number(inside)} records, holes and other spans shorter than ${size(data.grain)} are merged with their neighbours into ${plural(blocks, "block")}, which give the number of each kind. Totals, damage and policies are exact. A map of fewer segments shows more. msgstore scan --json lists every record.`;
  $("merged").hidden = false;
}
data.stores.forEach(showStore);
$("stretch").addEventListener("change", () => views.forEach((view) => showRows(view, view.shown)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
new ResizeObserver(repaint).observe(document.body);
