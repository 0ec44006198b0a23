// Charts of amounts and differences: stacked bars, scatter, strips of dots.

// bars: [{name, parts: [{name, color, value}], outline}] with one scale; outline is drawn beside the measured bar.
function stackedBars(width, { label, bars, format }) {
  const names = [...new Map(bars.flatMap((bar) => bar.parts).map((part) => [part.name, part])).values()];
  const probe = canvas(width, 10, ""),
    top = legend(
      probe,
      names.map((part) => ({ ...part, kind: "block" })),
      8,
      width - 8,
    );
  const height = top + bars.length * 62 + 6,
    svg = canvas(width, height, label);
  legend(
    svg,
    names.map((part) => ({ ...part, kind: "block" })),
    8,
    width - 8,
  );
  const most = Math.max(
    1,
    ...bars.flatMap((bar) => [bar.parts.reduce((sum, part) => sum + part.value, 0), bar.outline || 0]),
  );
  const sx = (value) => (value / most) * (width - 16),
    places = [];
  bars.forEach((bar, i) => {
    const y = top + i * 62;
    let x = 8;
    svg.append(text(8, y + 14, fit(bar.name, width - 16)));
    for (const part of bar.parts) {
      svg.append(
        draw("rect", {
          x,
          y: y + 20,
          width: Math.max(sx(part.value), part.value ? 0.5 : 0),
          height: 18,
          style: { fill: part.color },
        }),
      );
      places.push({
        x0: x,
        x1: x + sx(part.value),
        y0: y + 20,
        text: `${bar.name.split(":")[0]}, ${part.name}: ${format(part.value)}`,
      });
      x += sx(part.value);
    }
    if (bar.outline !== null)
      svg.append(
        draw("rect", {
          x: 8,
          y: y + 41,
          width: Math.max(sx(bar.outline), 1),
          height: 8,
          class: "mark",
          style: { fill: "none" },
        }),
      );
  });
  const at = (px, py) => {
    const index = places.findIndex((p) => px >= p.x0 - 1 && px <= p.x1 + 1 && py >= p.y0 && py <= p.y0 + 18);
    return index < 0 ? null : { index, text: places[index].text };
  };
  pointable(svg, at, (place, [dx, dy]) => {
    const next = places[Math.min(Math.max((place ? place.index : -1) + dx + dy, 0), places.length - 1)];
    return next && [(next.x0 + next.x1) / 2, next.y0 + 9];
  });
  return svg;
}

// A place for each dot's name beside it, clear of all dots and names and inside `limits`; null if some have none.
function namesBeside(dots, spots, [left, top, right, bottom]) {
  const taken = spots.map(([px, py]) => [px - 7, py - 7, px + 7, py + 7]);
  const clear = (one) => taken.every((t) => one[0] >= t[2] || one[2] <= t[0] || one[1] >= t[3] || one[3] <= t[1]);
  const found = [];
  for (const [i, [px, py]] of spots.entries()) {
    const long = dots[i].name.length * LETTER,
      places = [];
    for (const y of [py + 4, py - 7, py + 15])
      for (const [anchor, x] of [
        ["start", px + 10],
        ["end", px - 10],
      ]) {
        const from = anchor === "end" ? x - long : x,
          box = [from, y - 10, from + long, y + 3];
        if (box[0] >= left && box[2] <= right && box[1] >= top && box[3] <= bottom) places.push({ x, y, anchor, box });
      }
    const place = places.find((one) => clear(one.box));
    if (!place) return null;
    taken.push(place.box);
    found.push(place);
  }
  return found;
}

