// The charts: plain SVG, drawn for the available width, without a library. Each function returns one <svg>.

const plots = []; // all figures on the page, to be drawn again when the window changes

// A figure: `render(width)` returns the chart, `height(width)` reserves its space before it is drawn.
function figure(name, caption, render, height = () => 300) {
  const plot = el("div", { class: "plot" });
  const file = (kind, act) =>
    el(
      "button",
      { type: "button", "aria-label": `Save ${name} as ${kind}`, on: { click: () => act(plot.querySelector("svg")) } },
      kind,
    );
  const files = el(
    "div",
    { class: "files small" },
    file("SVG", (svg) => save(`${name}.svg`, standalone(svg), "image/svg+xml")),
    file("PNG", (svg) => savePng(svg, `${name}.png`)),
  );
  const node = el("figure", { "data-figure": name }, caption ? el("figcaption", {}, caption) : null, plot, files);
  const redraw = () => {
    const width = plot.clientWidth;
    if (!width) return;
    plot.style.minHeight = `${height(width)}px`;
    const held = plot.contains(document.activeElement);
    plot.replaceChildren(render(width));
    if (held) plot.querySelector("svg").focus({ preventScroll: true });
  };
  plots.push({ node, redraw });
  return { node, redraw };
}

function canvas(width, height, label) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
}
const text = (x, y, words, attributes = {}) => draw("text", { x, y, ...attributes }, words);
const line = (x1, y1, x2, y2, attributes = {}) => draw("line", { x1, y1, x2, y2, ...attributes });
const LETTER = 7.1; // width of a letter, about: enough to tell what fits
const fit = (words, room) =>
  words.length * LETTER <= room ? words : words.slice(0, Math.max(1, Math.floor(room / LETTER) - 1)) + "…";

// Entries of {name, color, dash, kind}, wrapped; returns their height.
function legend(svg, entries, left, width) {
  let x = left,
    y = 14;
  for (const entry of entries) {
    const room = 34 + entry.name.length * LETTER;
    if (x > left && x + room > width) {
      x = left;
      y += 18;
    }
    if (entry.kind === "block")
      svg.append(
        draw("rect", {
          x,
          y: y - 9,
          width: 14,
          height: 10,
          rx: 2,
          style: { fill: entry.color, "fill-opacity": entry.opacity || 1 },
        }),
      );
    else
      svg.append(
        line(x, y - 4, x + 18, y - 4, {
          style: { stroke: entry.color, "stroke-width": 2.5, "stroke-dasharray": entry.dash || "none" },
        }),
      );
    svg.append(text(x + (entry.kind === "block" ? 19 : 23), y, fit(entry.name, width - x - 30)));
    x += room;
  }
  return entries.length ? y + 10 : 6;
}

// Axes and grid. x, y: {low, high, format, label, ticks}; y's format also gets the step between two ticks. Returns
// scales and the box inside.
function frame(svg, width, height, top, x, y) {
  const left = 52,
    right = width - 12,
    bottom = height - (x.label ? 40 : 24);
  const sx = (value) => left + ((value - x.low) / (x.high - x.low || 1)) * (right - left);
  const sy = (value) => bottom - ((value - y.low) / (y.high - y.low || 1)) * (bottom - top);
  const levels = y.ticks || ticks(y.low, y.high, Math.max(2, (bottom - top) / 45)),
    step = levels[1] - levels[0];
  for (const tick of levels) {
    svg.append(
      line(left, sy(tick), right, sy(tick), { class: "grid" }),
      text(left - 6, sy(tick) + 4, y.format(tick, step), { class: "soft", "text-anchor": "end" }),
    );
  }
  let edge = -1e9;
  for (const tick of x.ticks || ticks(x.low, x.high, Math.max(2, (right - left) / 80))) {
    const words = x.format(tick),
      half = words.length * 3.3,
      at = Math.min(sx(tick), width - half - 2);
    if (at - half < edge + 8) continue;
    edge = at + half;
    svg.append(text(at, bottom + 17, words, { class: "soft", "text-anchor": "middle" }));
  }
  svg.append(line(left, bottom, right, bottom, { class: "axis" }));
  if (x.label) svg.append(text((left + right) / 2, height - 4, x.label, { class: "soft", "text-anchor": "middle" }));
  return { sx, sy, left, right, top, bottom };
}

