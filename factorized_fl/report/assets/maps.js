// Heat maps and the graph.

// value(row, column) is 0 to 1 or null; names label the axes if there is room; `note` writes into a cell.
function heatMap(
  width,
  { label, rows, columns, value, tell, rowNames, columnNames, rowTitle, columnTitle, note, groups, scale, most = 520 },
) {
  const longest = Math.max(2, ...rowNames.map((name) => name.length));
  const left = (rowTitle ? 18 : 0) + Math.min(longest * LETTER + 10, width * 0.3),
    top = columnTitle ? 22 : 6;
  const side = Math.min((width - left - 8) / columns, most / Math.max(rows, columns)),
    square = rows === columns;
  const across = square ? side : Math.min((width - left - 8) / columns, 40),
    down = square ? side : Math.min(22, 400 / rows);
  // Short names are horizontal, and some are left out if not all fit; long names are rotated.
  const longName = Math.max(...columnNames.map((name) => name.length)),
    brief = longName <= 4;
  const enough = (room) => [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * room[0] >= room[1]) || 1000;
  const flat = brief || longName * LETTER + 4 <= across;
  const below = flat ? 20 : Math.min(longName * 5.4 + 12, 96);
  const height = top + rows * down + below + (scale ? 44 : 4);
  const svg = canvas(width, height, label);
  if (rows * columns <= 2500) {
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) {
        const share = value(r, c),
          parts = share === null ? null : heat(share);
        const box = { x: left + c * across, y: top + r * down, width: across + 0.3, height: down + 0.3 };
        svg.append(
          draw("rect", parts ? { ...box, fill: rgb(parts), style: { fill: rgb(parts) } } : { ...box, class: "empty" }),
        );
        const words = note && note(r, c);
        if (words && words.length * LETTER + 5 < across && down > 13) {
          const dark = parts && 0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2] > 125;
          svg.append(
            text(left + (c + 0.5) * across, top + (r + 0.5) * down + 4, words, {
              "text-anchor": "middle",
              style: { fill: dark ? "#111" : "#fff" },
            }),
          );
        }
      }
  } else {
    const pixels = el("canvas", { width: columns, height: rows }),
      context = pixels.getContext("2d"),
      data = context.createImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) {
      const share = value(Math.floor(i / columns), i % columns);
      data.data.set(share === null ? [128, 128, 128, 40] : [...heat(share), 255], 4 * i);
    }
    context.putImageData(data, 0, 0);
    svg.append(
      draw("image", {
        href: pixels.toDataURL(),
        x: left,
        y: top,
        width: columns * across,
        height: rows * down,
        preserveAspectRatio: "none",
        style: { "image-rendering": "pixelated" },
      }),
    );
  }
  const every = enough([down, 13]),
    skip = enough([across, flat ? longName * LETTER + 4 : 14]);
  rowNames.forEach((name, r) => {
    if ((r + 1) % every === 0)
      svg.append(
        text(left - 6, top + (r + 0.5) * down + 4, fit(name, left - (rowTitle ? 22 : 6)), {
          "text-anchor": "end",
          class: "soft",
        }),
      );
  });
  columnNames.forEach((name, c) => {
    if ((c + 1) % skip) return;
    const x = left + (c + 0.5) * across,
      y = top + rows * down + 15;
    const turned = flat
      ? { "text-anchor": "middle" }
      : { "text-anchor": "end", transform: `rotate(-50 ${x + 4} ${y - 4})` };
    svg.append(text(flat ? x : x + 4, flat ? y : y - 4, flat ? name : fit(name, 110), { class: "soft", ...turned }));
  });
  if (columnTitle) svg.append(text(left, 14, columnTitle, { class: "soft" }));
  if (rowTitle)
    svg.append(
      text(0, 0, rowTitle, {
        class: "soft",
        "text-anchor": "middle",
        transform: `translate(12 ${top + (rows * down) / 2}) rotate(-90)`,
      }),
    );
  // Dark on light, so that the lines are seen on every colour of the map and in both schemes.
  for (const at of groups || [])
    for (const [stroke, wide] of [
      ["#fff", 4],
      ["#000", 1.5],
    ]) {
      const style = { stroke, "stroke-width": wide };
      svg.append(
        line(left, top + at * down, left + columns * across, top + at * down, { style }),
        line(left + at * across, top, left + at * across, top + rows * down, { style }),
      );
    }
  if (scale) {
    const y = height - 30,
      long = Math.min(220, width - left - 60);
    for (let i = 0; i < 40; i++)
      svg.append(
        draw("rect", {
          x: left + (i * long) / 40,
          y,
          width: long / 40 + 0.5,
          height: 9,
          style: { fill: rgb(heat(i / 39)) },
        }),
      );
    svg.append(
      text(left, y + 23, scale[0], { class: "soft" }),
      text(left + long, y + 23, scale[1], { class: "soft", "text-anchor": "end" }),
    );
  }
  const ring = draw("rect", {
    width: across,
    height: down,
    class: "ink",
    "data-ui": "1",
    style: { fill: "none", "stroke-width": 2, visibility: "hidden" },
  });
  svg.append(ring);
  const at = (px, py) => {
    const c = Math.floor((px - left) / across),
      r = Math.floor((py - top) / down);
    const inside = r >= 0 && c >= 0 && r < rows && c < columns;
    ring.style.visibility = inside ? "visible" : "hidden";
    if (!inside) return null;
    ring.setAttribute("x", left + c * across);
    ring.setAttribute("y", top + r * down);
    return { r, c, text: tell(r, c) };
  };
  pointable(svg, at, (place, [dx, dy]) => {
    const r = place ? Math.min(Math.max(place.r + dy, 0), rows - 1) : 0,
      c = place ? Math.min(Math.max(place.c + dx, 0), columns - 1) : 0;
    return [left + (c + 0.5) * across, top + (r + 0.5) * down];
  });
  return svg;
}

