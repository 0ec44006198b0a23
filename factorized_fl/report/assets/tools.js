// Elements, numbers, colours, tips and files. Text is always inserted as text: names come from user data.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "style") for (const [key, set] of Object.entries(value)) node.style.setProperty(key, set);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

// -- numbers

const percent = (share, digits = 1) => (share === null ? "–" : (100 * share).toFixed(digits) + "%");
const sign = (number) => (number > 0 ? "+" : number < 0 ? "−" : "");
// Decimals that an axis with this step needs so that neighbouring labels differ.
const decimals = (step) => (step ? Math.max(0, Math.ceil(-Math.log10(step) - 1e-6)) : 0);
const percentLabel = (share, step) => percent(share, step ? decimals(100 * step) : 1);
const points = (share, digits = 1) => sign(share) + Math.abs(100 * share).toFixed(digits);
const numberLabel = (value, step) => (step ? value.toFixed(decimals(step)) : String(Number(value.toPrecision(3))));
const short = (value) => (Math.abs(value) >= 0.0995 ? value.toFixed(2) : value.toPrecision(2));
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function bytes(count) {
  if (count === null) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000) return unit === "B" ? `${Math.round(count)} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

function seconds(count) {
  if (count === null) return "–";
  if (count < 100) return `${count.toFixed(count < 10 ? 1 : 0)} s`;
  return count < 6000 ? `${(count / 60).toFixed(1)} min` : `${(count / 3600).toFixed(1)} h`;
}

function decode(text) {
  const raw = atob(text);
  return Uint8Array.from(raw, (mark) => mark.charCodeAt(0));
}

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const running = (values) => {
  let sum = 0;
  return values.map((value) => (sum += value));
};
function quantile(sorted, share) {
  const at = share * (sorted.length - 1),
    low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count),
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i++) found.push(i * step);
  return found;
}

// -- colours

const COLOURS = 7;
const colour = (index) => `var(--c${index % COLOURS})`;
const domainColour = (index) => `var(--d${index % 5})`; // other tones than those of methods
const DASHES = ["", "7 3", "2 3"];
const dash = (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length];

const VIRIDIS = [
  "440154",
  "482878",
  "3e4a89",
  "31688e",
  "26828e",
  "1f9e89",
  "35b779",
  "6ece58",
  "b5de2b",
  "fde725",
].map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
function heat(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1),
    low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low].map((value, i) => Math.round(value + (at - low) * (VIRIDIS[low + 1][i] - value)));
}
const rgb = (parts) => `rgb(${parts.join(",")})`;
const WORDS = {
  helped: ["▲", "helped", "var(--good)"],
  harmed: ["▼", "harmed", "var(--bad)"],
  undecided: ["•", "unsure", "var(--plain)"],
};

// -- the tip

const tip = document.getElementById("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 4))}px`;
}
const hideTip = () => {
  tip.hidden = true;
};

// Pointer and arrow keys call `at(x, y)` in the chart's units; it returns the text and position of the tip.
function pointable(svg, at, step) {
  const scale = () => svg.viewBox.baseVal.width / svg.getBoundingClientRect().width;
  let place = null;
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const found = at((event.clientX - box.left) * scale(), (event.clientY - box.top) * scale());
    if (found) {
      place = found;
      showTip(found.text, event.clientX, event.clientY);
    } else hideTip();
  });
  svg.addEventListener("pointerleave", () => {
    at(-1e9, -1e9);
    hideTip();
  });
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("blur", () => {
    at(-1e9, -1e9);
    hideTip();
  });
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") hideTip();
    if (!move) return;
    const wanted = step(place, move),
      found = wanted && at(...wanted);
    if (!found) return;
    event.preventDefault();
    place = found;
    const box = svg.getBoundingClientRect();
    showTip(found.text, box.left + wanted[0] / scale(), box.top + wanted[1] / scale());
  });
}

// -- files

function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const KEPT = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "opacity",
  "fill-opacity",
  "stroke-opacity",
  "font-size",
  "font-family",
  "font-weight",
  "text-anchor",
  "paint-order",
];
function standalone(svg) {
  const copy = svg.cloneNode(true),
    from = [svg, ...svg.querySelectorAll("*")],
    to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of KEPT) if (style.getPropertyValue(name)) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("style");
    to[i].removeAttribute("class");
  });
  for (const node of copy.querySelectorAll("[data-ui]")) node.remove();
  copy.setAttribute("xmlns", SVG);
  const box = svg.viewBox.baseVal;
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  const ground = getComputedStyle(document.documentElement).getPropertyValue("--card");
  copy.prepend(draw("rect", { width: box.width, height: box.height, fill: ground }));
  return new XMLSerializer().serializeToString(copy);
}

function savePng(svg, name) {
  const box = svg.viewBox.baseVal,
    picture = new Image();
  picture.onload = () => {
    const canvas = el("canvas", { width: 2 * box.width, height: 2 * box.height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(name, blob));
  };
  picture.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(standalone(svg));
}
