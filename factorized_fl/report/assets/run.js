// One run: the verdict first, then how it came about.

function runPart(run) {
  const parts = [verdictCard(run)];
  if (run.curves.up.length) parts.push(accuracyCard(run));
  if (run.final.length) parts.push(barsCard(run));
  parts.push(mixingCard(run));
  if (Object.keys(run.means).length) parts.push(similarityCard(run));
  parts.push(trafficCard(run));
  if (run.mu) parts.push(sparsityCard(run));
  if (run.confusion.some(Boolean)) parts.push(confusionCard(run));
  parts.push(settingsCard(run));
  return parts;
}

// -- the verdict

function verdictCard(run) {
  const { client, members } = focused(run), judged = run.verdicts.filter((v) => members.includes(v.client));
  const card = el("section", { class: "card", id: "verdict" });
  card.append(doc.comparison ? el("h2", {}, run.headline) : el("h1", {}, run.headline));
  if (run.verdicts.length) card.append(countsBar(run.verdicts));
  if (run.baseline) card.append(soft(`${run.baseline} A client counts as helped or harmed when the difference exceeds two standard errors, which come from the number of its test images.`));
  if (!run.verdicts.length && run.baseline_command && run.method !== "stand-alone") {
    card.append(soft("There is no Stand-Alone run of these clients to compare with. This makes one; then write the report again with --baseline DIR:"), command("copy-baseline", run.baseline_command));
  }
  card.append(el("div", { class: "row" }, focusSelector(run)));
  if (client !== null) card.append(clientWords(run, client));
  if (judged.length) card.append(verdictTable(run, judged));
  else if (run.final.length) card.append(resultTable(run, run.final.filter((f) => members.includes(f.client))));
  card.append(fileButtons(run.downloads));
  return card;
}

function countsBar(verdicts) {
  const count = (word) => verdicts.filter((v) => v.word === word).length;
  const block = (word, words) => count(word) ? el("div", { class: WORDS[word][1], style: { flex: `${count(word)} 1 0` } }, `${WORDS[word][0]} ${count(word)} ${words}`) : null;
  return el("div", { class: "counts", role: "img", "aria-label": `${count("helped")} helped, ${count("no difference")} without a difference, ${count("harmed")} harmed` },
    block("helped", "helped"), block("no difference", "no difference"), block("harmed", "harmed"));
}

function focusSelector(run) {
  const domains = run.domains.map((name, d) => [`d:${d}`, name || "no domain"]);
  const groups = [{ options: [["all", `all ${run.clients.length} clients`]] },
    ...(domains.length > 1 ? [{ name: "domains", options: domains }] : []),
    { name: "clients", options: run.clients.map((c, k) => [`c:${k}`, domains.length > 1 ? `${c.name} (${run.domains[c.domain]})` : c.name]) }];
  return selector("focus", "Look at", groups, state.focus, (value) => { state.focus = value; render(); });
}

function clientWords(run, k) {
  const v = run.verdicts.find((one) => one.client === k), f = run.final.find((one) => one.client === k);
  const lines = [];
  if (v) lines.push(`${nameOf(run, k)}: ${percent(v.together)} right with federation, ${percent(v.alone)} alone. ${points(v.difference)} points ± ${(200 * v.error).toFixed(1)}: ${v.word === "no difference" ? "no difference that its test could show" : v.word}.`);
  else if (f) lines.push(`${nameOf(run, k)}: ${percent(f.accuracy)} right (${f.correct} of ${f.total}).`);
  const row = learnedFrom(run, k);
  if (row) lines.push(row);
  return el("p", { id: "client-words" }, lines.map((words) => [words, el("br")]));
}

function learnedFrom(run, k) {
  const mixing = run.matrices.mixing;
  if (!mixing) return null;
  const at = nearest(mixing.rounds), weights = matrixAt(run, "mixing", at);
  const sources = run.clients.map((_, j) => [j, weights(k, j)]).filter(([, w]) => w !== null && w > 0).sort((a, b) => b[1] - a[1]);
  if (!sources.length) return `In round ${mixing.rounds[at]} it did not take part.`;
  const told = sources.slice(0, 5).map(([j, w]) => `${j === k ? "itself" : nameOf(run, j)} ${percent(w, 0)}`);
  return `In round ${mixing.rounds[at]} it received ${told.join(", ")}${sources.length > 5 ? ` and ${sources.length - 5} more` : ""}.`;
}

