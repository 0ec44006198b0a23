// The live page of a party of a federation between organisations: what it may see, and nothing else.

const page = document.getElementById("page");
let lost = false,
  tag = null;

function header() {
  const words = lost ? "no answer: trying again" : doc.ended ? "ended" : doc.current ? "live" : "does not run";
  const bad = lost || !(doc.ended || doc.current);
  return el(
    "div",
    { class: "top" },
    el("span", { class: "where" }, doc.title),
    el("span", { class: bad ? "live lost" : "live", id: "live", role: "status" }, words),
  );
}

const names = (list) => (list.length < 2 ? list.join("") : `${list.slice(0, -1).join(", ")} and ${list.at(-1)}`);

function headline() {
  const waited = doc.sites.filter((site) => site.waited_for).map((site) => site.name);
  const rounds = plural(doc.rounds, "round");
  const round = doc.ended ? `All ${rounds} done` : `${doc.done} of ${rounds} done`;
  if (doc.ended) return `${round}.`;
  if (!doc.current) return `${round}: ${doc.runs ? "no news" : "it does not run"}.`;
  return waited.length ? `${round}: waiting for ${names(waited)}.` : `${round}: ${doc.note}.`;
}

// Epsilon, and whatever else the party's status says of its privacy budget.
function privacyRows(privacy) {
  if (privacy === null || privacy === undefined) return [];
  if (typeof privacy !== "object") return [["Privacy budget", String(privacy)]];
  return Object.entries(privacy).map(([name, value]) => [
    `Privacy: ${name}`,
    typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value),
  ]);
}

function overview() {
  const connected = doc.sites.filter((site) => site.connected).length;
  const rows = [["Method", doc.method]];
  if (doc.coordinator) rows.push(["Sites connected", `${connected} of ${doc.sites.length}`]);
  rows.push([doc.coordinator ? "Sites sent" : "Sent", bytes(doc.up_bytes)]);
  rows.push([doc.coordinator ? "Sites received" : "Received", bytes(doc.down_bytes)]);
  if (doc.seconds_left) rows.push(["Time left", `about ${seconds(doc.seconds_left)}`]);
  if (!doc.coordinator) rows.push(["Effective peers", doc.peers === null ? "–" : doc.peers.toFixed(1)]);
  if (doc.shared) rows.push(["Shared", doc.shared]);
  rows.push(...privacyRows(doc.privacy));
  const bar = el("progress", { max: doc.rounds || 1, value: doc.done, "aria-label": "Rounds done", id: "rounds" });
  return el("section", { class: "card", id: "overview" }, el("h1", {}, headline()), bar, facts(rows));
}

function sitesCard() {
  if (!doc.sites.length) return null;
  const columns = [
    { title: "Site", words: true, value: (s) => s.name, show: (s) => s.name },
    {
      title: "Connected",
      words: true,
      value: (s) => Number(s.connected),
      show: (s) => (s.connected ? "● yes" : "○ no"),
    },
    { title: "Doing", words: true, value: (s) => s.doing, show: (s) => s.doing },
    { title: "Images", value: (s) => s.images, show: (s) => (s.images ? s.images.toLocaleString("en") : "–") },
    { title: "Peers", value: (s) => s.peers, show: (s) => (s.peers === null ? "–" : s.peers.toFixed(1)) },
    { title: "Accuracy", value: (s) => s.accuracy, show: (s) => percent(s.accuracy) },
    { title: "Sent", value: (s) => s.up_bytes, show: (s) => bytes(s.up_bytes) },
    { title: "Received", value: (s) => s.down_bytes, show: (s) => bytes(s.down_bytes) },
    { title: "Refused", value: (s) => s.refused || 0, show: (s) => String(s.refused || 0) },
  ];
  return card("Sites", sortableTable("sites-table", columns, doc.sites));
}