// nodes: [{label, color, tell}]; edges: [{from, to, share (0 to 1)}]; `chosen` is a node's number or null.
// Labels are inside the nodes; if one is too long, all are beside them, on an oval that leaves room for them.
const near = (...numbers) => numbers.map((number) => number.toFixed(1)).join(" ");
function network(width, { label, nodes, edges, chosen, choose }) {
  const size = Math.min(width, 520),
    centre = width / 2,
    most = 13,
    longest = LETTER * Math.max(...nodes.map((node) => node.label.length)),
    beside = longest > 2 * most,
    down = size / 2 - (beside ? 40 : 26),
    across = beside ? Math.min(down, centre - most - 8 - Math.min(longest, width / 4)) : down,
    svg = canvas(width, size, label);
  const place = (k) => {
    const angle = (2 * Math.PI * k) / nodes.length - Math.PI / 2;
    return [centre + across * Math.cos(angle), size / 2 + down * Math.sin(angle)];
  };
  const dot = Math.max(3, Math.min(most, (Math.PI * across) / nodes.length - 1.5));
  for (const edge of [...edges].sort((a, b) => a.share - b.share)) {
    const [x1, y1] = place(edge.from),
      [x2, y2] = place(edge.to),
      pull = 0.45;
    const mid = [(x1 + x2) / 2 + (centre - (x1 + x2) / 2) * pull, (y1 + y2) / 2 + (size / 2 - (y1 + y2) / 2) * pull];
    const faint = chosen !== null && edge.to !== chosen;
    const ends = [x2 - mid[0], y2 - mid[1]],
      long = Math.hypot(...ends) || 1,
      tip = [x2 - (ends[0] / long) * (dot + 3), y2 - (ends[1] / long) * (dot + 3)];
    const style = {
      fill: "none",
      stroke: nodes[edge.from].color,
      "stroke-width": 0.6 + 2.6 * edge.share,
      "stroke-opacity": faint ? 0.06 : 0.25 + 0.6 * edge.share,
    };
    svg.append(
      draw("path", {
        d: `M${near(x1, y1)}Q${near(...mid)} ${near(...tip)}`,
        style,
      }),
    );
    if (!faint) {
      const nx = -ends[1] / long,
        ny = ends[0] / long,
        back = [tip[0] - (ends[0] / long) * 9, tip[1] - (ends[1] / long) * 9];
      svg.append(
        draw("path", {
          d: pathOf([tip, [back[0] + 4.5 * nx, back[1] + 4.5 * ny], [back[0] - 4.5 * nx, back[1] - 4.5 * ny]]) + "Z",
          style: { fill: nodes[edge.from].color, "fill-opacity": 0.4 + 0.6 * edge.share },
        }),
      );
    }
  }
  nodes.forEach((node, k) => {
    const [x, y] = place(k),
      ringed = k === chosen;
    svg.append(
      draw("circle", {
        cx: x,
        cy: y,
        r: dot,
        style: {
          fill: node.color,
          cursor: "pointer",
          stroke: ringed ? "var(--ink)" : "var(--card)",
          "stroke-width": ringed ? 3 : 1.5,
        },
        on: { click: () => choose(k) },
      }),
    );
    if (dot > 8 && beside) svg.append(labelBeside(node.label, x, y, dot + 5, centre, size / 2));
    else if (dot > 8)
      svg.append(
        text(x, y + 4, node.label, {
          "text-anchor": "middle",
          style: { fill: "var(--card)", "pointer-events": "none", "font-weight": 600 },
        }),
      );
  });
  const at = (px, py) => {
    const k = nodes.findIndex((_, i) => Math.hypot(place(i)[0] - px, place(i)[1] - py) <= dot + 4);
    return k < 0 ? null : { k, text: nodes[k].tell };
  };
  pointable(svg, at, (now, [dx, dy]) => place(((now ? now.k : -1) + dx + dy + nodes.length) % nodes.length));
  return svg;
}

// A node's label, outwards from the centre, shortened to fit.
function labelBeside(label, x, y, gap, centre, middle) {
  const side = Math.sign(Math.round(x - centre)),
    room = side ? centre - Math.abs(x - centre) - gap : 2 * centre;
  return text(x + side * gap, side ? y + 4 : y + (y < middle ? -gap : gap + 8), fit(label, room), {
    "text-anchor": ["end", "middle", "start"][side + 1],
    style: { "pointer-events": "none" },
  });
}
