// Several runs side by side, the page as a whole, and keeping it up to date.

function comparisonPart() {
  const { variants, reference, headline, downloads } = doc.comparison;
  const best = Math.max(...variants.map((v) => v.accuracy ?? -1));
  const top = el("section", { class: "card", id: "comparison" }, el("h1", {}, headline), comparisonTable(variants, best), fileButtons(downloads));
  if (reference !== null) top.append(soft("helped and harmed: clients whose difference from their own Stand-Alone model exceeds two standard errors of their tests. Bytes and seconds are those of one run."));
  return [top, differencesCard(variants), curvesCard(variants), paretoCard(variants)].filter(Boolean);
}

function comparisonTable(variants, best) {
  const number = (name, show) => ({ title: name.title, value: (v) => v[name.key], show: (v) => (v[name.key] === null ? "–" : show(v[name.key], v)) });
  const columns = [
    { title: "method", words: true, value: (v) => v.label, show: (v) => v.label + (v.complete ? "" : " (not finished)") },
    number({ title: "accuracy", key: "accuracy" }, (x) => percent(x, 2)),
    number({ title: "helped", key: "helped" }, (x) => el("span", { class: x ? "helped" : null }, `${x ? "▲ " : ""}${x}`)),
    number({ title: "harmed", key: "harmed" }, (x) => el("span", { class: x ? "harmed" : null }, `${x ? "▼ " : ""}${x}`)),
    number({ title: "beat Stand-Alone", key: "better" }, (x, v) => `${x} of ${v.compared}`),
    number({ title: "± clients", key: "client_spread" }, (x) => (100 * x).toFixed(2)),
    number({ title: "± seeds", key: "seed_spread" }, (x) => (100 * x).toFixed(2)),
    number({ title: "up", key: "up" }, bytes), number({ title: "down", key: "down" }, bytes), number({ title: "time", key: "seconds" }, seconds),
  ];
  return sortableTable("methods", columns, variants, { mark: (v) => (v.accuracy === best ? "best" : null) });
}

function differencesCard(variants) {
  const { differences, reference } = doc.comparison, able = Object.keys(differences);
  if (!able.length || variants.length < 2) return null;
  const base = able.includes(state.reference) ? state.reference : String(reference ?? able[0]);
  const rows = variants.flatMap((v, i) => {
    const found = differences[base][i];
    if (!found || !found.length) return [];
    const run = doc.runs[v.runs[0]];
    const dots = found.map(([k, value, error, word]) => ({ value, error, word, tell: `${v.label}, ${nameOf(run, k)}\n${points(value)} points ± ${(200 * error).toFixed(1)}: ${word}` }));
    return [{ name: v.label, dots, mean: mean(dots.map((d) => d.value)) }];
  });
  if (!rows.length) return null;
  const picture = figure("paired-differences", "One dot per client, with two standard errors; the upright line is the mean. ▲ green: surely better, ▼ orange: surely worse, grey: the tests cannot tell.", (width) => strips(width, { label: `Difference of every client from ${variants[base].label}`, rows, axis: `points of accuracy against ${variants[base].label}` }), () => rows.length * 46 + 46);
  return card("Client by client", el("div", { class: "row" }, selector("reference", "Difference from", [{ options: able.map((i) => [i, variants[i].label]) }], base, (value) => { state.reference = value; render(); })), picture.node);
}

function curvesCard(variants) {
  const series = () => variants.map((v, i) => {
    const runs = v.runs.map((r) => doc.runs[r]).filter((run) => run.curves.up.length), rounds = Math.min(...runs.map((run) => run.curves.up.length));
    const each = runs.map((run) => { const xs = axisOf(run); return { xs, means: xs.map((_, r) => mean(curvesOf(run).map((known) => known[r]).filter((value) => value !== null))) }; });
    const points = Array.from({ length: Number.isFinite(rounds) ? rounds : 0 }, (_, r) => [mean(each.map((one) => one.xs[r])), mean(each.map((one) => one.means[r]))]);
    return { name: v.label, color: colour(i), dash: dash(i), points: points.filter(([x, y]) => Number.isFinite(x) && y !== null) };
  });
  const picture = figure("accuracy-of-methods", null, (width) => lineChart(width, { label: "Mean accuracy of each method", series: series(), x: AXES[state.axis], y: { format: (v, full) => percent(v, full ? 1 : 0), least: 0, most: 1 } }), () => 300);
  return card("Accuracy", soft("Mean over clients and seeds."), axisChoice("axis-methods", () => { for (const plot of plots) plot.redraw(); }), picture.node);
}