function verdictTable(run, rows) {
  const most = Math.max(0.01, ...run.verdicts.map((v) => Math.abs(v.difference) + 2 * v.error));
  const columns = [
    { title: "client", words: true, value: (v) => nameOf(run, v.client), show: (v) => nameOf(run, v.client) },
    { title: "verdict", words: true, value: (v) => v.word, show: (v) => verdictWord(v.word) },
    { title: "difference, points", value: (v) => v.difference, show: (v) => `${points(v.difference)} ± ${(200 * v.error).toFixed(1)}` },
    { title: "harmed | helped", words: true, value: (v) => v.difference, show: (v) => differenceMark(v, most) },
    { title: "alone", value: (v) => v.alone, show: (v) => percent(v.alone) },
    { title: "with federation", value: (v) => v.together, show: (v) => percent(v.together) },
    { title: "domain", words: true, value: (v) => v.domain, show: (v) => v.domain },
  ];
  return sortableTable("verdicts", run.domains.length > 1 ? columns : columns.filter((c) => c.title !== "domain"), rows);
}

function differenceMark(v, most) {
  const svg = draw("svg", { viewBox: "0 0 140 16", width: 140, height: 16, "aria-hidden": "true" }), sx = (share) => 70 + (share / most) * 66;
  svg.append(line(70, 0, 70, 16, { class: "axis" }), line(sx(v.difference - 2 * v.error), 8, sx(v.difference + 2 * v.error), 8, { style: { stroke: WORDS[v.word][2], "stroke-opacity": 0.5, "stroke-width": 2 } }));
  svg.append(draw("circle", { cx: sx(v.difference), cy: 8, r: 4.5, style: { fill: WORDS[v.word][2] } }));
  return svg;
}

function resultTable(run, rows) {
  const domain = (f) => run.domains[run.clients[f.client].domain];
  return sortableTable("results", [
    { title: "client", words: true, value: (f) => nameOf(run, f.client), show: (f) => nameOf(run, f.client) },
    { title: "domain", words: true, value: domain, show: domain },
    { title: "accuracy", value: (f) => f.accuracy, show: (f) => percent(f.accuracy) },
    { title: "right of tested", value: (f) => f.correct, show: (f) => `${f.correct} of ${f.total}` },
  ], rows);
}

// -- accuracy

function accuracyCard(run) {
  const picture = figure(`${run.method}-accuracy`, null, (width) => lineChart(width, { label: "Accuracy of the clients' own models on their own test images", series: accuracySeries(run), x: AXES[state.axis], y: { format: (v, full) => percent(v, full ? 1 : 0), least: 0, most: 1 }, marks: aloneMarks(run) }));
  return card("Accuracy", soft("Every client's own model on its own test images. A client that was not tested in a round keeps its last result."), axisChoice("axis", picture.redraw), picture.node);
}

function meanSeries(known, xs, members) {
  return xs.flatMap((x, r) => { const m = mean(members.map((k) => known[k][r]).filter((v) => v !== null)); return m === null ? [] : [[x, m]]; });
}

