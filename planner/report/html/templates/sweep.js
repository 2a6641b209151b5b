"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const FIRST = 2; // a row: place, variant, then the columns
  const STATUS = FIRST, TIME = FIRST + 1, BOUND = FIRST + 2, GPUS = FIRST + 6;
  const ROWS = 50; // of the table at first
  const NS = "http://www.w3.org/2000/svg";
  const { dimensions, variants, rows, categories, columns, colours, dashes } = data;
  const sizes = dimensions.map((d) => d.labels.length);
  const open = sizes.map((n, i) => [n, i]).filter(([n]) => n > 1).sort((a, b) => b[0] - a[0]).map(([, i]) => i);

  const redraws = [];
  // --- elements -------------------------------------------------------------------------------
  const node = (name, attributes = {}, text = null) => {
    const found = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (text !== null) found.textContent = text;
    return found;
  };
  const shape = (name, attributes = {}, text = null) => {
    const found = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (text !== null) found.textContent = text;
    return found;
  };
  const chart = (box, width, height, title) => {
    const svg = shape("svg", { class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": title });
    box.replaceChildren(svg);
    return svg;
  };
  const letter = (i) => (i < 26 ? "" : String.fromCharCode(64 + Math.floor(i / 26))) + String.fromCharCode(65 + (i % 26));
  const colour = (i) => colours[i % colours.length];

  // --- numbers --------------------------------------------------------------------------------
  const seconds = (s) => s === null ? "–" : s >= 1 ? `${s.toFixed(3)} s` : s >= 1e-3 ? `${(s * 1e3).toFixed(3)} ms` : `${(s * 1e6).toFixed(0)} µs`;
  const percent = (x) => x === null ? "–" : `${(100 * x).toFixed(Math.abs(x) < 0.1 ? 2 : 1)} %`;
  const margin = (x) => x === null ? "" : x === 0 ? "tie" : x < 0.0005 ? "<0.1 %" : `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`;
  const shown = (value, column) => {
    if (value === null || value === undefined) return "";
    if (column.unit === "%") return percent(value);
    if (column.unit === "GiB") return `${(value / 2 ** 30).toFixed(1)} GiB`;
    if (column.unit === "s") return seconds(value);
    if (column.unit === "1/s") return Math.round(value).toLocaleString("en");
    return typeof value === "number" ? value.toLocaleString("en") : value;
  };
  const gap = (row) => row[TIME] !== null && row[BOUND] !== null ? Math.max(0, row[TIME] - row[BOUND]) / row[TIME] : null;

  // --- the tip --------------------------------------------------------------------------------
  const tip = document.getElementById("tip");
  const tell = (target, build) => {
    const show = () => {
      tip.replaceChildren(...build());
      tip.hidden = false;
      const at = target.getBoundingClientRect();
      const left = Math.min(Math.max(8, at.left + at.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
      const above = at.top - tip.offsetHeight - 8;
      tip.style.left = `${Math.max(4, left) + scrollX}px`;
      tip.style.top = `${(above > 0 ? above : at.bottom + 8) + scrollY}px`;
    };
    const hide = () => { tip.hidden = true; };
    target.setAttribute("tabindex", "0");
    target.addEventListener("pointerenter", show);
    target.addEventListener("click", show);
    target.addEventListener("focus", show);
    target.addEventListener("pointerleave", hide);
    target.addEventListener("blur", hide);
  };
  addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  const where = (place) => place.map((p, i) => `${dimensions[i].title}: ${dimensions[i].labels[p]}`).join("; ");
  const equal = (a, b) => a.every((value, i) => value === b[i]);
  const atPlace = (place) => {
    const table = node("table");
    for (const row of rows.filter((r) => equal(r[0], place))) {
      const line = node("tr");
      const words = [variants[row[1]], row[TIME] === null ? row[STATUS] : seconds(row[TIME]),
        row[TIME] === null ? "" : `gap ${percent(gap(row))}`,
        [row[FIRST + 7], row[FIRST + 8], row[FIRST + 9]].filter(Boolean).join(", ")];
      for (const word of words) line.append(node("td", {}, word));
      table.append(line);
    }
    return table;
  };

  // --- controls -------------------------------------------------------------------------------
  const select = (parent, name, options, value, change) => {
    const label = node("label", {}, `${name} `);
    const list = node("select");
    options.forEach(([key, text]) => list.append(node("option", { value: key }, text)));
    list.value = value;
    list.addEventListener("change", () => change(list.value));
    label.append(list);
    parent.append(label);
  };
  const axisOptions = () => open.map((i) => [i, dimensions[i].title]);
  const sliceSelects = (parent, state, without, all, redraw) => {
    for (const i of open.filter((d) => !without.includes(d))) {
      const options = dimensions[i].labels.map((label, p) => [p, label]);
      if (all && !dimensions[i].workload) options.unshift([-1, "all"]);
      select(parent, dimensions[i].title, options, state.slice[i], (v) => { state.slice[i] = Number(v); redraw(); });
    }
  };
  const inSlice = (place, state, without) => place.every((p, i) => without.includes(i) || state.slice[i] === -1 || state.slice[i] === p);

  // --- patterns and marks ---------------------------------------------------------------------
  const MARKS = [
    (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    (r) => `M${-r} ${-r}H${r}V${r}H${-r}Z`,
    (r) => `M0 ${-1.2 * r}L${1.2 * r} ${r}H${-1.2 * r}Z`,
    (r) => `M0 ${-1.4 * r}L${1.4 * r} 0L0 ${1.4 * r}L${-1.4 * r} 0Z`,
    (r) => `M0 ${1.2 * r}L${1.2 * r} ${-r}H${-1.2 * r}Z`,
    (r) => `M${-r / 2} ${-r}h${r}v${r / 2}h${r / 2}v${r}h${-r / 2}v${r / 2}h${-r}v${-r / 2}h${-r / 2}v${-r}h${r / 2}Z`,
    (r) => `M${-r} ${-r}L0 ${-r / 2}L${r} ${-r}L${r / 2} 0L${r} ${r}L0 ${r / 2}L${-r} ${r}L${-r / 2} 0Z`,
    (r) => `M0 ${-1.5 * r}L${r / 2} ${-r / 2}L${1.5 * r} 0L${r / 2} ${r / 2}L0 ${1.5 * r}L${-r / 2} ${r / 2}L${-1.5 * r} 0L${-r / 2} ${-r / 2}Z`,
  ];
  const mark = (i, x, y, r = 5) => shape("path", { class: "point", d: MARKS[i % MARKS.length](r), transform: `translate(${x} ${y})`, fill: colour(i) });
  const PATTERNS = ["", "M0 10L10 0", "M5 5h.1", "M0 0L10 10", "M0 0L10 10M10 0L0 10", "M0 5H10", "M3 5a2 2 0 1 0 4 0a2 2 0 1 0 -4 0", "M5 0V10"];
  const definePatterns = (svg, prefix) => {
    const defs = shape("defs");
    PATTERNS.forEach((d, i) => {
      if (!d) return;
      const pattern = shape("pattern", { id: `${prefix}${i}`, width: 10, height: 10, patternUnits: "userSpaceOnUse" });
      pattern.append(shape("path", { d, stroke: "#111", "stroke-opacity": 0.45, "stroke-width": i === 2 ? 3 : 1.2, "stroke-linecap": "round", fill: "none" }));
      defs.append(pattern);
    });
    svg.append(defs);
  };
  const patterned = (svg, prefix, i, box) => {
    if (PATTERNS[i % PATTERNS.length]) svg.append(shape("rect", { ...box, fill: `url(#${prefix}${i % PATTERNS.length})`, "pointer-events": "none" }));
  };
  const variantLegend = (box, used) => {
    box.replaceChildren(...used.map((v) => {
      const item = node("span");
      const key = shape("svg", { class: "key", viewBox: "0 0 22 16", "aria-hidden": "true" });
      key.append(shape("line", { x1: 0, x2: 22, y1: 8, y2: 8, stroke: colour(v), "stroke-width": 2.5, "stroke-dasharray": dashes[v % dashes.length] }), mark(v, 11, 8, 4));
      item.append(key, variants[v]);
      return item;
    }));
  };

  // --- phase diagrams -------------------------------------------------------------------------
  const phase = () => {
    const section = document.getElementById("phase");
    if (!categories.length || !open.length) { section.hidden = true; return; }
    const [controls, legend, box] = [".controls", ".legend", ".chart-box"].map((s) => section.querySelector(s));
    const state = { category: 0, x: open[0], y: open.length > 1 ? open[1] : -1, slice: sizes.map(() => 0) };
    const draw = () => {
      controls.replaceChildren();
      select(controls, "winner by", categories.map((c, i) => [i, c.title]), state.category, (v) => { state.category = Number(v); draw(); });
      if (open.length > 1) {
        select(controls, "across", axisOptions(), state.x, (v) => { if (Number(v) === state.y) state.y = state.x; state.x = Number(v); draw(); });
        select(controls, "up", axisOptions(), state.y, (v) => { if (Number(v) === state.x) state.x = state.y; state.y = Number(v); draw(); });
      }
      const used = [state.x, state.y];
      sliceSelects(controls, state, used, false, draw);
      const category = categories[state.category];
      const cells = category.cells.filter((c) => inSlice(c.place, state, used));
      const present = category.labels.map((_, i) => cells.filter((c) => c.label === i).length);
      const xs = ticksOf(dimensions[state.x]), ys = state.y < 0 ? [""] : ticksOf(dimensions[state.y]);
      const left = state.y < 0 ? 12 : 34 + 7.2 * Math.max(...ys.map((y) => Math.min(y.length, 22)));
      const w = Math.max(12, Math.min(110, (box.clientWidth - left - 12) / xs.length)), h = Math.max(12, Math.min(64, 520 / ys.length));
      const tilt = xs.some((x) => x.length * 7.2 > w - 4);
      const foot = tilt ? 30 + 5.2 * Math.max(...xs.map((x) => Math.min(x.length, 22))) : 44;
      const width = left + w * xs.length + (tilt ? 30 : 8), height = 26 + h * ys.length + foot;
      const svg = chart(box, width, height, `Phase diagram: ${category.title} with the shortest iteration`);
      definePatterns(svg, "p");
      if (state.y >= 0) svg.append(shape("text", { x: 4, y: 14, class: "soft" }, `${dimensions[state.y].title} ↑`));
      const [everyX, everyY] = [Math.ceil((tilt ? 22 : 1) / w), Math.ceil(13 / h)];
      ys.forEach((y, j) => j % everyY || svg.append(shape("text", { x: left - 8, y: 26 + h * (ys.length - j - 0.5) + 4, class: "end" }, cut(y))));
      xs.forEach((x, i) => {
        if (i % everyX) return;
        const at = left + w * (i + 0.5), below = 26 + h * ys.length + 16;
        svg.append(shape("text", tilt ? { x: at, y: below, transform: `rotate(35 ${at} ${below})` } : { x: at, y: below, class: "middle" }, cut(x)));
      });
      svg.append(shape("text", { x: left + (w * xs.length) / 2, y: height - 6, class: "middle soft" }, `${dimensions[state.x].title} →`));
      const found = new Map(cells.map((c) => [`${c.place[state.x]},${state.y < 0 ? 0 : c.place[state.y]}`, c]));
      xs.forEach((_, i) => ys.forEach((_y, j) => {
        const frame = { x: left + w * i, y: 26 + h * (ys.length - 1 - j), width: w, height: h };
        const cell = found.get(`${i},${j}`);
        const place = state.slice.map((s, d) => (d === state.x ? i : d === state.y ? j : s));
        if (!cell) {
          const empty = shape("rect", { ...frame, class: "cell none" });
          svg.append(empty, shape("text", { x: frame.x + w / 2, y: frame.y + h / 2 + 4, class: "middle soft" }, "–"));
          tell(empty, () => [node("b", {}, "no plan"), node("div", { class: "soft" }, where(place)), atPlace(place)]);
          return;
        }
        const strength = cell.margin === null ? 1 : 0.35 + 0.65 * Math.min(1, cell.margin / 0.1);
        svg.append(shape("rect", { ...frame, fill: "#fff" }));
        const rect = shape("rect", { ...frame, class: "cell", fill: colour(cell.label), "fill-opacity": strength.toFixed(3), "data-label": category.labels[cell.label] });
        svg.append(rect);
        patterned(svg, "p", cell.label, frame);
        const roomy = h >= 38 && w >= 44, small = w < 22 || h < 18;
        const words = (small ? "" : letter(cell.label)) + (cell.proven ? "" : "?");
        svg.append(shape("text", { x: frame.x + w / 2, y: frame.y + h / 2 + (roomy ? -2 : 5), class: small ? "in small" : "in big" }, words));
        if (roomy) svg.append(shape("text", { x: frame.x + w / 2, y: frame.y + h / 2 + 14, class: "in small" }, margin(cell.margin)));
        rect.setAttribute("aria-label", `${category.labels[cell.label]}, margin ${margin(cell.margin)}; ${where(place)}`);
        tell(rect, () => [
          node("b", {}, category.labels[cell.label]),
          node("div", {}, cell.rival === null ? "nothing else was found here" : cell.margin === 0 ? `as fast as ${category.labels[cell.rival]}` : `${category.labels[cell.rival]} takes ${percent(cell.margin)} longer`),
          node("div", {}, cell.proven ? "proven by the bounds" : "not proven: a bound lies below the winner"),
          node("div", { class: "soft" }, where(place)), atPlace(place)]);
      }));
      legend.replaceChildren(...category.labels.map((label, i) => [label, i]).filter(([, i]) => present[i]).map(([label, i]) => {
        const item = node("span");
        const key = shape("svg", { class: "key", viewBox: "0 0 22 16", "aria-hidden": "true" });
        key.append(shape("rect", { width: 22, height: 16, fill: colour(i) }));
        patterned(key, "p", i, { width: 22, height: 16 });
        item.append(key, node("b", {}, `${letter(i)} `), `${label} (${present[i]} of ${cells.length})`);
        return item;
      }));
    };
    draw();
    redraws.push(draw);
  };
  const ticksOf = (d) => (d.numbers ? d.numbers.map((v) => String(Number(v.toPrecision(4)))) : d.labels);
  const cut = (text) => (text.length > 22 ? `${text.slice(0, 21)}…` : text);

  // --- axes of curves and fronts --------------------------------------------------------------
  const scale = (values, from, to) => {
    let low = Math.min(...values), high = Math.max(...values);
    const log = low > 0 && high / low >= 8;
    if (low === high) { low *= 0.9; high = high * 1.1 || 1; }
    const place = log ? (v) => Math.log(v / low) / Math.log(high / low) : (v) => (v - low) / (high - low);
    return { low, high, log, at: (v) => from + (to - from) * place(v) };
  };
  const ticks = (low, high, log) => {
    if (log) {
      const found = [];
      for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
        for (const m of high / low > 1e3 ? [1] : [1, 2, 5]) if (m * 10 ** e >= low && m * 10 ** e <= high) found.push(m * 10 ** e);
      return found;
    }
    const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const found = [];
    for (let v = Math.ceil(low / step) * step; v <= high * (1 + 1e-9); v += step) found.push(v);
    return found;
  };
  const plain = (v) => Number(v.toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 6 });
  const H = 380, LEFT = 62, RIGHT = 12, TOP = 14, BOTTOM = 52;
  const widthOf = (box) => Math.max(320, Math.min(860, box.clientWidth));
  const timeAxis = (svg, W, low, high) => {
    const pad = (high - low) * 0.06 || high * 0.1 || 1;
    const y = { low: Math.max(0, low - pad), high: high + pad };
    const at = (v) => H - BOTTOM - ((H - BOTTOM - TOP) * (v - y.low)) / (y.high - y.low);
    const unit = high >= 1 ? [1, "s"] : high >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    for (const v of ticks(y.low * unit[0], y.high * unit[0], false)) {
      svg.append(shape("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: at(v / unit[0]), y2: at(v / unit[0]) }), shape("text", { class: "end", x: LEFT - 8, y: at(v / unit[0]) + 4 }, plain(v)));
    }
    const middle = (H - BOTTOM + TOP) / 2;
    svg.append(shape("text", { class: "middle soft", x: 16, y: middle, transform: `rotate(-90 16 ${middle})` }, `iteration time (${unit[1]})`));
    svg.append(shape("line", { class: "axis", x1: LEFT, x2: LEFT, y1: TOP, y2: H - BOTTOM }), shape("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }));
    return at;
  };
  const tickX = (svg, x, text) => svg.append(shape("line", { class: "axis", x1: x, x2: x, y1: H - BOTTOM, y2: H - BOTTOM + 5 }), shape("text", { class: "middle", x, y: H - BOTTOM + 20 }, text));
  const rowTip = (row) => [node("b", {}, variants[row[1]]), node("div", {}, `${seconds(row[TIME])}, lower bound ${seconds(row[BOUND])}, gap ${percent(gap(row))}`),
    node("div", {}, `${(row[GPUS] ?? 0).toLocaleString("en")} GPUs; ${[row[FIRST + 7], row[FIRST + 8], row[FIRST + 9]].filter(Boolean).join(", ")}`), node("div", { class: "soft" }, where(row[0]))];
  const nothing = (box) => box.replaceChildren(node("p", { class: "soft" }, "No plan was found here."));

  // --- curves ---------------------------------------------------------------------------------
  const curves = () => {
    const section = document.getElementById("curves");
    if (!open.length) { section.hidden = true; return; }
    const [controls, legend, box] = [".controls", ".legend", ".chart-box"].map((s) => section.querySelector(s));
    const state = { x: open[0], slice: sizes.map(() => 0) };
    const draw = () => {
      controls.replaceChildren();
      if (open.length > 1) select(controls, "across", axisOptions(), state.x, (v) => { state.x = Number(v); draw(); });
      sliceSelects(controls, state, [state.x], false, draw);
      const chosen = rows.filter((r) => r[TIME] !== null && inSlice(r[0], state, [state.x]));
      const used = variants.map((_, v) => v).filter((v) => chosen.some((r) => r[1] === v));
      variantLegend(legend, used);
      if (!chosen.length) { nothing(box); return; }
      const W = widthOf(box), svg = chart(box, W, H, "Iteration time of every variant");
      const lows = chosen.map((r) => (r[BOUND] === null ? r[TIME] : Math.min(r[TIME], r[BOUND])));
      const at = timeAxis(svg, W, Math.min(...lows), Math.max(...chosen.map((r) => r[TIME])));
      const { numbers, title } = dimensions[state.x], labels = ticksOf(dimensions[state.x]);
      const inner = [LEFT + 30, W - RIGHT - 30];
      const ruler = numbers ? scale(numbers, ...inner) : null;
      const x = (i) => (ruler ? ruler.at(numbers[i]) : inner[0] + ((inner[1] - inner[0]) * i) / Math.max(1, labels.length - 1));
      let last = -Infinity;
      [...labels.keys()].sort((a, b) => x(a) - x(b)).forEach((i) => {
        if (x(i) - last > 14 + 6.8 * cut(labels[i]).length) { tickX(svg, x(i), cut(labels[i])); last = x(i); }
      });
      svg.append(shape("text", { class: "middle soft", x: (LEFT + W - RIGHT) / 2, y: H - 10 }, title + (ruler?.log ? ", logarithmic" : "")));
      used.forEach((v, k) => {
        const line = chosen.filter((r) => r[1] === v).sort((a, b) => x(a[0][state.x]) - x(b[0][state.x]));
        const shift = (k - (used.length - 1) / 2) * 3;
        const spot = (r) => x(r[0][state.x]) + shift;
        svg.append(shape("polyline", { points: line.map((r) => `${spot(r)},${at(r[TIME])}`).join(" "), fill: "none", stroke: colour(v), "stroke-width": 2, "stroke-dasharray": dashes[v % dashes.length] }));
        for (const r of line) {
          if (r[BOUND] !== null && r[BOUND] < r[TIME])
            svg.append(shape("path", { d: `M${spot(r)} ${at(r[TIME])}V${at(r[BOUND])}M${spot(r) - 4} ${at(r[BOUND])}h8`, stroke: colour(v), "stroke-width": 2, fill: "none" }));
          const point = mark(v, spot(r), at(r[TIME]));
          svg.append(point);
          tell(point, () => rowTip(r));
        }
      });
    };
    draw();
    redraws.push(draw);
  };

  // --- time against GPUs ----------------------------------------------------------------------
  const pareto = () => {
    const section = document.getElementById("pareto");
    const usable = rows.filter((r) => r[TIME] !== null && r[GPUS] !== null);
    if (new Set(usable.map((r) => r[GPUS])).size < 2) { section.hidden = true; return; }
    const [controls, legend, box] = [".controls", ".legend", ".chart-box"].map((s) => section.querySelector(s));
    const state = { slice: dimensions.map((d) => (d.workload ? 0 : -1)) };
    const draw = () => {
      controls.replaceChildren();
      sliceSelects(controls, state, [], true, draw);
      const chosen = usable.filter((r) => inSlice(r[0], state, []));
      variantLegend(legend, variants.map((_, v) => v).filter((v) => chosen.some((r) => r[1] === v)));
      if (!chosen.length) { nothing(box); return; }
      const W = widthOf(box), svg = chart(box, W, H, "Iteration time against GPUs");
      const at = timeAxis(svg, W, Math.min(...chosen.map((r) => r[TIME])), Math.max(...chosen.map((r) => r[TIME])));
      const ruler = scale(chosen.map((r) => r[GPUS]), LEFT + 30, W - RIGHT - 30);
      const marks = [...new Set(chosen.map((r) => r[GPUS]))].sort((a, b) => a - b);
      let last = -Infinity;
      for (const g of marks.length <= 9 ? marks : ticks(ruler.low, ruler.high, ruler.log))
        if (ruler.at(g) - last > 20 + 6.8 * plain(g).length) { tickX(svg, ruler.at(g), plain(g)); last = ruler.at(g); }
      svg.append(shape("text", { class: "middle soft", x: (LEFT + W - RIGHT) / 2, y: H - 10 }, `GPUs in use${ruler.log ? ", logarithmic" : ""}`));
      let best = Infinity;
      const front = [...chosen].sort((a, b) => a[GPUS] - b[GPUS] || a[TIME] - b[TIME]).filter((r) => r[TIME] < best && (best = r[TIME], true));
      const steps = front.map((r, i) => `${i ? `H${ruler.at(r[GPUS])}V` : `M${ruler.at(r[GPUS])} `}${at(r[TIME])}`).join("");
      svg.append(shape("path", { d: `${steps}H${W - RIGHT - 10}`, class: "front axis", fill: "none", style: "stroke-width:2" }));
      for (const r of chosen) {
        const point = mark(r[1], ruler.at(r[GPUS]), at(r[TIME]), front.includes(r) ? 6 : 3.5);
        svg.append(point);
        tell(point, () => rowTip(r));
      }
    };
    draw();
    redraws.push(draw);
  };

  // --- the table ------------------------------------------------------------------------------
  const table = () => {
    const section = document.getElementById("table");
    const [head, body, input, count, more] = ["thead", "tbody", "input", ".count", ".more"].map((s) => section.querySelector(s));
    const fields = [
      ...dimensions.map((d, i) => ({ title: d.title, get: (r) => (d.numbers ? d.numbers[r[0][i]] : r[0][i]), text: (r) => d.labels[r[0][i]], number: Boolean(d.numbers) })),
      { title: "variant", get: (r) => variants[r[1]], text: (r) => variants[r[1]], number: false },
      ...columns.map((c, i) => ({ title: c.title, get: (r) => r[FIRST + i], text: (r) => shown(r[FIRST + i], c), number: !c.text })),
    ].filter((f) => rows.some((r) => f.text(r) !== ""));
    const state = { by: -1, up: true, most: ROWS, filter: "" };
    const compare = (a, b) => {
      const [x, y] = [a, b].map(fields[state.by].get);
      if (x === null || y === null) return (x === null) - (y === null);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en");
      return state.up ? order : -order;
    };
    const draw = () => {
      const words = state.filter.toLowerCase();
      let chosen = words ? rows.filter((r) => fields.some((f) => String(f.text(r)).toLowerCase().includes(words))) : [...rows];
      if (state.by >= 0) chosen.sort(compare);
      body.replaceChildren(...chosen.slice(0, state.most).map((r) => {
        const line = node("tr");
        for (const f of fields) line.append(node("td", { class: f.number ? "n" : f.title === "reason" ? "reason" : "" }, f.text(r)));
        return line;
      }));
      count.textContent = `${chosen.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
      more.hidden = chosen.length <= state.most;
      [...head.querySelectorAll("th")].forEach((th, i) => {
        if (i === state.by) th.setAttribute("aria-sort", state.up ? "ascending" : "descending"); else th.removeAttribute("aria-sort");
        th.querySelector("span").textContent = i === state.by ? (state.up ? " ▲" : " ▼") : "";
      });
    };
    const line = node("tr");
    fields.forEach((f, i) => {
      const th = node("th", { scope: "col", class: f.number ? "n" : "" });
      const button = node("button", { type: "button" }, f.title);
      button.append(node("span", { "aria-hidden": "true" }));
      button.addEventListener("click", () => { state.up = state.by === i ? !state.up : true; state.by = i; draw(); });
      th.append(button);
      line.append(th);
    });
    head.append(line);
    input.addEventListener("input", () => { state.filter = input.value; state.most = ROWS; draw(); });
    more.addEventListener("click", () => { state.most += 10 * ROWS; draw(); });
    draw();
  };

  phase();
  curves();
  pareto();
  table();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) redraws.forEach((draw) => draw());
    width = innerWidth;
  });
})();