// dots: [{name, x, y, spread, color}], x may be 0 on a logarithmic axis: such dots are drawn at the left.
function scatter(width, { label, dots, x, y, logarithmic, height = 320 }) {
  const positive = dots.map((d) => d.x).filter((v) => v > 0);
  if (!dots.length) {
    const svg = canvas(width, height, label);
    svg.append(text(12, 30, "No data.", { class: "soft" }));
    return svg;
  }
  const least = Math.min(...positive),
    most = Math.max(...positive),
    zero = dots.some((d) => !d.x);
  const unit = (v) => (logarithmic ? (v > 0 ? Math.log10(v) : Math.log10(least) - 0.7) : v);
  let low = logarithmic ? (positive.length ? Math.log10(least) : 0) : 0,
    high = logarithmic ? (positive.length ? Math.log10(most) : 1) : most || 1;
  if (logarithmic) {
    low -= zero ? 0.9 : 0.2;
    high += 0.3;
  } else high *= 1.08;
  const decades = [];
  for (let e = Math.floor(low); e <= high; e++) for (const m of [1, 2, 5]) decades.push(e + Math.log10(m));
  const marks = logarithmic
    ? [...(zero ? [unit(0)] : []), ...decades.filter((v) => v >= unit(least || 1) - 0.2 && v <= high)]
    : undefined;
  const ys = dots.flatMap((d) => [d.y - (d.spread || 0), d.y + (d.spread || 0)]),
    pad = (Math.max(...ys) - Math.min(...ys) || 0.1) * 0.15;
  const format = (v) => (logarithmic ? (zero && v === unit(0) ? x.format(0) : x.format(10 ** v)) : x.format(v));
  const axes = [
    { low, high, format, label: x.label, ticks: marks },
    { low: Math.min(...ys) - pad, high: Math.max(...ys) + pad, format: y.format },
  ];
  const spotsIn = (box) => dots.map((d) => [box.sx(unit(d.x)), box.sy(d.y)]);
  // Names stand beside their dots, or in a legend if there is no room for some of them.
  const plain = frame(canvas(width, height, ""), width, height, 14, ...axes),
    names = namesBeside(dots, spotsIn(plain), [plain.left, plain.top, width, plain.bottom]),
    entries = dots.map((d) => ({ ...d, kind: "block" })),
    top = names ? 14 : legend(canvas(width, 10, ""), entries, 52, width - 12) + 10,
    tall = height + top - 14;
  const svg = canvas(width, tall, label);
  if (!names) legend(svg, entries, 52, width - 12);
  const box = frame(svg, width, tall, top, ...axes);
  const front = [];
  for (const d of [...dots].sort((a, b) => a.x - b.x || b.y - a.y))
    if (!front.length || d.y > front.at(-1).y) front.push(d);
  const steps = front.flatMap((d, i) => [
    ...(i ? [[box.sx(unit(d.x)), box.sy(front[i - 1].y)]] : []),
    [box.sx(unit(d.x)), box.sy(d.y)],
  ]);
  svg.append(
    draw("path", { d: pathOf([...steps, [box.right, steps.at(-1)[1]]]), class: "mark", style: { fill: "none" } }),
  );
  const spots = spotsIn(box);
  dots.forEach((d, i) => {
    const [px, py] = spots[i];
    if (d.spread)
      svg.append(
        line(px, box.sy(d.y - d.spread), px, box.sy(d.y + d.spread), {
          style: { stroke: d.color, "stroke-width": 1.5 },
        }),
      );
    svg.append(draw("circle", { cx: px, cy: py, r: 5.5, style: { fill: d.color } }));
  });
  (names || []).forEach(({ x, y, anchor }, i) =>
    svg.append(text(x, y, dots[i].name, { class: "halo", "text-anchor": anchor })),
  );
  const at = (px, py) => {
    const index = dots.findIndex((d) => Math.hypot(box.sx(unit(d.x)) - px, box.sy(d.y) - py) < 12);
    return index < 0 ? null : { index, text: dots[index].tell };
  };
  pointable(svg, at, (place, [dx, dy]) => {
    const d = dots[Math.min(Math.max((place ? place.index : -1) + dx + dy, 0), dots.length - 1)];
    return [box.sx(unit(d.x)), box.sy(d.y)];
  });
  return svg;
}