function accuracySeries(run) {
  const known = curvesOf(run), xs = axisOf(run), { client, domain, members } = focused(run), everybody = run.clients.map((_, k) => k);
  const one = (k, more) => ({ name: nameOf(run, k), points: xs.flatMap((x, r) => (known[k][r] === null ? [] : [[x, known[k][r]]])), ...more });
  if (client !== null) return [one(client, { color: colour(0) }), { name: "mean of all clients", color: colour(6), dash: "7 3", points: meanSeries(known, xs, everybody) }];
  if (domain !== null) {
    const few = members.length <= 6;
    const mine = members.map((k, i) => one(k, few ? { color: colour(i) } : { color: colour(domain), thin: true }));
    return [...mine, { name: `mean of ${run.domains[domain]}`, color: few ? colour(6) : colour(domain), dash: few ? "7 3" : "", points: meanSeries(known, xs, members) }];
  }
  const band = xs.flatMap((x, r) => {
    const sorted = everybody.map((k) => known[k][r]).filter((v) => v !== null).sort((a, b) => a - b);
    return sorted.length ? [[x, quantile(sorted, 0.1), quantile(sorted, 0.9)]] : [];
  });
  const all = { name: "all clients (band: middle 80%)", color: colour(6), points: meanSeries(known, xs, everybody), band };
  const domains = run.domains.length > 1 ? run.domains.map((name, d) => ({ name: name || "no domain", color: colour(d), dash: dash(d) || "7 3", points: meanSeries(known, xs, run.clients.flatMap((c, k) => (c.domain === d ? [k] : []))) })) : [];
  return [all, ...domains];
}

function aloneMarks(run) {
  const { members } = focused(run), alone = run.verdicts.filter((v) => members.includes(v.client)).map((v) => v.alone);
  return alone.length ? [{ at: mean(alone), name: members.length === 1 ? "alone, at the end" : "mean alone, at the end" }] : [];
}

const MANY = 48;
function barsCard(run) {
  const alone = new Map(run.verdicts.map((v) => [v.client, v.alone])), last = new Map(run.final.map((f) => [f.client, f.accuracy]));
  const { domain } = focused(run), chosen = run.domains.map((_, d) => d).filter((d) => domain === null || d === domain);
  const series = [...(alone.size ? [{ name: "alone", color: "var(--c5)" }] : []), { name: alone.size ? "with federation" : run.title, color: "var(--c0)" }];
  const values = (ks) => [...(alone.size ? [mean(ks.map((k) => alone.get(k)).filter((v) => v !== undefined))] : []), mean(ks.map((k) => last.get(k)).filter((v) => v !== undefined))];
  const bar = (name, label, ks) => ({ name, label, values: values(ks), tell: [name, ...values(ks).map((v, i) => `${series[i].name}: ${percent(v)}`)].join("\n") });
  const members = (d) => run.clients.flatMap((c, k) => (c.domain === d ? [k] : []));
  const merged = domain === null && run.clients.length > MANY;
  const groups = merged
    ? [{ name: "mean of each domain", bars: chosen.map((d) => bar(`${run.domains[d] || "all"}: mean of ${plural(members(d).length, "client")}`, run.domains[d], members(d))) }]
    : chosen.map((d) => ({ name: run.domains[d], bars: members(d).map((k) => bar(nameOf(run, k), labelOf(run, k), [k])) }));
  const picture = figure(`${run.method}-clients`, null, (width) => barChart(width, { label: "Accuracy of every client, by domain", groups, series }));
  return card("Every client, by domain", merged ? soft("Means of the domains; choose a domain above to see its clients.") : null, picture.node);
}

// -- who learned from whom

const MATRICES = {
  mixing: ["weights: who received whose", "weight"], matching: ["similarity used for matching", "similarity"],
  u: ["similarity of u", "cosine of u"], v: ["similarity of v", "cosine of v"], matched: ["how often they were matched", "share of rounds"],
};
const matrixOf = (run, kind) => (kind === "matched" ? run.matched : run.matrices[kind]);
function nearest(rounds) {
  if (state.round === null) return rounds.length - 1;
  return rounds.reduce((best, round, i) => (Math.abs(round - state.round) < Math.abs(rounds[best] - state.round) ? i : best), 0);
}
function matrixAt(run, kind, index) {
  const matrix = matrixOf(run, kind), cells = (matrix.cells = matrix.cells || []), count = run.clients.length;
  cells[index] = cells[index] || decode(matrix.data[index]);
  return (row, column) => { const step = cells[index][row * count + column]; return step === 255 ? null : matrix.low + (step / 254) * (matrix.high - matrix.low); };
}

