// Aggregation weights, similarity of clients, and communication.

const MATRICES = {
  mixing: ["aggregation weights", "weight"],
  matching: ["similarity used for matching", "similarity"],
  u: ["similarity of u", "cosine of u"],
  v: ["similarity of v", "cosine of v"],
  matched: ["frequency of matches", "share of rounds"],
};
const matrixOf = (run, kind) => (kind === "matched" ? run.matched : run.matrices[kind]);
function nearest(rounds) {
  if (state.round === null) return rounds.length - 1;
  return rounds.reduce(
    (best, round, i) => (Math.abs(round - state.round) < Math.abs(rounds[best] - state.round) ? i : best),
    0,
  );
}
function matrixAt(run, kind, index) {
  const matrix = matrixOf(run, kind),
    cells = (matrix.cells = matrix.cells || []),
    count = run.clients.length;
  cells[index] = cells[index] || decode(matrix.data[index]);
  return (row, column) => {
    const step = cells[index][row * count + column];
    return step === 255 ? null : matrix.low + (step / 254) * (matrix.high - matrix.low);
  };
}

function mixingCard(run) {
  const kinds = Object.keys(MATRICES).filter((kind) => matrixOf(run, kind));
  if (!kinds.length)
    return card(
      "Mixing weights between clients",
      soft(
        run.method === "stand-alone"
          ? "No client from another: Stand-Alone shares nothing."
          : run.done < 2
            ? "The first round has nothing to aggregate; the second and later rounds appear here."
            : run.party
              ? "This site received aggregates made by the coordinator: only the coordinator knows their sources. " +
                run.peers
              : "This run directory holds no aggregation matrices.",
      ),
      run.privacy ? soft(run.privacy) : null,
    );
  if (!kinds.includes(state.matrix)) state.matrix = kinds[0];
  const slider = el("input", { type: "range", id: "round", min: 0, step: 1, "aria-label": "round" }),
    shown = el("output", { id: "round-shown", for: "round" });
  const map = figure(
    `${run.method}-mixing-weights`,
    null,
    (width) => mixingMap(run, width),
    (width) => Math.min(width, 520),
  );
  const graph = run.matrices.mixing
    ? figure(
        `${run.method}-graph`,
        graphWords(run),
        (width) => mixingGraph(run, width),
        (width) => Math.min(width, 520),
      )
    : null;
  const prepare = () => {
    const rounds = state.matrix === "matched" ? [] : matrixOf(run, state.matrix).rounds;
    slider.max = Math.max(rounds.length - 1, 0);
    slider.disabled = rounds.length < 2;
    slider.value = rounds.length ? nearest(rounds) : 0;
    shown.textContent = rounds.length ? `round ${rounds[nearest(rounds)]}` : "all rounds";
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  slider.addEventListener("input", () => {
    const rounds = matrixOf(run, state.matrix).rounds,
      last = Number(slider.value) === rounds.length - 1;
    state.round = last ? null : rounds[Number(slider.value)];
    prepare();
    map.redraw();
    if (graph) graph.redraw();
    const words = document.getElementById("client-words");
    if (words) words.replaceWith(clientWords(run, focused(run).client));
  });
  const kind = selector(
    "matrix",
    "Show",
    [{ options: kinds.map((one) => [one, MATRICES[one][0]]) }],
    state.matrix,
    (value) => {
      state.matrix = value;
      prepare();
      map.redraw();
    },
  );
  prepare();
  return card(
    "Mixing weights between clients",
    soft("Rows receive, columns give. Lines separate domains. Values are rounded to 1/254 of the scale."),
    run.peers ? soft(run.peers) : null,
    run.privacy ? soft(run.privacy) : null,
    el("div", { class: "row" }, kind, el("label", { class: "slide" }, "Round", slider, shown)),
    el("div", { class: graph ? "pair" : null }, map.node, graph && graph.node),
  );
}

function mixingMap(run, width) {
  const matrix = matrixOf(run, state.matrix),
    at = state.matrix === "matched" ? 0 : nearest(matrix.rounds),
    cell = matrixAt(run, state.matrix, at);
  const count = run.clients.length,
    names = run.clients.map((_, k) => labelOf(run, k)),
    what = MATRICES[state.matrix][1];
  // A client's own weight is far above all others, so the colours span the weights of the others.
  const [low, high] = state.matrix === "mixing" ? othersRange(run, matrix) : [matrix.low, matrix.high];
  const span = high - low || 1,
    show = (v) => (state.matrix === "mixing" || state.matrix === "matched" ? percent(v) : short(v));
  const groups = run.clients.flatMap((c, k) => (k && c.domain !== run.clients[k - 1].domain ? [k] : []));
  const tell = (r, c) => {
    const v = cell(r, c),
      who = r === c ? nameOf(run, r) : `${nameOf(run, r)} ← ${nameOf(run, c)}`;
    const nothing = r === c && state.matrix !== "mixing" ? "itself" : "did not take part";
    return `${who}\n${v === null ? nothing : `${what} ${show(v)}`}`;
  };
  return heatMap(width, {
    label: `${MATRICES[state.matrix][0]}, a heat-map of ${count} by ${count} clients`,
    rows: count,
    columns: count,
    rowNames: names,
    columnNames: names,
    groups,
    tell,
    value: (r, c) => {
      const v = cell(r, c);
      return v === null ? null : (v - low) / span;
    },
    rowTitle: "receives",
    columnTitle: `gives (${what})`,
    scale: [show(low), show(high) + (high < matrix.high ? " or more" : "")],
  });
}

function othersRange(run, matrix) {
  const count = run.clients.length;
  let least = Infinity,
    most = 0;
  matrix.data.forEach((_, i) => {
    const cell = matrixAt(run, "mixing", i);
    for (let r = 0; r < count; r++)
      for (let c = 0; c < count; c++) {
        const v = r === c ? null : cell(r, c);
        if (v !== null) {
          least = Math.min(least, v);
          most = Math.max(most, v);
        }
      }
  });
  return most > least ? [least, most] : [matrix.low, matrix.high];
}

const STRONGEST = 3;
function graphWords(run) {
  const some =
    run.clients.length > STRONGEST + 1 ? `. Each client's ${STRONGEST} strongest sources besides itself` : "";
  return `Arrows point to the receiving client; colours are domains${some}. Choose a client to see only its own.`;
}
function mixingGraph(run, width) {
  const at = nearest(run.matrices.mixing.rounds),
    weight = matrixAt(run, "mixing", at),
    { client } = focused(run),
    edges = [];
  run.clients.forEach((_, k) => {
    const sources = run.clients
      .map((_, j) => [j, weight(k, j)])
      .filter(([j, w]) => j !== k && w > 0)
      .sort((a, b) => b[1] - a[1]);
    for (const [j, w] of sources.slice(0, k === client ? 12 : STRONGEST)) edges.push({ from: j, to: k, share: w });
  });
  const most = Math.max(1e-9, ...edges.map((edge) => edge.share));
  for (const edge of edges) edge.share /= most;
  const nodes = run.clients.map((c, k) => ({
    label: labelOf(run, k),
    color: domainColour(c.domain),
    tell: `${c.name}${run.domains.length > 1 ? `, ${run.domains[c.domain]}` : ""}\n${learnedFrom(run, k) || ""}`,
  }));
  return network(width, {
    label: `Graph of aggregation weights in round ${run.matrices.mixing.rounds[at]}`,
    nodes,
    edges,
    chosen: client,
    choose: (k) => {
      state.focus = state.focus === `c:${k}` ? "all" : `c:${k}`;
      render();
    },
  });
}

function similarityCard(run) {
  const names = { u: "u", v: "v", matching: "used for matching" },
    alone = run.domains.length < 2;
  const series = Object.keys(names).flatMap((kind, i) => {
    if (!run.means[kind]) return [];
    const [rounds, within, across] = run.means[kind],
      line = (values) => rounds.flatMap((round, r) => (values[r] === null ? [] : [[round, values[r]]]));
    return [
      { name: `${names[kind]}, ${alone ? "all pairs" : "same domain"}`, color: domainColour(i), points: line(within) },
      ...(alone
        ? []
        : [{ name: `${names[kind]}, other domains`, color: domainColour(i), dash: "3 3", points: line(across) }]),
    ];
  });
  const picture = figure(`${run.method}-similarity`, null, (width) =>
    lineChart(width, {
      label: "Mean similarity of clients over rounds",
      series,
      x: AXES.rounds,
      y: { format: (v, step) => v.toFixed(Math.max(2, decimals(step))), least: -1, most: 1 },
    }),
  );
  return card(
    "Similarity of clients",
    soft(
      run.means.u
        ? "Mean cosine over pairs of clients: u and v of the layer before the classifier after each round, " +
            "and the similarity used for matching at the beginning of the round."
        : "Mean over pairs of clients of the similarity used for matching at the beginning of the round.",
    ),
    picture.node,
  );
}

const ROLES = {
  encrypted: "ciphertexts",
  norm: "normalisation",
  bias: "biases",
  body: "dense weights",
  fingerprint: "matching vector",
  headers: "file headers",
};
function trafficCard(run) {
  const { up, down, formula_a_bytes: a, formula_b_bytes: b, formula_up, formula_down, roles } = run.traffic;
  if (!up && !down)
    return card("Communication", soft(run.method === "stand-alone" ? "None." : "No bytes have been sent yet."));
  const order = [0, 1, 2, 4, 3, 5];
  const parts = (way) =>
    roles.length
      ? roles.map((role, i) => ({
          name: ROLES[role.role] || role.role,
          color: role.role === "headers" ? colour(6) : colour(order[i % order.length]),
          value: role[way],
        }))
      : [{ name: "all", color: colour(0), value: way === "up" ? up : down }];
  const bars = [
    ["up", "Up", up, formula_up],
    ["down", "Down", down, formula_down],
  ].map(([way, words, total, formula]) => ({
    name: `${words}: ${bytes(total)} measured${formula === null ? "" : `, ${bytes(formula)} by formula`}`,
    parts: parts(way),
    outline: formula,
  }));
  const picture = figure(
    `${run.method}-communication`,
    "Up: from the clients to the server. Filled: bytes as serialised, all clients and rounds. " +
      "Outlined: the paper's formula.",
    (width) => stackedBars(width, { label: "Bytes by role and direction", bars, format: bytes }),
    () => 160,
  );
  const rows = roles.map((role) => [ROLES[role.role] || role.role, role.up, role.down]);
  const table = el(
    "div",
    { class: "wide" },
    el(
      "table",
      { id: "traffic" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["what", "up", "down"].map((word, i) => el("th", { class: i ? null : "words" }, word)),
        ),
      ),
      el(
        "tbody",
        {},
        [...rows, ["Total", up, down]].map(([name, ...counts]) =>
          el(
            "tr",
            { class: name === "Total" ? "best" : null },
            el("td", { class: "words", "data-label": "what" }, name),
            counts.map((count, i) => el("td", { "data-label": i ? "down" : "up" }, bytes(count))),
          ),
        ),
      ),
    ),
  );
  return card(
    "Communication",
    picture.node,
    table,
    soft(`The paper's formula in total: ${bytes(b)}, or ${bytes(a)} ` + "without the download of the first round."),
  );
}
