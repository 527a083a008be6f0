// Pictures as SVG: curves, scatter, river. Numbers in, elements out; every picture has a name that a screen reader says.

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) if (v !== null && v !== undefined) made.setAttribute(k, v);
  made.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return made;
}

export const colour = (i) => `var(--c${i % 8})`;

export function short(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  if (size >= 1e5) return x.toExponential(1);
  if (size >= 100 || Number.isInteger(x)) return String(Math.round(x));
  return size >= 10 ? x.toFixed(1) : size >= 0.01 || x === 0 ? String(+x.toFixed(3)) : x.toExponential(1);
}

function ticks(low, high, count = 4) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.7) || raw;
  const found = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) found.push(+x.toPrecision(12));
  return found;
}

function frame(points, { width = 460, height = 200, xs = null, ys = null, bare = false } = {}) {
  const left = 46, right = 10, top = 10, bottom = 24;
  const X = points.map((p) => p[0]), Y = points.flatMap((p) => p.slice(1)).filter((y) => y !== null && y !== undefined);
  let [x0, x1] = xs || [Math.min(...X), Math.max(...X)], [y0, y1] = ys || [Math.min(...Y), Math.max(...Y)];
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  if (y0 === y1) { y0 -= 0.5; y1 += 0.5; }
  const pad = ys ? 0 : (y1 - y0) * 0.06;
  y0 -= pad; y1 += pad;
  const x = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right);
  const y = (v) => height - bottom - ((v - y0) / (y1 - y0)) * (height - top - bottom);
  const axes = [
    ...ticks(y0, y1).map((v) => [svg("line", { class: "axis", x1: left, x2: width - right, y1: y(v), y2: y(v) }),
      svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, short(v))]),
    ...(bare ? [] : ticks(x0, x1, 6)).map((v) => svg("text", { x: x(v), y: height - 8, "text-anchor": "middle" }, short(v))),
  ].flat();
  return { x, y, axes, width, height, left, right, top, bottom };
}

const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");

// lines: [{name, points: [[x, y, low?, high?]], colour}]; bases: [{name, y}]
export function lines(title, series, bases = [], options = {}) {
  const all = series.flatMap((s) => s.points);
  if (!all.length) return null;
  const f = frame([...all, ...bases.map((b) => [all[0][0], b.y])], options);
  const many = series.some((s) => s.points.length > 40);
  const drawn = series.flatMap((s) => {
    const band = s.points.filter((p) => p[2] !== null && p[2] !== undefined);
    return [
      band.length > 1 ? svg("path", { fill: s.colour, opacity: 0.16,
        d: path([...band.map((p) => [f.x(p[0]), f.y(p[2])]), ...band.slice().reverse().map((p) => [f.x(p[0]), f.y(p[3])])]) + "Z" }) : null,
      svg("path", { fill: "none", stroke: s.colour, "stroke-width": 1.8, d: path(s.points.map((p) => [f.x(p[0]), f.y(p[1])])) }),
      ...(many ? [] : s.points.map((p) => svg("circle", { cx: f.x(p[0]), cy: f.y(p[1]), r: 2.8, fill: s.colour },
        svg("title", {}, `${s.name}, ${short(p[0])}: ${short(p[1])}${p[2] === null || p[2] === undefined ? "" : ` [${short(p[2])}, ${short(p[3])}]`}`)))),
    ];
  });
  const dashed = bases.flatMap((b) => [svg("line", { class: "base", x1: f.left, x2: f.width - f.right, y1: f.y(b.y), y2: f.y(b.y) }),
    svg("text", { x: f.width - f.right, y: f.y(b.y) - 4, "text-anchor": "end" }, b.name)]);
  return svg("svg", { viewBox: `0 0 ${f.width} ${f.height}`, role: "img", "aria-label": title }, ...f.axes, ...dashed, ...drawn);
}

// points: [{x, y, low, high, name}], start: {x, y, low}; what is right of nothing and above the start's interval may ship
export function scatter(title, points, start, words, options = {}) {
  const all = [...points.map((p) => [p.x, p.y, p.low ?? p.y, p.high ?? p.y]), ...(start ? [[start.x, start.y, start.low, start.high]] : [])];
  if (!all.length) return null;
  const f = frame(all.concat([[0, all[0][1]]]), { width: 640, height: 260, ...options });
  const zone = start ? [svg("rect", { class: "zone", x: f.left, y: f.top, width: Math.max(0, f.x(start.x) - f.left), height: Math.max(0, f.y(start.high) - f.top) }),
    svg("text", { x: f.left + 6, y: f.top + 14 }, words.ship),
    svg("rect", { x: f.x(start.x) - 4, y: f.y(start.y) - 4, width: 8, height: 8, fill: "var(--dim)" }, svg("title", {}, words.start)),
    svg("text", { x: f.x(start.x) - 8, y: f.y(start.y) + 4, "text-anchor": "end" }, words.start)] : [];
  const dots = points.flatMap((p) => [
    p.low === null || p.low === undefined ? null : svg("line", { x1: f.x(p.x), x2: f.x(p.x), y1: f.y(p.low), y2: f.y(p.high), stroke: "var(--c0)", opacity: 0.5 }),
    svg("circle", { cx: f.x(p.x), cy: f.y(p.y), r: 4, fill: "var(--c0)" }, svg("title", {}, `${p.name}: ${short(p.y)}, ${short(p.x)}`)),
    svg("text", { x: f.x(p.x) + 7, y: f.y(p.y) + 4 }, p.name)]);
  return svg("svg", { viewBox: `0 0 ${f.width} ${f.height}`, role: "img", "aria-label": title }, ...f.axes, ...zone, ...dots);
}

// events: [{n, at, shares: {version: share}, evidence}]; one column per event, so that a burst of events can be read
export function river(title, events, versions, { width = 900, height = 150 } = {}) {
  const left = 46, wide = (width - left - 10) / Math.max(1, events.length), tall = height - 30;
  const cells = events.flatMap((e, i) => {
    let y = 4;
    return versions.filter((v) => e.shares[v]).map((v) => {
      const high = e.shares[v] * tall;
      const cell = svg("rect", { x: left + i * wide, y, width: wide + 0.5, height: high, fill: colour(Number(v)) },
        svg("title", {}, `${e.n} ${e.type}: @${v} ${(100 * e.shares[v]).toFixed(0)} %`));
      const said = wide > 34 && high > 14 ? svg("text", { x: left + (i + 0.5) * wide, y: y + high / 2 + 4, "text-anchor": "middle", style: "fill: var(--paper)" }, `@${v}`) : null;
      y += high;
      return said ? [cell, said] : [cell];
    }).flat();
  });
  const every = Math.ceil(events.length / 14);
  const names = events.map((e, i) => i % every ? null : svg("text", { x: left + (i + 0.5) * wide, y: height - 10, "text-anchor": "middle" }, String(e.n)));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
    svg("text", { x: left - 6, y: 14, "text-anchor": "end" }, "100 %"), svg("text", { x: left - 6, y: tall + 4, "text-anchor": "end" }, "0"), ...cells, ...names);
}
