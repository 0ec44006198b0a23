// Several runs side by side.

function comparisonPart() {
  const { variants, headline, banner, downloads } = doc.comparison;
  const best = Math.max(...variants.map((v) => v.accuracy ?? -Infinity));
  const top = el(
    "section",
    { class: "card", id: "comparison" },
    el("h1", {}, headline),
    soft(doc.runs[0].facts.join(" · ")),
    doc.comparison.command ? command("copy-comparison", doc.comparison.command) : null,
    banner ? el("p", { class: "banner", id: "banner" }, banner) : null,
    comparisonTable(variants, best),
    fileButtons(downloads),
  );
  top.append(
    soft(
      `Over its control: the mean difference${scoreOf(doc.runs[0]).unit && " in points"} from the same method in ` +
        "which every client aggregates with itself alone, with half of its 95% interval. Helped and harmed: clients " +
        "whose difference is significant at 5% over all clients; one seed names none. Bytes and seconds are per run.",
    ),
  );
  return [top, differencesCard(variants), curvesCard(variants), paretoCard(variants)].filter(Boolean);
}

function comparisonTable(variants, best) {
  const run = doc.runs[0],
    { show, gap } = scoreOf(run);
  const number = (name, show) => ({
    title: name.title,
    value: (v) => v[name.key],
    show: (v) => (v[name.key] === null ? "–" : show(v[name.key], v)),
  });
  const gained = (title, key) => ({
    title,
    value: (v) => v[key] && v[key].mean,
    show: (v) => (v[key] ? `${gap(v[key].mean)} ${margin(run, (v[key].high - v[key].low) / 2)}` : "–"),
  });
  const columns = [
    {
      title: "method",
      words: true,
      value: (v) => v.label,
      show: (v) =>
        el(
          "span",
          { class: "named" },
          swatch(colour(variants.indexOf(v))),
          el("span", {}, v.label + (v.complete ? "" : " (not finished)")),
        ),
    },
    number({ title: run.metric, key: "accuracy" }, (x) => show(x, 2)),
    gained("over its control", "effect"),
    number({ title: "helped", key: "helped" }, (x) =>
      el("span", { class: x ? "helped" : null }, `${x ? "▲ " : ""}${x}`),
    ),
    number({ title: "harmed", key: "harmed" }, (x) =>
      el("span", { class: x ? "harmed" : null }, `${x ? "▼ " : ""}${x}`),
    ),
    gained("over Stand-Alone", "alone"),
    number({ title: "±\u00a0clients", key: "client_spread" }, (x) => show(x, 2).replace("%", "")),
    number({ title: "±\u00a0seeds", key: "seed_spread" }, (x) => show(x, 2).replace("%", "")),
    number({ title: "up", key: "up" }, bytes),
    number({ title: "down", key: "down" }, bytes),
    number({ title: "time", key: "seconds" }, seconds),
  ];
  return sortableTable("methods", columns, variants, { mark: (v) => (v.accuracy === best ? "best" : null) });
}

function differencesCard(variants) {
  const { differences, reference } = doc.comparison,
    able = Object.keys(differences);
  if (!able.length || variants.length < 2) return null;
  const first = able.includes("control") ? "control" : String(reference ?? able[0]);
  const base = able.includes(state.reference) ? state.reference : first;
  const baseName = base === "control" ? "its control" : variants[base].label;
  const rows = variants.flatMap((v, i) => {
    const found = differences[base][i];
    if (!found) return [];
    const run = doc.runs[v.runs[0]],
      { gap, unit } = scoreOf(run);
    const dots = found.clients.map(([k, value, half, word]) => ({
      value,
      margin: half,
      word,
      tell: `${v.label}, ${nameOf(run, k)}\n${gap(value)}${unit} ${margin(run, half)}: ${word}`,
    }));
    return [{ name: v.label, color: colour(i), dots, mean: found.mean, low: found.low, high: found.high }];
  });
  if (!rows.length) return null;
  const { gap, unit } = scoreOf(doc.runs[0]);
  const picture = figure(
    "paired-differences",
    "One mark per client, with its 95% interval; the vertical line and the band are the mean and its interval. " +
      "▲ helped, ▼ harmed; grey dots: undecided.",
    (width) =>
      strips(width, {
        label: `Difference of every client from ${baseName}`,
        rows,
        axis: `${unit ? "points of " : ""}${doc.runs[0].metric} against ${baseName}`,
        format: gap,
      }),
    (width) => rows.length * stripStep(width, rows) + 46,
  );
  return card(
    "Client by client",
    el(
      "div",
      { class: "row" },
      selector(
        "reference",
        "Difference from",
        [{ options: able.map((i) => [i, i === "control" ? "its control" : variants[i].label]) }],
        base,
        (value) => {
          state.reference = value;
          render();
        },
      ),
    ),
    picture.node,
  );
}

