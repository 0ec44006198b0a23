// Inside the models: sparsity and confusion matrices. The configuration of the run.

function sparsityCard(run) {
  const { layers, rounds, kept } = run.mu,
    zero = (c, r) => (kept[c][r] === null ? null : 1 - kept[c][r]),
    picture = figure(
      `${run.method}-mu`,
      null,
      (width) =>
        heatMap(width, {
          label: "Share of mu that is zero, by layer and round",
          rows: layers.length,
          columns: rounds.length,
          rowNames: layers,
          columnNames: rounds.map(String),
          value: (r, c) => zero(c, r),
          tell: (r, c) => `${layers[r]}, after round ${rounds[c]}\n${percent(zero(c, r))} of mu is zero`,
          note: (r, c) => (zero(c, r) === null ? null : percent(zero(c, r), 0)),
          columnTitle: "after round",
          scale: ["0%", "100%"],
        }),
      () => 200,
    );
  const last = kept
    .at(-1)
    .filter((v) => v !== null)
    .map((v) => 1 - v);
  return card(
    "Sparsity of mu",
    soft(
      "The share of each layer's mu that is zero or below the threshold, so counts as zero in tests: mean over clients. " +
        `At the end ${percent(Math.min(...last))} to ${percent(Math.max(...last))} by layer.`,
    ),
    picture.node,
  );
}

function confusionCard(run) {
  const able = run.confusion.flatMap((counts, k) => (counts ? [k] : [])),
    { client, members } = focused(run);
  const first = able.find((k) => members.includes(k)) ?? able[0];
  const k = able.includes(client)
    ? client
    : able.includes(state.confusion) && members.includes(state.confusion)
      ? state.confusion
      : first;
  const names = run.clients[k].classes,
    size = names.length,
    counts = run.confusion[k],
    row = (r) => counts.slice(r * size, (r + 1) * size).reduce((a, b) => a + b, 0);
  const right = names.reduce((sum, _, c) => sum + counts[c * size + c], 0),
    reported = run.final.find((f) => f.client === k);
  const picture = figure(
    `${run.method}-confusion-${k + 1}`,
    null,
    (width) =>
      heatMap(width, {
        label: `Confusion matrix of ${nameOf(run, k)}`,
        rows: size,
        columns: size,
        rowNames: names,
        columnNames: names,
        rowTitle: "true class",
        columnTitle: "predicted class",
        most: 440,
        value: (r, c) => (row(r) ? counts[r * size + c] / row(r) : null),
        note: (r, c) => String(counts[r * size + c] || ""),
        tell: (r, c) => `${names[r]} classified as ${names[c]}\n${counts[r * size + c]} of ${row(r)}`,
        scale: ["0% of the true class", "100%"],
      }),
    (width) => Math.min(width, 520),
  );
  const odd =
    reported && reported.correct !== right
      ? soft(
          `These predictions were made in float32: ${right} of ${reported.total} are correct here, ` +
            `${reported.correct} in the run's own evaluation.`,
        )
      : null;
  return card(
    "Confusion matrix",
    el(
      "div",
      { class: "row" },
      selector(
        "confusion",
        "Client",
        [{ options: able.map((i) => [String(i), nameOf(run, i)]) }],
        String(k),
        (value) => {
          state.confusion = Number(value);
          if (focused(run).client !== null) state.focus = `c:${value}`;
          render();
        },
      ),
    ),
    soft("At the end of the run, in the client's own class names."),
    odd,
    picture.node,
  );
}

function classesCard(run) {
  const { rows, right, files } = run.classes,
    { client } = focused(run),
    shown = client === null ? rows : rows.filter((row) => row.client === nameOf(run, client)),
    text = (key) => ({ words: true, value: (row) => row[key], show: (row) => row[key] }),
    share = (key) => ({ value: (row) => row[key], show: (row) => (row[key] === null ? "" : percent(row[key], 0)) });
  const matched = rows.filter((row) => row.matched).length;
  return card(
    "Classes of different clients",
    soft(
      `${matched} of ${rows.length} classes were matched with classes of other clients in the last round. ` +
        "Other clients' classes are known by their numbers, counted from 1. " +
        "A matched class takes part of its row of the classifier from its peers." +
        (right ? ` ${right[0]} of ${right[1]} matches are right, by the names that this simulation knows.` : ""),
    ),
    sortableTable(
      "classes",
      [
        { title: "client", ...text("client") },
        { title: "class", value: (row) => row.number, show: (row) => String(row.number) },
        { title: "name", ...text("name") },
        { title: "matched with", ...text("matched"), show: (row) => row.matched || "no class" },
        { title: "confidence", ...share("confidence") },
        { title: "from peers", ...share("taken") },
      ],
      shown,
    ),
    fileButtons(files),
  );
}

function auditCard(run) {
  const { findings, shadows } = run.audit,
    text = (key) => ({ words: true, value: (row) => row[key], show: (row) => row[key] }),
    number = (key) => ({ value: (row) => row[key], show: (row) => row[key].toFixed(2) });
  const working = findings.filter((row) => row.low > row.chance).length;
  return card(
    "Attacks on what each party saw",
    soft(
      `${working} of ${findings.length} results are better than chance: their 95% interval lies above it. ` +
        `Membership was tested with ${plural(shadows, "repetition")} of the run with other training images.`,
    ),
    sortableTable(
      "audit",
      [
        { title: "seen by", ...text("view") },
        { title: "attack", ...text("attack") },
        { title: "measure", ...text("measure") },
        { title: "result", ...number("value") },
        { title: "from", ...number("low") },
        { title: "to", ...number("high") },
        { title: "by chance", ...number("chance") },
      ],
      findings,
    ),
  );
}

function settingsCard(run) {
  return card(
    "Configuration",
    run.command
      ? [soft("This command repeats the run:"), command("copy-command", run.command)]
      : soft(
          run.party
            ? `This is ${run.party}'s part of a federation between organisations: no single party can repeat it.`
            : "The configuration is missing or not valid, so there is no command that repeats this run.",
        ),
    run.config.length
      ? el(
          "details",
          { id: "settings" },
          el("summary", {}, "All settings"),
          facts(run.config),
          run.options.length ? [el("h3", {}, `Options of ${run.title}`), facts(run.options)] : null,
        )
      : null,
    run.environment.length ? el("details", {}, el("summary", {}, "Environment"), facts(run.environment)) : null,
  );
}