function accuracyFigure() {
  const series = Object.entries(doc.accuracy).map(([name, points], i) => ({
    name,
    color: colour(i),
    dash: dash(i),
    points,
  }));
  if (!series.length) return null;
  const places = [...new Set(series.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b);
  const step = Math.ceil(places.length / 8);
  const round = {
    ticks: places.filter((_, i) => i % step === 0),
    format: String,
    tell: (value) => `round ${value}`,
    label: "round",
  };
  const { node } = figure(
    "accuracy",
    doc.coordinator ? "As far as sites report it." : "On your own test images.",
    (width) =>
      lineChart(width, {
        label: "Accuracy by round",
        series,
        x: round,
        y: { format: percentLabel, least: 0, most: 1 },
        height: 260,
      }),
    () => 260,
  );
  return card("Accuracy by round", node);
}

function interval([value, low, high]) {
  if (value === null) return "undefined";
  return `${value.toFixed(3)} (${low === null ? "no interval" : `${low.toFixed(3)} to ${high.toFixed(3)}`})`;
}

// The metrics that sites chose to show, with the site that reported each. Classes have numbers, as names stay there.
function reportedCard() {
  const rows = doc.reported.flatMap(({ site, metrics }) =>
    Object.entries(metrics).flatMap(([metric, found]) => {
      if (metric === "confusion") return [];
      const each = typeof found[0] === "object" && found[0] !== null;
      return (each ? found : [found]).map((one, i) => ({ site, metric, of: each ? `class ${i + 1}` : "all", one }));
    }),
  );
  if (!rows.length) return null;
  const columns = [
    { title: "Site", words: true, value: (r) => r.site, show: (r) => r.site },
    { title: "Metric", words: true, value: (r) => r.metric, show: (r) => r.metric.replaceAll("-", " ") },
    { title: "Of", words: true, value: (r) => r.of, show: (r) => r.of },
    { title: "Value (95% interval)", value: (r) => r.one[0], show: (r) => interval(r.one) },
    { title: "Cases", value: (r) => r.one[3], show: (r) => String(r.one[3]) },
  ];
  return card("Metrics that sites report", sortableTable("reported", columns, rows));
}

function roundsCard() {
  if (!doc.timing.length) return null;
  const rows = doc.timing.slice(-50).reverse();
  const share = (row) => Object.entries(row.from_others).map(([site, part]) => `${site} ${percent(part)}`);
  const columns = [
    { title: "Round", words: true, value: (r) => r.round, show: (r) => String(r.round) },
    { title: "Time", value: (r) => r.seconds, show: (r) => seconds(r.seconds) },
    {
      title: "Received from others",
      words: true,
      value: (r) => share(r).join(", "),
      show: (r) => (doc.coordinator ? share(r).join(", ") : share(r).join(", ").replace(`${doc.party} `, "")) || "–",
    },
  ];
  return card("Rounds", sortableTable("rounds-table", columns, rows));
}

const journalCard = () =>
  doc.journal.length > 0 && card("Journal", el("pre", { id: "journal-lines" }, [...doc.journal].reverse().join("\n")));

function render() {
  const scroll = scrollY,
    held = document.activeElement && document.activeElement.id;
  plots.length = 0;
  hideTip();
  const parts = [header(), overview(), sitesCard(), accuracyFigure(), reportedCard(), roundsCard(), journalCard()];
  page.replaceChildren(...parts.filter(Boolean));
  for (const plot of plots) plot.redraw();
  scrollTo(0, scroll);
  const again = held && document.getElementById(held);
  if (again) again.focus({ preventScroll: true });
}

async function poll() {
  try {
    const answer = await fetch("document.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.ok) {
      doc = await answer.json();
      tag = answer.headers.get("ETag");
    }
    if (answer.ok || lost) {
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

render();
let drawn = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== drawn) {
    drawn = innerWidth;
    for (const plot of plots) plot.redraw();
  }
});
setTimeout(poll, 1000);