function curvesCard(variants) {
  const measure = measureOf(doc.runs),
    name = measureName(doc.runs[0], measure);
  const series = () =>
    variants.map((v, i) => {
      const runs = v.runs.map((r) => doc.runs[r]).filter((run) => run.curves.up.length),
        rounds = Math.min(...runs.map((run) => run.curves.up.length));
      const each = runs.map((run) => {
        const xs = axisOf(run);
        return {
          xs,
          means: xs.map((_, r) =>
            mean(
              curvesOf(run, measure)
                .map((known) => known[r])
                .filter((value) => value !== null),
            ),
          ),
        };
      });
      const places = Array.from({ length: Number.isFinite(rounds) ? rounds : 0 }, (_, r) => {
        const values = each.map((one) => one.means[r]).filter((value) => value !== null);
        return [mean(each.map((one) => one.xs[r])), mean(values), Math.min(...values), Math.max(...values)];
      }).filter(([x, y]) => Number.isFinite(x) && y !== null);
      return {
        name: v.label,
        color: colour(i),
        dash: dash(i),
        points: places.map(([x, y]) => [x, y]),
        band: runs.length > 1 ? places.map(([x, , low, high]) => [x, low, high]) : null,
      };
    });
  const picture = figure(
    `${slug(name)}-of-methods`,
    null,
    (width) =>
      lineChart(width, {
        label: `Mean ${name} of each method`,
        series: series(),
        x: AXES[state.axis],
        y: verticalOf(doc.runs[0], measure),
      }),
    () => 300,
  );
  return card(
    capital(doc.runs[0].metric),
    soft("Mean over clients and seeds; bands reach from the lowest to the highest seed."),
    el("div", { class: "row" }, measureChoice("measure-methods", doc.runs), axisChoice("axis-methods")),
    picture.node,
  );
}

function paretoCard(variants) {
  const { metric } = doc.runs[0],
    score = scoreOf(doc.runs[0]);
  const dots = (x, show) =>
    variants.flatMap((v, i) =>
      v.accuracy === null || x(v) === null
        ? []
        : [
            {
              name: v.label,
              x: x(v),
              y: v.accuracy,
              spread: v.seed_spread,
              color: colour(i),
              tell: `${v.label}\n${score.show(v.accuracy, 2)}, ${show(x(v))}`,
            },
          ],
    );
  const chart = (name, label, x, show, logarithmic) =>
    figure(
      name,
      null,
      (width) =>
        scatter(width, {
          label,
          dots: dots(x, show),
          x: { format: (v) => show(v).replace(".0 ", " "), label },
          y: { format: score.label },
          logarithmic,
        }),
      () => 320,
    ).node;
  return card(
    `${capital(metric)} against cost`,
    soft(
      "Up and left is better. The dashed line joins the methods that no other beats in both. Bars: spread over seeds.",
    ),
    el(
      "div",
      { class: "pair" },
      chart(
        `${slug(metric)}-against-bytes`,
        "bytes sent, both ways, one run",
        (v) => (v.up === null ? null : v.up + v.down),
        bytes,
        true,
      ),
      chart(`${slug(metric)}-against-time`, "time of one run", (v) => v.seconds, seconds, false),
    ),
  );
}
