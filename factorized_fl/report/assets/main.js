// The whole page and its live updates.

const page = document.getElementById("page");

function header() {
  const dark = () =>
    (document.documentElement.dataset.theme ||
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const theme = el(
    "button",
    {
      type: "button",
      id: "theme",
      on: {
        click: () => {
          document.documentElement.dataset.theme = dark() ? "light" : "dark";
          try {
            localStorage.setItem("ffl-theme", document.documentElement.dataset.theme);
          } catch {
            /* not on every file:// page */
          }
          render();
        },
      },
    },
    dark() ? "Light" : "Dark",
  );
  const live = doc.live
    ? el("span", { class: lost ? "live lost" : "live", id: "live" }, lost ? "ended" : "live")
    : null;
  return el("div", { class: "top" }, el("span", { class: "where" }, doc.title, live && " ", live), theme);
}

function notesCard(notes) {
  return notes.length
    ? el(
        "section",
        { class: "card notes", id: "notes" },
        el(
          "ul",
          {},
          notes.map((note) => el("li", {}, note)),
        ),
      )
    : null;
}

// A note that several runs share is shown once.
function gathered(runs) {
  const names = new Map();
  for (const run of runs) for (const note of run.notes) names.set(note, [...(names.get(note) || []), run.name]);
  const who = (list) => (runs.length === 1 ? "" : list.length > 3 ? `${list.length} runs: ` : `${list.join(", ")}: `);
  return [...names].map(([note, list]) => who(list) + note);
}

// The name that a run has in the comparison, with the settings that tell it from other runs of its method.
function runName(run) {
  const among = doc.comparison && doc.comparison.variants.find((v) => v.runs.includes(doc.runs.indexOf(run)));
  return among ? among.label : run.title;
}

function progressWords(run) {
  const rounds = run.complete ? plural(run.rounds, "round") : `round ${run.done} of ${run.rounds}`;
  return `${runName(run)}, seed ${run.seed}: ${rounds}, ${plural(run.clients.length, "client")}`;
}

function render() {
  const held = document.activeElement && document.activeElement.id,
    scroll = scrollY,
    open = [...page.querySelectorAll("details[open] > summary")].map((s) => s.textContent);
  plots.length = 0;
  hideTip();
  if (!doc.runs.length) {
    page.replaceChildren(
      header(),
      ...[notesCard(doc.notes)].filter(Boolean),
      card(null, el("h1", {}, "No results yet."), soft("This page updates as soon as the first run starts.")),
    );
    return;
  }
  if (state.run === null || state.run >= doc.runs.length) state.run = mostTelling();
  const run = doc.runs[state.run];
  const notes = [...doc.notes, ...gathered(doc.runs)];
  const picker = selector(
    "run",
    "Run",
    [{ options: doc.runs.map((one, i) => [String(i), `${runName(one)}, seed ${one.seed}`]) }],
    String(state.run),
    (value) => {
      state.run = Number(value);
      state.round = null;
      render();
    },
  );
  const parts = doc.comparison
    ? [...comparisonPart(), el("h2", { class: "part" }, "One run in detail"), el("div", { class: "row" }, picker)]
    : [];
  const runParts = runPart(run);
  const contents = contentsOf([...parts, ...runParts]);
  page.replaceChildren(
    ...[
      header(),
      contents,
      notesCard(notes),
      ...parts,
      ...runParts,
      el("p", { class: "soft" }, `${progressWords(run)}. factorized-fl ${doc.version}`),
    ].filter(Boolean),
  );
  for (const details of page.querySelectorAll("details"))
    details.open = open.includes(details.querySelector("summary").textContent);
  for (const plot of plots) plot.redraw();
  scrollTo(0, scroll);
  const again = held && document.getElementById(held);
  if (again) again.focus({ preventScroll: true });
}

// Links to the parts of the page, in their order.
function contentsOf(parts) {
  const names = { comparison: "Comparison", verdict: doc.comparison ? "One run" : "Verdict" };
  const entry = (part) =>
    el("li", {}, el("a", { href: `#${part.id}` }, names[part.id] || part.querySelector("h2").textContent));
  return el("nav", { class: "contents", "aria-label": "Contents" }, el("ul", {}, parts.filter((p) => p.id).map(entry)));
}

// Of several runs, the federated one with the best mean is shown first.
function mostTelling() {
  const score = (run) =>
    run.method === "stand-alone" ? -Infinity : (mean(run.final.map((f) => f.accuracy)) ?? -Number.MAX_VALUE);
  return doc.runs.reduce((best, run, i) => (score(run) > score(doc.runs[best]) ? i : best), 0);
}

function runPart(run) {
  const parts = [verdictCard(run)];
  if (run.curves.up.length && run.final.length) parts.push(scoreCard(run));
  if (run.final.length) parts.push(barsCard(run));
  parts.push(mixingCard(run));
  if (Object.keys(run.means).length) parts.push(similarityCard(run));
  parts.push(trafficCard(run));
  if (run.mu) parts.push(sparsityCard(run));
  if (run.confusion.some(Boolean)) parts.push(confusionCard(run));
  if (run.classes) parts.push(classesCard(run));
  if (run.audit) parts.push(auditCard(run));
  parts.push(settingsCard(run));
  return parts;
}

// -- live

let lost = false,
  tag = null;
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
    } else if (lost) {
      lost = false;
      render();
    }
  } catch {
    if (!lost) {
      lost = true;
      render();
    }
  }
  setTimeout(poll, 1000);
}

try {
  const kept = localStorage.getItem("ffl-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  /* none kept */
}
render();
let drawn = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== drawn) {
    drawn = innerWidth;
    for (const plot of plots) plot.redraw();
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
if (doc.live) setTimeout(poll, 1000);
