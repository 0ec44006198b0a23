// Building blocks of the page: the state of its controls, tables, controls.

let doc = JSON.parse(document.getElementById("document").textContent);
const state = {
  run: null,
  focus: "all",
  axis: "rounds",
  measure: "score",
  matrix: "mixing",
  round: null,
  confusion: null,
  reference: null,
  sort: {},
  open: {},
};

const slug = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
const card = (title, ...children) =>
  el("section", { class: "card", id: title && slug(title) }, title ? el("h2", {}, title) : null, ...children);
const soft = (...words) => el("p", { class: "soft" }, ...words);

function selector(id, label, groups, chosen, choose) {
  const option = ([value, words]) => el("option", { value, selected: value === chosen }, words);
  const inside = groups.map(({ name, options }) =>
    name ? el("optgroup", { label: name }, options.map(option)) : options.map(option),
  );
  return el("label", {}, label, el("select", { id, on: { change: (event) => choose(event.target.value) } }, inside));
}

function choice(id, label, options, chosen, choose) {
  const button = ([value, words]) =>
    el(
      "button",
      {
        type: "button",
        id: `${id}-${value}`,
        "aria-pressed": String(value === chosen),
        on: { click: () => choose(value) },
      },
      words,
    );
  return el("div", { class: "choice", role: "group", "aria-label": label }, options.map(button));
}

function copyButton(id, words) {
  const button = el("button", { type: "button", id }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(words);
    } catch {
      const area = el("textarea", {}, words); // where the clipboard is not to be had, as on some file:// pages
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  });
  return button;
}
const command = (id, words) => el("div", { class: "row" }, el("pre", {}, words), copyButton(id, words));

const TYPES = { csv: "text/csv", md: "text/markdown", tex: "application/x-tex" };
const KINDS = { csv: "CSV", md: "Markdown", tex: "LaTeX" };
function fileButtons(files) {
  const button = ([name, content]) => {
    const kind = name.split(".").at(-1),
      each = name.endsWith("-clients.csv");
    return el(
      "button",
      { type: "button", "data-file": name, on: { click: () => save(name, content, TYPES[kind]) } },
      each ? "CSV, every client" : KINDS[kind],
    );
  };
  return el("div", { class: "row small" }, el("span", { class: "soft" }, "Save as"), Object.entries(files).map(button));
}

// columns: [{title, words, value(row), show(row)}]; a click on a heading sorts, a second click reverses the order.
const FEW = 24;
function sortableTable(id, columns, rows, { mark } = {}) {
  const holder = el("div", { class: "wide" }),
    more = el("button", { type: "button", class: "small", id: `${id}-more` });
  const refill = () => {
    const { column = null, down = false } = state.sort[id] || {};
    const sorted = [...rows];
    if (column !== null) {
      const value = columns[column].value;
      sorted.sort((a, b) => {
        const x = value(a),
          y = value(b);
        if (x === null || y === null) return (x === null) - (y === null);
        return (typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y) * (down ? -1 : 1);
      });
    }
    const heading = (one, i) => {
      const order = i === column ? (down ? "descending" : "ascending") : "none";
      const act = () => {
        state.sort[id] = { column: i, down: i === column ? !down : !one.words };
        refill();
        holder.querySelectorAll("th button")[i].focus();
      };
      return el(
        "th",
        { scope: "col", class: one.words ? "words" : null, "aria-sort": order },
        el("button", { type: "button", on: { click: act } }, one.title),
      );
    };
    const body = (state.open[id] ? sorted : sorted.slice(0, FEW)).map((row) =>
      el(
        "tr",
        { class: mark && mark(row) },
        columns.map((one) => el("td", { class: one.words ? "words" : null, "data-label": one.title }, one.show(row))),
      ),
    );
    holder.replaceChildren(
      el("table", { id }, el("thead", {}, el("tr", {}, columns.map(heading))), el("tbody", {}, body)),
    );
    more.hidden = rows.length <= FEW;
    more.textContent = state.open[id] ? `Show ${FEW} only` : `Show all ${rows.length}`;
  };
  more.addEventListener("click", () => {
    state.open[id] = !state.open[id];
    refill();
  });
  refill();
  return el("div", {}, holder, more);
}

const facts = (rows) =>
  el(
    "div",
    { class: "wide" },
    el(
      "table",
      { class: "facts" },
      el(
        "tbody",
        {},
        rows.map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, value))),
      ),
    ),
  );