const pathOf = (marks) => marks.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// series: [{name, color, dash, points: [[x, y]], band: [[x, low, high]], thin}]; marks: horizontal lines {at, name}.
function lineChart(width, { label, series, x, y, marks = [], height = 300 }) {
  const svg = canvas(width, height, label);
  const shown = series.filter((one) => one.points.length);
  const values = [
    ...shown.flatMap((one) => one.points.map((p) => p[1])),
    ...marks.map((mark) => mark.at),
    ...shown.flatMap((one) => (one.band || []).flatMap((b) => [b[1], b[2]])),
  ];
  const xs = shown.flatMap((one) => one.points.map((p) => p[0]));
  if (!values.length) {
    svg.append(text(12, 30, "No data.", { class: "soft" }));
    return svg;
  }
  let low = Math.min(...values),
    high = Math.max(...values);
  const pad = (high - low || 0.1) * 0.06;
  low = Math.max(y.least ?? -Infinity, low - pad);
  high = Math.min(y.most ?? Infinity, high + pad);
  const named = [
    ...shown.filter((one) => one.name && !one.thin),
    ...marks.map((mark) => ({ name: mark.name, color: "var(--soft)", dash: "5 4" })),
  ];
  const top = legend(svg, named, 52, width - 12);
  const from = Math.min(...xs),
    to = Math.max(...xs);
  const box = frame(
    svg,
    width,
    height,
    top,
    { ...x, low: from, high: to === from ? from + 1 : to },
    { ...y, low, high },
  );
  for (const mark of marks) svg.append(line(box.left, box.sy(mark.at), box.right, box.sy(mark.at), { class: "mark" }));
  for (const one of shown) {
    if (one.band) {
      const there = one.band.map((b) => [box.sx(b[0]), box.sy(b[2])]),
        back = one.band.map((b) => [box.sx(b[0]), box.sy(b[1])]).reverse();
      svg.append(
        draw("path", { d: pathOf([...there, ...back]) + "Z", style: { fill: one.color, "fill-opacity": 0.14 } }),
      );
    }
    const marksOf = one.points.map((p) => [box.sx(p[0]), box.sy(p[1])]);
    const style = {
      fill: "none",
      stroke: one.color,
      "stroke-width": one.thin ? 1 : 2.2,
      "stroke-dasharray": one.dash || "none",
      "stroke-opacity": one.thin ? 0.45 : 1,
    };
    svg.append(draw("path", { d: pathOf(marksOf), style }));
    if (marksOf.length === 1)
      svg.append(draw("circle", { cx: marksOf[0][0], cy: marksOf[0][1], r: 3.5, style: { fill: one.color } }));
  }
  const cursor = line(0, box.top, 0, box.bottom, {
    class: "ink",
    "data-ui": "1",
    style: { "stroke-opacity": 0.4, visibility: "hidden" },
  });
  svg.append(cursor);
  const places = [...new Set(xs)].sort((a, b) => a - b);
  const at = (px) => {
    cursor.style.visibility = px < box.left - 20 || px > box.right + 20 ? "hidden" : "visible";
    if (px < box.left - 20 || px > box.right + 20) return null;
    const index = places.reduce(
      (best, place, i) => (Math.abs(box.sx(place) - px) < Math.abs(box.sx(places[best]) - px) ? i : best),
      0,
    );
    const lines = shown
      .map((one) => {
        const near = one.points.reduce((best, p) =>
          Math.abs(p[0] - places[index]) < Math.abs(best[0] - places[index]) ? p : best,
        );
        return [one.name, near[1]];
      })
      .filter(([name]) => name)
      .sort((a, b) => b[1] - a[1]);
    cursor.setAttribute("x1", box.sx(places[index]));
    cursor.setAttribute("x2", box.sx(places[index]));
    const told = lines.slice(0, 12).map(([name, value]) => `${name}: ${y.format(value)}`);
    if (lines.length > 12) told.push(`and ${lines.length - 12} more`);
    return { index, text: [x.tell ? x.tell(places[index]) : x.format(places[index]), ...told].join("\n") };
  };
  pointable(svg, at, (place, [move]) => {
    const next = Math.min(Math.max((place ? place.index : -1) + move, 0), places.length - 1);
    return [box.sx(places[next]), (box.top + box.bottom) / 2];
  });
  return svg;
}

// groups: [{name, bars: [{name, values: [score or null per series], tell}]}]; series: [{name, color}].
function barChart(width, { label, groups, series, format, height = 300 }) {
  const svg = canvas(width, height, label);
  const top = legend(
    svg,
    series.map((one) => ({ ...one, kind: "block" })),
    52,
    width - 12,
  );
  const shown = groups.flatMap((g) => g.bars.flatMap((bar) => bar.values)).filter((v) => v !== null);
  const high = Math.max(0.01, ...shown),
    low = Math.min(0, ...shown);
  const box = frame(
    svg,
    width,
    height,
    top,
    { low: 0, high: 1, ticks: [], format: String, label: " " },
    { low: low * 1.05, high: high * 1.05, format },
  );
  const count = groups.reduce((sum, group) => sum + group.bars.length, 0);
  const gap = Math.min(18, (box.right - box.left) / (6 * groups.length)),
    step = (box.right - box.left - gap * groups.length) / count;
  const places = [];
  let x = box.left + gap / 2;
  for (const group of groups) {
    const begin = x;
    for (const bar of group.bars) {
      const wide = (step * 0.84) / series.length;
      bar.values.forEach((value, i) => {
        if (value !== null)
          svg.append(
            draw("rect", {
              x: x + step * 0.08 + i * wide,
              y: box.sy(Math.max(value, 0)),
              width: Math.max(wide - 0.5, 0.7),
              height: Math.abs(box.sy(value) - box.sy(0)),
              style: { fill: series[i].color },
            }),
          );
      });
      if (step > 15)
        svg.append(
          text(x + step / 2, box.bottom + 14, fit(bar.label, step), { class: "soft", "text-anchor": "middle" }),
        );
      places.push({ x: x + step / 2, bar });
      x += step;
    }
    svg.append(line(begin, box.bottom + 19, x, box.bottom + 19, { class: "axis" }));
    svg.append(text((begin + x) / 2, height - 4, fit(group.name, x - begin + gap), { "text-anchor": "middle" }));
    x += gap;
  }
  const at = (px) => {
    const index = places.findIndex((place) => Math.abs(place.x - px) <= step / 2);
    return index < 0 ? null : { index, text: places[index].bar.tell };
  };
  pointable(svg, at, (place, [move]) => {
    const next = places[Math.min(Math.max((place ? place.index : -1) + move, 0), places.length - 1)];
    return next && [next.x, (box.top + box.bottom) / 2];
  });
  return svg;
}