function paretoCard(variants) {
  const dots = (x, show) => variants.flatMap((v, i) => (v.accuracy === null || x(v) === null ? [] : [{ name: v.label, x: x(v), y: v.accuracy, spread: v.seed_spread, color: colour(i), tell: `${v.label}\n${percent(v.accuracy, 2)}, ${show(x(v))}` }]));
  const chart = (name, label, x, show, logarithmic) => figure(name, null, (width) => scatter(width, { label, dots: dots(x, show), x: { format: (v) => show(v).replace(".0 ", " "), label }, y: { format: (v) => percent(v, 1) }, logarithmic }), () => 320).node;
  return card("What it costs", soft("Up and left is better. The dashed line joins the methods that no other beats in both. Bars: spread over seeds."),
    el("div", { class: "pair" }, chart("accuracy-against-bytes", "bytes sent, both ways, one run", (v) => (v.up === null ? null : v.up + v.down), bytes, true), chart("accuracy-against-time", "time of one run", (v) => v.seconds, seconds, false)));
}

// -- the page

const page = document.getElementById("page");

function header() {
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const theme = el("button", { type: "button", id: "theme", on: { click: () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("ffl-theme", document.documentElement.dataset.theme); } catch { /* not on every file:// page */ }
    render();
  } } }, dark() ? "Light" : "Dark");
  const live = doc.live ? el("span", { class: lost ? "live lost" : "live", id: "live" }, lost ? "ended" : "live") : null;
  return el("div", { class: "top" }, el("span", { class: "where" }, doc.title, live && " ", live), theme);
}

function notesCard(notes) {
  return notes.length ? el("section", { class: "card notes", id: "notes" }, el("ul", {}, notes.map((note) => el("li", {}, note)))) : null;
}

function progressWords(run) {
  return `${run.title}, seed ${run.seed}: ${run.complete ? plural(run.rounds, "round") : `round ${run.done} of ${run.rounds}`}, ${plural(run.clients.length, "client")}`;
}

function render() {
  const held = document.activeElement && document.activeElement.id, scroll = scrollY, open = [...page.querySelectorAll("details[open] > summary")].map((s) => s.textContent);
  plots.length = 0;
  hideTip();
  if (!doc.runs.length) {
    page.replaceChildren(header(), card(null, el("h1", {}, "Nothing here yet."), soft("This page fills as soon as the first run begins.")));
    return;
  }
  if (state.run === null || state.run >= doc.runs.length) state.run = mostTelling();
  const run = doc.runs[state.run], several = doc.runs.length > 1;
  const notes = [...doc.notes, ...doc.runs.flatMap((one) => one.notes.map((note) => (several ? `${one.name}: ${note}` : note)))];
  const picker = selector("run", "Run", [{ options: doc.runs.map((one, i) => [String(i), `${one.title}, seed ${one.seed}`]) }], String(state.run), (value) => { state.run = Number(value); state.round = null; render(); });
  const parts = doc.comparison ? [...comparisonPart(), el("h2", { class: "part" }, "One run in detail"), el("div", { class: "row" }, picker)] : [];
  const runParts = runPart(run);
  page.replaceChildren(...[header(), notesCard(notes), ...parts, ...runParts, el("p", { class: "soft" }, `${progressWords(run)}. factorized-fl ${doc.version}`)].filter(Boolean));
  for (const details of page.querySelectorAll("details")) details.open = open.includes(details.querySelector("summary").textContent);
  for (const plot of plots) plot.redraw();
  scrollTo(0, scroll);
  const again = held && document.getElementById(held);
  if (again) again.focus({ preventScroll: true });
}

// Of several runs, the federated one with the best mean says most.
function mostTelling() {
  const score = (run) => (run.method === "stand-alone" ? -1 : mean(run.final.map((f) => f.accuracy)) ?? -0.5);
  return doc.runs.reduce((best, run, i) => (score(run) > score(doc.runs[best]) ? i : best), 0);
}

// -- live

let lost = false, tag = null;
async function poll() {
  try {
    const answer = await fetch("document.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.ok) {
      const chosen = state.run === null ? null : doc.runs[state.run]?.name;
      doc = await answer.json();
      tag = answer.headers.get("ETag");
      const same = doc.runs.findIndex((run) => run.name === chosen);
      state.run = same < 0 ? null : same;
      lost = false;
      render();
    } else if (lost) { lost = false; render(); }
  } catch {
    if (!lost) { lost = true; render(); }
  }
  setTimeout(poll, 1000);
}

try { const kept = localStorage.getItem("ffl-theme"); if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept; } catch { /* none kept */ }
render();
let drawn = innerWidth;
addEventListener("resize", () => { if (innerWidth !== drawn) { drawn = innerWidth; for (const plot of plots) plot.redraw(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
if (doc.live) setTimeout(poll, 1000);