// A triangle up for helped, down for harmed, a dot for neither: distinguished by shape as well as by colour.
function verdictMark(x, y, r, word) {
  const style = { fill: WORDS[word][2], "fill-opacity": 0.9 };
  if (word === "undecided") return draw("circle", { cx: x, cy: y, r, style });
  const tip = word === "helped" ? -1.3 * r : 1.3 * r;
  const corners = [
    [x, y + tip],
    [x - 1.2 * r, y - 0.75 * tip],
    [x + 1.2 * r, y - 0.75 * tip],
  ];
  return draw("path", { d: pathOf(corners) + "Z", style });
}
const verdictWord = (word) => el("span", { class: WORDS[word][1] }, `${WORDS[word][0]} ${word}`);

// -- a run's numbers

// How scores by the primary metric are shown: shares in percent and their differences in points, others as numbers.
const SHARES = { show: percent, label: percentLabel, gap: points, unit: " points", most: 1 };
const NUMBERS = {
  show: (value) => (value === null ? "–" : numberLabel(value)),
  label: numberLabel,
  gap: (value) => sign(value) + numberLabel(Math.abs(value)),
  unit: "",
};
const scoreOf = (run) => (run.share ? SHARES : NUMBERS);
const margin = (run, value) => `± ${scoreOf(run).gap(value).replace("+", "")}`;
const capital = (words) => words[0].toUpperCase() + words.slice(1);

// Score or loss of client k after each round, carried forward from its last test; null before the first.
function curvesOf(run, measure) {
  run.known = run.known || {};
  if (!run.known[measure]) {
    const { steps: packed, low, unit } = run.curves[measure],
      raw = decode(packed),
      steps = new Uint16Array(raw.buffer, 0, raw.length / 2),
      rounds = run.curves.up.length;
    run.known[measure] = run.clients.map((_, k) => {
      let last = null;
      return Array.from({ length: rounds }, (_, r) => {
        const value = steps[k * rounds + r];
        return (last = value === 65535 ? last : low + value * unit);
      });
    });
  }
  return run.known[measure];
}
const measureOf = (runs) => (runs.some((run) => run.curves.loss === undefined) ? "score" : state.measure);
function verticalOf(run, measure) {
  if (measure === "loss") return { format: lossLabel, least: 0 };
  const { label, most } = scoreOf(run);
  return { format: label, most, least: most && 0 };
}
const lossLabel = (value, step) => value.toFixed(step ? decimals(step) : 3);
const measureName = (run, measure) => (measure === "loss" ? "loss" : run.metric);
function measureChoice(id, runs) {
  if (runs.some((run) => run.curves.loss === undefined)) return null;
  const options = [
    ["score", runs[0].metric],
    ["loss", "loss"],
  ];
  const choose = (value) => {
    state.measure = value;
    render();
  };
  return choice(id, "vertical axis", options, state.measure, choose);
}

// One colour for each method wherever it appears on the page: its place among the compared methods.
function colourOfRun(run) {
  const place = doc.comparison ? doc.comparison.variants.findIndex((v) => v.runs.includes(doc.runs.indexOf(run))) : 0;
  return colour(Math.max(place, 0));
}
const swatch = (color) => el("span", { class: "swatch", "aria-hidden": "true", style: { background: color } });

// The chosen horizontal axis: rounds, bytes of all clients so far, or seconds so far.
function axisOf(run) {
  const rounds = run.curves.up.map((_, r) => r + 1);
  if (state.axis === "bytes") return running(run.curves.up.map((up, r) => up + run.curves.down[r]));
  if (state.axis === "seconds") return run.curves.seconds.includes(null) ? [] : running(run.curves.seconds);
  return rounds;
}
const AXES = {
  rounds: { label: "round", format: (v) => (Number.isInteger(v) ? String(v) : ""), tell: (v) => `after round ${v}` },
  bytes: { label: "sent by and to all clients", format: bytes },
  seconds: { label: "time", format: seconds },
};
function axisChoice(id) {
  const axes = [
    ["rounds", "rounds"],
    ["bytes", "bytes sent"],
    ["seconds", "time"],
  ];
  const choose = (value) => {
    state.axis = value;
    render();
  };
  return el(
    "div",
    { class: "row" },
    el("span", {}, "against"),
    choice(id, "horizontal axis", axes, state.axis, choose),
  );
}

function focused(run) {
  const [kind, number] = [state.focus[0], Number(state.focus.slice(2))];
  if (kind === "d" && number < run.domains.length)
    return { domain: number, client: null, members: run.clients.flatMap((c, k) => (c.domain === number ? [k] : [])) };
  if (kind === "c" && number < run.clients.length)
    return { domain: run.clients[number].domain, client: number, members: [number] };
  return { domain: null, client: null, members: run.clients.map((_, k) => k) };
}
const nameOf = (run, k) => run.clients[k].name;
const labelOf = (run, k) => {
  const tail = nameOf(run, k).match(/^client (\d+)$/);
  return tail ? tail[1] : nameOf(run, k);
};