function mixingCard(run) {
  const kinds = Object.keys(MATRICES).filter((kind) => matrixOf(run, kind));
  if (!kinds.length) return card("Who learned from whom", soft(run.method === "stand-alone" ? "Nobody: Stand-Alone shares nothing." : run.done < 2 ? "The first round has nothing to mix; from the second on it is shown here." : "This run directory holds no mixing matrices."));
  if (!kinds.includes(state.matrix)) state.matrix = kinds[0];
  const slider = el("input", { type: "range", id: "round", min: 0, step: 1, "aria-label": "round" }), shown = el("output", { id: "round-shown", for: "round" });
  const map = figure(`${run.method}-who-from-whom`, null, (width) => mixingMap(run, width), (width) => Math.min(width, 520));
  const graph = run.matrices.mixing ? figure(`${run.method}-graph`, graphWords(run), (width) => mixingGraph(run, width), (width) => Math.min(width, 520)) : null;
  const prepare = () => {
    const rounds = state.matrix === "matched" ? [] : matrixOf(run, state.matrix).rounds;
    slider.max = Math.max(rounds.length - 1, 0);
    slider.disabled = rounds.length < 2;
    slider.value = rounds.length ? nearest(rounds) : 0;
    shown.textContent = rounds.length ? `round ${rounds[nearest(rounds)]}` : "all rounds";
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  slider.addEventListener("input", () => {
    const rounds = matrixOf(run, state.matrix).rounds, last = Number(slider.value) === rounds.length - 1;
    state.round = last ? null : rounds[Number(slider.value)];
    prepare();
    map.redraw();
    if (graph) graph.redraw();
    const words = document.getElementById("client-words");
    if (words) words.replaceWith(clientWords(run, focused(run).client));
  });
  const kind = selector("matrix", "Show", [{ options: kinds.map((one) => [one, MATRICES[one][0]]) }], state.matrix, (value) => { state.matrix = value; prepare(); map.redraw(); });
  prepare();
  return card("Who learned from whom", soft("Rows receive, columns give. Lines part the domains. Values are rounded to 1/254 of the scale."),
    el("div", { class: "row" }, kind, el("label", { class: "slide" }, "Round", slider, shown)), el("div", { class: graph ? "pair" : null }, map.node, graph && graph.node));
}

function mixingMap(run, width) {
  const matrix = matrixOf(run, state.matrix), at = state.matrix === "matched" ? 0 : nearest(matrix.rounds), cell = matrixAt(run, state.matrix, at);
  const count = run.clients.length, names = run.clients.map((_, k) => labelOf(run, k)), what = MATRICES[state.matrix][1];
  // A client's own weight outshines all others: the colours span what the others get.
  const [low, high] = state.matrix === "mixing" ? othersRange(run, matrix) : [matrix.low, matrix.high];
  const span = high - low || 1, show = (v) => (state.matrix === "mixing" || state.matrix === "matched" ? percent(v) : short(v));
  const groups = run.clients.flatMap((c, k) => (k && c.domain !== run.clients[k - 1].domain ? [k] : []));
  const tell = (r, c) => {
    const v = cell(r, c), who = r === c ? nameOf(run, r) : `${nameOf(run, r)} ← ${nameOf(run, c)}`;
    return `${who}\n${v === null ? (r === c && state.matrix !== "mixing" ? "itself" : "did not take part") : `${what} ${show(v)}`}`;
  };
  return heatMap(width, { label: `${MATRICES[state.matrix][0]}, a heat-map of ${count} by ${count} clients`, rows: count, columns: count, rowNames: names, columnNames: names, groups, tell,
    value: (r, c) => { const v = cell(r, c); return v === null ? null : (v - low) / span; }, rowTitle: "receives", columnTitle: `gives (${what})`, scale: [show(low), show(high) + (high < matrix.high ? " or more" : "")] });
}

function othersRange(run, matrix) {
  const count = run.clients.length;
  let least = Infinity, most = 0;
  matrix.data.forEach((_, i) => {
    const cell = matrixAt(run, "mixing", i);
    for (let r = 0; r < count; r++) for (let c = 0; c < count; c++) {
      const v = r === c ? null : cell(r, c);
      if (v !== null) { least = Math.min(least, v); most = Math.max(most, v); }
    }
  });
  return most > least ? [least, most] : [matrix.low, matrix.high];
}

const STRONGEST = 3;
const graphWords = (run) => `Arrows point to who received; colours are domains${run.clients.length > STRONGEST + 1 ? `. Each client's ${STRONGEST} strongest sources besides itself` : ""}. Choose a client to see only its own.`;
function mixingGraph(run, width) {
  const at = nearest(run.matrices.mixing.rounds), weight = matrixAt(run, "mixing", at), { client } = focused(run), edges = [];
  run.clients.forEach((_, k) => {
    const sources = run.clients.map((_, j) => [j, weight(k, j)]).filter(([j, w]) => j !== k && w > 0).sort((a, b) => b[1] - a[1]);
    for (const [j, w] of sources.slice(0, k === client ? 12 : STRONGEST)) edges.push({ from: j, to: k, share: w });
  });
  const most = Math.max(1e-9, ...edges.map((edge) => edge.share));
  for (const edge of edges) edge.share /= most;
  const nodes = run.clients.map((c, k) => ({ label: labelOf(run, k).slice(0, 4), color: colour(c.domain), tell: `${c.name}${run.domains.length > 1 ? `, ${run.domains[c.domain]}` : ""}\n${learnedFrom(run, k) || ""}` }));
  return network(width, { label: `Graph of who received whose in round ${run.matrices.mixing.rounds[at]}`, nodes, edges, chosen: client, choose: (k) => { state.focus = state.focus === `c:${k}` ? "all" : `c:${k}`; render(); } });
}

function similarityCard(run) {
  const names = { u: "u", v: "v", matching: "used for matching" }, alone = run.domains.length < 2;
  const series = Object.keys(names).flatMap((kind, i) => {
    if (!run.means[kind]) return [];
    const [rounds, within, across] = run.means[kind], line = (values) => rounds.flatMap((round, r) => (values[r] === null ? [] : [[round, values[r]]]));
    return [{ name: `${names[kind]}, ${alone ? "all pairs" : "same domain"}`, color: colour(i), points: line(within) }, ...(alone ? [] : [{ name: `${names[kind]}, other domains`, color: colour(i), dash: "3 3", points: line(across) }])];
  });
  const picture = figure(`${run.method}-similarity`, null, (width) => lineChart(width, { label: "Mean similarity of clients over rounds", series, x: AXES.rounds, y: { format: (v) => v.toFixed(2), least: -1, most: 1 } }));
  return card("How alike the clients are", soft(run.means.u ? "Mean cosine over pairs of clients: u and v of the layer before the classifier after each round, and what the server matched by at the beginning of the round." : "Mean over pairs of clients of what the server matched by at the beginning of the round."), picture.node);
}

// -- communication, sparsity

const ROLES = { norm: "normalisation", bias: "biases", body: "dense weights", fingerprint: "matching vector", headers: "file headers" };
function trafficCard(run) {
  const { up, down, formula_a_bytes: a, formula_b_bytes: b, formula_up, formula_down, roles } = run.traffic;
  if (!up && !down) return card("Communication", soft(run.method === "stand-alone" ? "None." : "No bytes were sent yet."));
  const order = [0, 1, 2, 4, 3, 5];
  const parts = (way) => (roles.length ? roles.map((role, i) => ({ name: ROLES[role.role] || role.role, color: role.role === "headers" ? colour(6) : colour(order[i % order.length]), value: role[way] })) : [{ name: "all", color: colour(0), value: way === "up" ? up : down }]);
  const bars = [["up", "Up", up, formula_up], ["down", "Down", down, formula_down]].map(([way, words, total, formula]) => ({ name: `${words}: ${bytes(total)} measured${formula === null ? "" : `, ${bytes(formula)} by formula`}`, parts: parts(way), outline: formula }));
  const picture = figure(`${run.method}-communication`, "Up: from the clients to the server. Filled: bytes as serialised, all clients and rounds. Outlined: the paper's formula.", (width) => stackedBars(width, { label: "Bytes by role and direction", bars, format: bytes }), () => 160);
  const rows = roles.map((role) => [ROLES[role.role] || role.role, role.up, role.down]);
  const table = el("div", { class: "wide" }, el("table", { id: "traffic" }, el("thead", {}, el("tr", {}, ["what", "up", "down"].map((word, i) => el("th", { class: i ? null : "words" }, word)))),
    el("tbody", {}, [...rows, ["together", up, down]].map(([name, ...counts]) => el("tr", { class: name === "together" ? "best" : null }, el("td", { class: "words" }, name), counts.map((count) => el("td", {}, bytes(count))))))));
  return card("Communication", picture.node, table, soft(`The paper's formula in total: ${bytes(b)}, or ${bytes(a)} if the first download, which nothing preceded, is left out.`));
}

function sparsityCard(run) {
  const { layers, rounds, kept } = run.mu, picture = figure(`${run.method}-mu`, null, (width) => heatMap(width, { label: "Share of mu that counts, by layer and round", rows: layers.length, columns: rounds.length, rowNames: layers, columnNames: rounds.map(String),
    value: (r, c) => kept[c][r], tell: (r, c) => `${layers[r]}, after round ${rounds[c]}\n${percent(kept[c][r])} of mu counts`, note: (r, c) => (kept[c][r] === null ? null : percent(kept[c][r], 0)), columnTitle: "after round", scale: ["0%", "100%"] }), () => 200);
  const last = kept.at(-1).filter((v) => v !== null);
  return card("Sparsity of mu", soft(`The share of each layer's mu that is not zero and reaches the threshold at test time, mean over clients. At the end ${percent(Math.min(...last))} to ${percent(Math.max(...last))} by layer.`), picture.node);
}

// -- confusion

function confusionCard(run) {
  const able = run.confusion.flatMap((counts, k) => (counts ? [k] : [])), { client, members } = focused(run);
  const first = able.find((k) => members.includes(k)) ?? able[0];
  const k = able.includes(client) ? client : able.includes(state.confusion) && members.includes(state.confusion) ? state.confusion : first;
  const names = run.clients[k].classes, size = names.length, counts = run.confusion[k], row = (r) => counts.slice(r * size, (r + 1) * size).reduce((a, b) => a + b, 0);
  const right = names.reduce((sum, _, c) => sum + counts[c * size + c], 0), reported = run.final.find((f) => f.client === k);
  const picture = figure(`${run.method}-confusion-${k + 1}`, null, (width) => heatMap(width, { label: `Confusion matrix of ${nameOf(run, k)}`, rows: size, columns: size, rowNames: names, columnNames: names, rowTitle: "true class", columnTitle: "predicted class", most: 440,
    value: (r, c) => (row(r) ? counts[r * size + c] / row(r) : null), note: (r, c) => String(counts[r * size + c] || ""), tell: (r, c) => `${names[r]} taken for ${names[c]}\n${counts[r * size + c]} of ${row(r)}`, scale: ["0% of the true class", "100%"] }), (width) => Math.min(width, 520));
  const odd = reported && reported.correct !== right ? soft(`These predictions were made in float32: ${right} of ${reported.total} are right here, ${reported.correct} in the run's own evaluation.`) : null;
  return card("What is taken for what", el("div", { class: "row" }, selector("confusion", "Client", [{ options: able.map((i) => [String(i), nameOf(run, i)]) }], String(k), (value) => {
    state.confusion = Number(value);
    if (focused(run).client !== null) state.focus = `c:${value}`;
    render();
  })), soft("At the end of the run, in the client's own class names."), odd, picture.node);
}

// -- configuration

function settingsCard(run) {
  return card("Configuration", run.command ? [soft("This makes the run again:"), command("copy-command", run.command)] : soft("The configuration is missing or not valid, so there is no command that makes this run again."),
    run.config.length ? el("details", { id: "settings" }, el("summary", {}, "All settings"), facts(run.config), run.options.length ? [el("h3", {}, `Options of ${run.title}`), facts(run.options)] : null) : null,
    run.environment.length ? el("details", {}, el("summary", {}, "Environment"), facts(run.environment)) : null);
}