// The height of a strip, with a line for its name where names need more than two fifths of the width.
function stripStep(width, rows) {
  return Math.max(...rows.map((row) => row.name.length)) * LETTER + 14 > width * 0.4 ? 64 : 46;
}

// rows: [{name, dots: [{value, margin, word, tell}], color, mean, low, high}]: one strip per row, a mark per client, sorted.
function strips(width, { label, rows, axis, format }) {
  const step = stripStep(width, rows),
    above = step > 46,
    left = above ? 14 : Math.max(...rows.map((row) => row.name.length)) * LETTER + 14,
    height = rows.length * step + 46;
  const svg = canvas(width, height, label),
    values = rows.flatMap((row) => [
      row.low,
      row.high,
      ...row.dots.flatMap((d) => [d.value - d.margin, d.value + d.margin]),
    ]);
  const most = Math.max(0.01, ...values.map(Math.abs)),
    sx = (v) => left + ((v + most) / (2 * most)) * (width - left - 14),
    places = [];
  for (const tick of ticks(-most, most, (width - left) / 90)) {
    const zero = Math.abs(tick) < 1e-9;
    svg.append(
      line(sx(tick), 6, sx(tick), height - 40, {
        class: zero ? "ink" : "grid",
        style: { "stroke-width": zero ? 2 : 1 },
      }),
    );
    svg.append(
      text(sx(tick), height - 24, Math.abs(tick) < 1e-9 ? "0" : format(tick, most > 0.05 ? 0 : 1), {
        class: "soft",
        "text-anchor": "middle",
      }),
    );
  }
  const centre = axis.length * LETTER > width - left ? width / 2 : (left + width) / 2;
  svg.append(text(centre, height - 5, axis, { class: "soft", "text-anchor": "middle" }));
  rows.forEach((row, r) => {
    const y = 6 + step * (r + 1) - 23;
    if (above) svg.append(text(4, y - 25, fit(row.name, width - 8), { class: "halo" }));
    else svg.append(text(left - 8, y + 4, row.name, { "text-anchor": "end" }));
    if (row.low !== undefined)
      svg.append(
        draw("rect", {
          x: sx(row.low),
          y: y - 19,
          width: Math.max(sx(row.high) - sx(row.low), 1),
          height: 38,
          style: { fill: row.color, "fill-opacity": 0.16 },
        }),
      );
    const sorted = [...row.dots].sort((a, b) => b.value - a.value);
    sorted.forEach((d, i) => {
      const py = y + (sorted.length > 1 ? i / (sorted.length - 1) - 0.5 : 0) * 34,
        color = WORDS[d.word][2];
      if (row.dots.length <= 40)
        svg.append(
          line(sx(d.value - d.margin), py, sx(d.value + d.margin), py, {
            style: { stroke: color, "stroke-opacity": 0.3 },
          }),
        );
      svg.append(verdictMark(sx(d.value), py, row.dots.length > 60 ? 2.2 : 3.8, d.word));
      places.push({ x: sx(d.value), y: py, text: d.tell });
    });
    if (row.mean !== null)
      svg.append(line(sx(row.mean), y - 19, sx(row.mean), y + 19, { style: { stroke: row.color, "stroke-width": 3 } }));
  });
  const at = (px, py) => {
    const index = places.reduce(
      (best, p, i) =>
        Math.hypot(p.x - px, p.y - py) < Math.hypot(places[best].x - px, places[best].y - py) ? i : best,
      0,
    );
    return places.length && Math.hypot(places[index].x - px, places[index].y - py) < 14
      ? { index, text: places[index].text }
      : null;
  };
  pointable(svg, at, (place, [dx, dy]) => {
    const next = places[Math.min(Math.max((place ? place.index : -1) + dx + dy, 0), places.length - 1)];
    return next && [next.x, next.y];
  });
  return svg;
}
