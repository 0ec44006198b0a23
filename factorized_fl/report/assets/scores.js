// Scores over rounds and at the end.

function scoreCard(run) {
  const measure = measureOf([run]);
  const picture = figure(`${run.method}-${slug(measureName(run, measure))}`, null, (width) =>
    lineChart(width, {
      label: `${capital(measureName(run, measure))} of the clients' own models on their own test images`,
      series: scoreSeries(run, measure),
      x: AXES[state.axis],
      y: verticalOf(run, measure),
      marks: measure === "loss" ? [] : aloneMarks(run),
    }),
  );
  return card(
    capital(run.metric) + (doc.comparison ? " of this run" : ""),
    soft(
      "Every client's own model on its own test images. A client that was not tested in a round keeps its last result.",
    ),
    el("div", { class: "row" }, measureChoice("measure", [run]), axisChoice("axis")),
    picture.node,
  );
}

function meanSeries(known, xs, members) {
  return xs.flatMap((x, r) => {
    const m = mean(members.map((k) => known[k][r]).filter((v) => v !== null));
    return m === null ? [] : [[x, m]];
  });
}

function scoreSeries(run, measure) {
  const known = curvesOf(run, measure),
    xs = axisOf(run),
    { client, domain, members } = focused(run),
    clients = run.clients.map((_, k) => k);
  const one = (k, more) => ({
    name: nameOf(run, k),
    points: xs.flatMap((x, r) => (known[k][r] === null ? [] : [[x, known[k][r]]])),
    ...more,
  });
  if (client !== null)
    return [
      one(client, { color: colour(0) }),
      { name: "mean of all clients", color: colour(6), dash: "7 3", points: meanSeries(known, xs, clients) },
    ];
  if (domain !== null) {
    const few = members.length <= 6;
    const mine = members.map((k, i) => one(k, few ? { color: colour(i) } : { color: colour(domain), thin: true }));
    return [
      ...mine,
      {
        name: `mean of ${run.domains[domain]}`,
        color: few ? colour(6) : colour(domain),
        dash: few ? "7 3" : "",
        points: meanSeries(known, xs, members),
      },
    ];
  }
  const band = xs.flatMap((x, r) => {
    const sorted = clients
      .map((k) => known[k][r])
      .filter((v) => v !== null)
      .sort((a, b) => a - b);
    return sorted.length ? [[x, quantile(sorted, 0.1), quantile(sorted, 0.9)]] : [];
  });
  const all = {
    name: "all clients (band: middle 80%)",
    color: colourOfRun(run),
    points: meanSeries(known, xs, clients),
    band,
  };
  const domains =
    run.domains.length > 1
      ? run.domains.map((name, d) => ({
          name: name || "no domain",
          color: domainColour(d),
          dash: DASHES[1 + (d % 2)],
          points: meanSeries(
            known,
            xs,
            run.clients.flatMap((c, k) => (c.domain === d ? [k] : [])),
          ),
        }))
      : [];
  return [all, ...domains];
}

function aloneMarks(run) {
  const { members } = focused(run),
    alone = run.verdicts.filter((v) => members.includes(v.client)).map((v) => v.reference);
  return alone.length
    ? [
        {
          at: mean(alone),
          name: members.length === 1 ? "without federation, at the end" : "mean without federation, at the end",
        },
      ]
    : [];
}

const MANY = 48;
function barsCard(run) {
  const alone = new Map(run.verdicts.map((v) => [v.client, v.reference])),
    last = new Map(run.final.map((f) => [f.client, f.accuracy]));
  const { domain } = focused(run),
    chosen = run.domains.map((_, d) => d).filter((d) => domain === null || d === domain);
  const series = [
    ...(alone.size ? [{ name: "without federation", color: "var(--plain)" }] : []),
    { name: alone.size ? "with federation" : run.title, color: colourOfRun(run) },
  ];
  const values = (ks) => [
    ...(alone.size ? [mean(ks.map((k) => alone.get(k)).filter((v) => v !== undefined))] : []),
    mean(ks.map((k) => last.get(k)).filter((v) => v !== undefined)),
  ];
  const bar = (name, label, ks) => ({
    name,
    label,
    values: values(ks),
    tell: [name, ...values(ks).map((v, i) => `${series[i].name}: ${scoreOf(run).show(v)}`)].join("\n"),
  });
  const members = (d) => run.clients.flatMap((c, k) => (c.domain === d ? [k] : []));
  const merged = domain === null && run.clients.length > MANY;
  const groups = merged
    ? [
        {
          name: "mean of each domain",
          bars: chosen.map((d) =>
            bar(
              `${run.domains[d] || "all"}: mean of ${plural(members(d).length, "client")}`,
              run.domains[d],
              members(d),
            ),
          ),
        },
      ]
    : chosen.map((d) => ({
        name: run.domains[d],
        bars: members(d).map((k) => bar(nameOf(run, k), labelOf(run, k), [k])),
      }));
  const picture = figure(`${run.method}-clients`, null, (width) =>
    barChart(width, {
      label: `${capital(run.metric)} of every client, by domain`,
      groups,
      series,
      format: scoreOf(run).label,
    }),
  );
  return card(
    "Every client, by domain",
    merged ? soft("Means of the domains; choose a domain above to see its clients.") : null,
    picture.node,
  );
}
