// Whether federation helped: in words, as counts, and for each client.

function verdictCard(run) {
  const { client, members } = focused(run),
    judged = run.verdicts.filter((v) => members.includes(v.client));
  const card = el("section", { class: "card", id: "verdict" });
  card.append(doc.comparison ? el("h2", {}, run.headline) : el("h1", {}, run.headline));
  card.append(factsLine(run));
  if (run.command && !doc.comparison) card.append(command("copy-top", run.command));
  if (run.verdicts.length) card.append(countsBar(run.verdicts));
  if (run.baseline)
    card.append(
      soft(
        `${run.baseline} Intervals (±) are for 95%` +
          (run.metric === "accuracy" ? " and count the test images on which the two models differ. " : ". ") +
          "One seed names no client helped or harmed: compare several with ffl compare.",
      ),
    );
  if (!run.verdicts.length && run.baseline_command && run.method !== "stand-alone") {
    card.append(
      soft(
        "There is no control of this run, in which every client aggregates with itself alone. " +
          "This command makes one; then write the report again with --baseline DIR:",
      ),
      command("copy-baseline", run.baseline_command),
    );
  }
  card.append(el("div", { class: "row" }, focusSelector(run)));
  if (client !== null) card.append(clientWords(run, client));
  if (judged.length) card.append(verdictTable(run, judged));
  else if (run.final.length)
    card.append(
      resultTable(
        run,
        run.final.filter((f) => members.includes(f.client)),
      ),
    );
  card.append(fileButtons(run.downloads));
  return card;
}

// When, with what data and with what model.
const factsLine = (run) => soft(`${runName(run)}, ${run.facts.join(" · ")}`);

function countsBar(verdicts) {
  const count = (word) => verdicts.filter((v) => v.word === word).length;
  const block = (word, words) =>
    count(word)
      ? el(
          "div",
          { class: WORDS[word][1], style: { flex: `${count(word)} 1 0` } },
          `${WORDS[word][0]} ${count(word)} ${words}`,
        )
      : null;
  return el(
    "div",
    {
      class: "counts",
      role: "img",
      "aria-label": ["helped", "undecided", "harmed"].map((word) => `${word}: ${count(word)}`).join(", "),
    },
    block("helped", "helped"),
    block("undecided", "undecided"),
    block("harmed", "harmed"),
  );
}

function focusSelector(run) {
  const domains = run.domains.map((name, d) => [`d:${d}`, name || "no domain"]);
  const groups = [
    { options: [["all", `all ${run.clients.length} clients`]] },
    ...(domains.length > 1 ? [{ name: "domains", options: domains }] : []),
    {
      name: "clients",
      options: run.clients.map((c, k) => [
        `c:${k}`,
        domains.length > 1 ? `${c.name} (${run.domains[c.domain]})` : c.name,
      ]),
    },
  ];
  return selector("focus", "Show", groups, state.focus, (value) => {
    state.focus = value;
    render();
  });
}

function clientWords(run, k) {
  const v = run.verdicts.find((one) => one.client === k),
    f = run.final.find((one) => one.client === k);
  const { show, gap, unit } = scoreOf(run),
    lines = [];
  if (v)
    lines.push(
      `${nameOf(run, k)}: ${show(v.accuracy)} ${run.metric} with federation, ${show(v.reference)} without. ` +
        `${gap(v.difference)}${unit} ${margin(run, v.margin)}: ${v.word}.`,
    );
  else if (f) lines.push(`${nameOf(run, k)}: ${show(f.accuracy)} ${run.metric} (${countOf(f)}).`);
  const row = learnedFrom(run, k);
  if (row) lines.push(row);
  return el(
    "p",
    { id: "client-words" },
    lines.map((words) => [words, el("br")]),
  );
}

function learnedFrom(run, k) {
  const mixing = run.matrices.mixing;
  if (!mixing) return null;
  const at = nearest(mixing.rounds),
    weights = matrixAt(run, "mixing", at);
  const sources = run.clients
    .map((_, j) => [j, weights(k, j)])
    .filter(([, w]) => w !== null && w > 0)
    .sort((a, b) => b[1] - a[1]);
  if (!sources.length) return `In round ${mixing.rounds[at]} it did not take part.`;
  const told = sources.slice(0, 5).map(([j, w]) => `${j === k ? "itself" : nameOf(run, j)} ${percent(w, 0)}`);
  const more = sources.length > 5 ? ` and ${sources.length - 5} more` : "";
  return `In round ${mixing.rounds[at]} it received ${told.join(", ")}${more}.`;
}

function verdictTable(run, rows) {
  const { show, gap, unit } = scoreOf(run),
    most = Math.max(0.01, ...run.verdicts.map((v) => Math.abs(v.difference) + v.margin));
  const columns = [
    { title: "client", words: true, value: (v) => nameOf(run, v.client), show: (v) => nameOf(run, v.client) },
    { title: "verdict", words: true, value: (v) => v.word, show: (v) => verdictWord(v.word) },
    {
      title: unit ? `difference,${unit}` : "difference",
      value: (v) => v.difference,
      show: (v) => `${gap(v.difference)} ${margin(run, v.margin)}`,
    },
    { title: "harmed | helped", words: true, value: (v) => v.difference, show: (v) => differenceMark(v, most) },
    { title: "without", value: (v) => v.reference, show: (v) => show(v.reference) },
    { title: "with federation", value: (v) => v.accuracy, show: (v) => show(v.accuracy) },
    { title: "domain", words: true, value: (v) => v.domain, show: (v) => v.domain },
  ];
  return sortableTable(
    "verdicts",
    run.domains.length > 1 ? columns : columns.filter((c) => c.title !== "domain"),
    rows,
  );
}

function differenceMark(v, most) {
  const svg = draw("svg", { viewBox: "0 0 140 16", width: 140, height: 16, "aria-hidden": "true" }),
    sx = (share) => 70 + (share / most) * 66;
  svg.append(
    line(70, 0, 70, 16, { class: "axis" }),
    line(sx(v.difference - v.margin), 8, sx(v.difference + v.margin), 8, {
      style: { stroke: WORDS[v.word][2], "stroke-opacity": 0.5, "stroke-width": 2 },
    }),
  );
  svg.append(verdictMark(sx(v.difference), 8, 4.5, v.word));
  return svg;
}

const countOf = (f) => (f.correct === null ? plural(f.total, "example") : `${f.correct} of ${f.total}`);

function resultTable(run, rows) {
  const domain = (f) => run.domains[run.clients[f.client].domain];
  return sortableTable(
    "results",
    [
      { title: "client", words: true, value: (f) => nameOf(run, f.client), show: (f) => nameOf(run, f.client) },
      { title: "domain", words: true, value: domain, show: domain },
      { title: run.metric, value: (f) => f.accuracy, show: (f) => scoreOf(run).show(f.accuracy) },
      {
        title: run.final.some((f) => f.correct === null) ? "tested" : "correct of tested",
        value: (f) => f.correct ?? f.total,
        show: countOf,
      },
    ],
    rows,
  );
}
