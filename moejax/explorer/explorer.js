// Code of the `moejax explore` page. PROGRAMS, designOf, variablesOf (compiled from Python) and the data precede it.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const { structure: STRUCTURE, values: NAMES, within: WITHIN } = DATA;
const KNOBS = Object.fromEntries(DATA.knobs.map((knob) => [knob.name, knob]));
const CELLS = 512, BISECTIONS = 60, HALVINGS = 45; // equal to those of moejax.laws.search and Python's practical ranges
const PRINTS_AS_ONE = 0.005; // largest relative excess that prints as a factor of 1
const MOVES = 1e-9; // nats; a law does not read a knob that changes the loss by less
const DECADES = 3, POINTS = 81, BUDGETS = 41;
const VALLEY = 0.35; // nats above its minimum that a chart along a knob shows
const element = (id) => document.getElementById(id);

// ---- the model: a law and the values of a design ----

const asValues = (array) => Object.fromEntries(NAMES.map((name, i) => [name, array[i] ?? Infinity]));
const START = { law: DATA.start.law, model: "", values: asValues(DATA.start.values) };
let state = START;

const asArray = (values) => NAMES.map((name) => values[name]);
const tokensOf = (values) => values.flops / (6 * values.params_active);
const program = (law) => PROGRAMS[DATA.laws[law].program];
const answers = (law, values) => program(law).answers(DATA.laws[law].coefficients, asArray(values));
const loss = (law, values) => answers(law, values)[0];
const denseOf = (values) => ({ ...values, expansion: 1, expert_expansion: 1 });
const design = (values) => Object.fromEntries(FIELDS.map((name, i) => [name, designOf(asArray(values))[i]]));

/** Return the values after a slider moved. A change of size keeps the FLOPs; a change of tokens changes them. */
function moved(values, name, value) {
  return name === "tokens" ? { ...values, flops: 6 * values.params_active * value } : { ...values, [name]: value };
}

const scaled = (knob, value) => (knob.linear ? value : Math.log(value));
const plain = (knob, z) => (knob.linear ? z : Math.exp(z));

/** Return the best value of a knob with the others fixed, and its practical range, both by bisection. */
function optimum(law, values, name, withRange = true) {
  const knob = KNOBS[name], index = STRUCTURE.indexOf(name);
  const [low, high] = knob.search.map((end) => scaled(knob, end));
  const at = (z) => ({ ...values, [name]: plain(knob, z) });
  const height = (z) => loss(law, at(z));
  const slope = (z) => {
    const there = at(z);
    const rise = program(law).slopes(DATA.laws[law].coefficients, asArray(there))[index];
    return knob.linear ? rise : rise * there[name];
  };
  const grid = Array.from({ length: CELLS + 1 }, (_, i) => low + (high - low) * (i / CELLS));
  const lowest = d3.minIndex(grid, height);
  let left = grid[Math.max(lowest - 1, 0)], right = grid[Math.min(lowest + 1, CELLS)];
  for (let i = 0; i < BISECTIONS; i++) {
    const middle = (left + right) / 2;
    if (slope(middle) > 0) right = middle;
    else left = middle;
  }
  const inside = (left + right) / 2, end = height(high) < height(low) ? high : low;
  const best = height(end) <= height(inside) ? end : inside, least = height(best);
  if (!withRange) return { best: plain(knob, best), least };
  const edge = (outer) => {
    if (height(outer) <= least + WITHIN) return outer;
    let kept = best, risen = outer;
    for (let i = 0; i < HALVINGS; i++) {
      const middle = (kept + risen) / 2;
      if (height(middle) <= least + WITHIN) kept = middle;
      else risen = middle;
    }
    return kept;
  };
  const near = (a, b) => Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b), 1e-300);
  const from = plain(knob, edge(low)), to = plain(knob, edge(high)), value = plain(knob, best);
  const [first, last] = knob.search;
  const atLeast = knob.least && Math.abs(value - first) <= 1e-6;
  const endless = !atLeast && ((near(value, first) && near(from, first)) || (near(value, last) && near(to, last)));
  return { best: value, least, low: from, high: to, endless, open: near(to, last) };
}

/** Return the prediction interval of a new run from a fit's covariance; null without a covariance. */
function rangeOf(law, values) {
  const known = DATA.laws[law].uncertainty;
  if (!known || known.why_none) return null;
  const pulls = program(law).pulls(DATA.laws[law].coefficients, asArray(values));
  const contrast = known.axes.map((axis) => d3.sum(axis, (step, i) => step * pulls[known.coefficients[i]]));
  const fromCoefficients = d3.sum(contrast, (one, i) => (one * known.deviations[i]) ** 2);
  const scatter = known.scatter ** 2, total = Math.max(fromCoefficients + scatter, 1e-300);
  const own = known.leverages.length ? satterthwaite(known.leverages, contrast) : known.degrees_of_freedom;
  const each = fromCoefficients ** 2 / own + scatter ** 2 / known.degrees_of_freedom;
  const reach = studentsT(Math.max(total ** 2 / Math.max(each, 1e-300), 1)) * Math.sqrt(total);
  const middle = loss(law, values);
  return Number.isFinite(reach) ? [middle * Math.exp(-reach), middle * Math.exp(reach)] : null;
}

/** Return the degrees of freedom of a contrast's variance, like moejax.fit.uncertainty.uncertainty.satterthwaite (tested). */
function satterthwaite(leverages, contrast) {
  const axes = contrast.length, dot = (a, b) => d3.sum(a, (one, i) => one * b[i]);
  const zeros = () => Array.from({ length: axes }, () => new Array(axes).fill(0));
  const times = (a, b) => a.map((row) => Array.from({ length: axes }, (_, j) => d3.sum(row, (x, k) => x * b[k][j])));
  const outer = (into, one, other, scale = 1) => one.forEach((x, i) => other.forEach((y, j) => (into[i][j] += scale * x * y)));
  const WHOLE = 3e-6, lost = zeros();
  const draws = leverages.map((rows) => {
    const within = zeros(), taken = zeros();
    for (const row of rows) {
      const rest = 1 - dot(row, row), stretch = rest > WHOLE ? 1 / Math.sqrt(rest) : 0;
      if (!stretch) outer(lost, row, row);
      outer(within, row, row, stretch * stretch);
      outer(taken, row, row, stretch);
    }
    return { within, taken };
  });
  const others = axes - d3.sum(lost, (row, i) => row[i]);
  if (others <= WHOLE) return 1;
  let own = 0, both = 0, mean = 0;
  const back = zeros(), backMean = zeros();
  for (const { within, taken } of draws) {
    const transposed = taken[0].map((_, j) => taken.map((row) => row[j]));
    const twice = times(taken, taken), left = within.map((row, i) => row.map((x, j) => x - 2 * twice[i][j]));
    const u = transposed.map((column) => dot(column, contrast));
    const square = dot(contrast, within.map((row) => dot(row, contrast)));
    own += square ** 2 - 2 * square * dot(u, u);
    both += dot(contrast, times(within, left).map((row) => dot(row, contrast)));
    mean += d3.sum(within, (row, i) => dot(row, left[i]));
    outer(back, u, u);
    times(transposed, taken).forEach((row, i) => row.forEach((x, j) => (backMean[i][j] += x)));
  }
  own += d3.sum(back, (row) => dot(row, row));
  both += d3.sum(back, (row, i) => dot(row, backMean[i]));
  mean += d3.sum(backMean, (row) => dot(row, row));
  const share = dot(contrast, lost.map((row) => dot(row, contrast))) / others;
  const size = own + 2 * share * both + share ** 2 * mean, trace = dot(contrast, contrast);
  return trace > 0 && size > 0 ? Math.max(trace ** 2 / size, 1) : 1;
}

function studentsT(degreesOfFreedom) {
  const [known, reaches] = DATA.students_t, last = known.length - 1;
  const i = Math.min(Math.max(d3.bisectRight(known, degreesOfFreedom) - 1, 0), last - 1);
  // Student's t is nearly linear in 1 / degrees of freedom.
  const share = (1 / degreesOfFreedom - 1 / known[i]) / (1 / known[i + 1] - 1 / known[i]);
  return reaches[i] + Math.min(Math.max(share, 0), 1) * (reaches[i + 1] - reaches[i]);
}

// ---- formatting ----

function size(value, digits = 3) {
  if (value === Infinity) return "no limit";
  for (const [letter, unit] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["K", 1e3]])
    if (value >= unit && value < 1e16) return `${+(value / unit).toPrecision(digits)}${letter}`;
  return short(value, digits);
}
function short(value, digits = 3) {
  if (Math.abs(value) < 1e6) return String(+value.toPrecision(digits));
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e+");
  return `${+mantissa}e${exponent}`;
}
const COUNTED = ["params_active", "params_total", "tokens", "unique_tokens"];
const written = (name, value) => (COUNTED.includes(name) ? size(value) : short(value));
const words = (name) => name.replaceAll("_", " ");

function beyond(law, values) {
  const found = variablesOf(asArray(values));
  return Object.entries(DATA.laws[law].fitted).flatMap(([name, [low, high]]) => {
    const value = found[VARIABLES.indexOf(name)];
    if (value === undefined) return [];
    if (value > high * (1 + PRINTS_AS_ONE)) return [`${words(name)} ${short(value / high)}× above`];
    return value < low * (1 - PRINTS_AS_ONE) ? [`${words(name)} ${short(low / value)}× below`] : [];
  });
}

function command(law, values) {
  const one = DATA.laws[law], point = design(values);
  const read = FIELDS.filter((name) => one.inputs.includes(name) || (name === "params_embedding" && values.embedding_share));
  return ["moejax predict", one.command, ...read.map((n) => `--${n.replaceAll("_", "-")} ${+point[n].toPrecision(12)}`)].join(" ");
}

/** Return the command that builds the nearest model in whole numbers and writes its config.py. */
function buildCommand(law, values) {
  const limit = (value) => +value.toPrecision(4);
  const sizes = `--params-active ${limit(values.params_active)} --params-total ${limit(design(values).params_total)}`;
  return `moejax design ${DATA.laws[law].command} --flops ${limit(values.flops)} ${sizes} --out design`;
}

const LEVERAGE = Object.keys(DATA.laws).find((key) => "efficiency_leverage" in DATA.laws[key].outputs);
const LOSSES = Object.keys(DATA.laws).filter((key) => "loss" in DATA.laws[key].outputs);

// ---- links: the state follows # in the address, so links also work for local files ----

function linkOf(now) {
  const like = now.model ? { ...START.values, ...sizesOf(now.model) } : START.values, query = new URLSearchParams();
  if (now.law !== START.law) query.set("law", now.law);
  if (now.model) query.set("model", now.model);
  for (const name of NAMES) if (now.values[name] !== like[name]) query.set(name, String(now.values[name]).replace("e+", "e"));
  return `#${query.toString().replaceAll("%3A", ":")}`;
}

function sizesOf(model) {
  const values = asValues(DATA.models[model]);
  return Object.fromEntries([...STRUCTURE, "embedding_share"].map((name) => [name, values[name]]));
}

function parseNumber(text) {
  const grouped = /^\d{1,3}(,\d{3})+(\.\d+)?[KMBGT]?$/i.test(text) ? text.replaceAll(",", "") : text;
  const match = /^(\d+\.?\d*(?:e[+-]?\d+)?)([KMBGT]?)$/i.exec(grouped);
  if (!match) return text === "Infinity" || text === "inf" ? Infinity : NaN;
  return Number(match[1]) * { "": 1, K: 1e3, M: 1e6, B: 1e9, G: 1e9, T: 1e12 }[match[2].toUpperCase()];
}

/** Return the state of a link, and a sentence for every invalid value. The valid values are kept. */
function ofLink(text) {
  const query = new URLSearchParams(text.replace(/^#/, "")), refused = [];
  let now = START;
  const law = query.get("law"), model = query.get("model");
  if (law !== null) {
    if (LOSSES.includes(law)) now = { ...now, law };
    else refused.push(`The link has law=${law}; choose one from the list.`);
  }
  if (model !== null) {
    if (Object.hasOwn(DATA.models, model)) now = { ...now, model, values: { ...now.values, ...sizesOf(model) } };
    else refused.push(`The link has model=${model}; choose one from the list.`);
  }
  for (const name of NAMES) {
    if (!query.has(name)) continue;
    const value = parseNumber(query.get(name)), knob = KNOBS[name] ?? { low: 0, high: 1 };
    if (value >= knob.low && value <= (knob.unlimited ? Infinity : knob.high))
      now = { ...now, values: { ...now.values, [name]: value } };
    else refused.push(`The link has ${name}=${query.get(name)}; give a number between ${short(knob.low)} and ${knob.unlimited ? "Infinity" : short(knob.high)}.`);
  }
  return { now, refused };
}

// ---- charts ----

const COLOR = { mixture: "var(--blue)", dense: "var(--orange)", ink: "var(--ink)" };
const scale = (name, log, domain) => ({ type: log ? "log" : "linear", label: name, domain, ticks: 5, tickFormat: log ? (value) => size(value) : undefined, grid: true });
const line = (points, color, dashed) => Plot.line(points, { x: "x", y: "y", stroke: color, strokeWidth: 2, strokeDasharray: dashed ? "5 4" : undefined, tip: "x" });
const dot = (x, y, options) => Plot.dot([{ x, y }], { x: "x", y: "y", r: 4.5, fill: COLOR.ink, ...options });

function chart(id, title, options) {
  let figure = element(`chart-${id}`);
  if (!figure) {
    figure = document.createElement("figure");
    figure.id = `chart-${id}`;
    figure.append(document.createElement("figcaption"), document.createElement("div"));
    element("charts").append(figure);
  }
  figure.querySelector("figcaption").textContent = title;
  figure.querySelector("div").replaceChildren(
    Plot.plot({ width: 420, height: 260, marginLeft: 48, marginBottom: 38, style: { color: "var(--muted)" }, ariaLabel: title, ...options }),
  );
}

const MOST_RUNS = 2000; // maximum number of drawn runs, evenly spaced in the table
const SHOWN_RUNS = DATA.runs.filter((_, i) => i % Math.ceil(DATA.runs.length / MOST_RUNS) === 0);
const runsNear = (column) => SHOWN_RUNS.filter((run) => run[column] !== undefined && (column === "flops" || Math.abs(run.flops / state.values.flops - 1) < 0.15));
const runDots = (column) => Plot.dot(runsNear(column), { x: column, y: "loss", stroke: COLOR.ink, r: 3, title: (run) => `your run: ${run.loss}` });
const logs = (low, high, count) => Array.from({ length: count }, (_, i) => low * (high / low) ** (i / (count - 1)));
const linear = (low, high, count) => Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));

function drawCompute(law, values, here) {
  const middle = 10 ** Math.round(Math.log10(values.flops)), budgets = logs(middle / 10 ** DECADES, middle * 10 ** DECADES, BUDGETS);
  const along = (start) => budgets.map((flops) => ({ x: flops, y: loss(law, { ...start, flops }) }));
  const best = (start) => budgets.map((flops) => ({ x: flops, y: optimum(law, { ...start, flops }, "params_active", false).least }));
  for (const [id, title, curve] of [["compute", "This size at every budget", along], ["frontier", "The best size at every budget", best]])
    chart(id, title, {
      x: scale("training FLOPs", true), y: scale("loss, nats/token"),
      marks: [line(curve(denseOf(values)), COLOR.dense, true), line(curve(values), COLOR.mixture), runDots("flops"), dot(values.flops, here)],
    });
}

function drawSlice(law, values, here, name, found) {
  const knob = KNOBS[name];
  let [low, high] = [knob.low, knob.high];
  if (name === "params_active") {
    const middle = 10 ** Math.round(Math.log10(values[name]));
    [low, high] = [middle / 100, middle * 100];
  }
  high = Math.max(high, values[name]);
  const grid = (knob.linear ? linear : logs)(low, high, POINTS);
  const points = grid.map((x) => ({ x, y: loss(law, { ...values, [name]: x }) }));
  const beside = grid.map((x) => ({ x, y: loss(law, denseOf(name === "params_active" ? { ...values, [name]: x } : values)) }));
  const kept = found.endless ? [] : points.filter(({ x }) => x >= found.low && x <= found.high);
  const least = d3.min([...points, ...beside], (point) => point.y);
  const top = Math.min(d3.max([...points, ...beside], (point) => point.y), Math.max(least + VALLEY, here + 0.02));
  const inside = (point) => point.y <= top;
  chart(name, `Along ${knob.label}`, {
    x: scale(`${knob.label}, ${knob.letter}`, !knob.linear), y: scale("loss, nats/token", false, [least - 0.06 * (top - least), top]),
    marks: [
      Plot.line(kept, { x: "x", y: "y", stroke: COLOR.mixture, strokeWidth: 7, strokeOpacity: 0.25 }),
      line(beside.filter(inside), COLOR.dense, true), line(points.filter(inside), COLOR.mixture),
      name === "params_active" ? runDots(name) : null,
      found.endless || found.best < low || found.best > high ? null : dot(found.best, found.least, { symbol: "star", fill: COLOR.mixture, r: 6 }),
      dot(values[name], here),
    ],
  });
}

function drawSizes(law, values, here) {
  const middle = 10 ** Math.round(Math.log10(values.params_active)), most = Math.max(64, 10 ** Math.ceil(Math.log10(values.expansion)));
  const at = (active, expansion) => loss(law, { ...values, params_active: active, expansion, expert_expansion: expansion });
  const [left, right] = [middle / 100, middle * 100];
  const least = d3.min(logs(left, right, 41), (active) => d3.min(logs(1, most, 33), (expansion) => at(active, expansion)));
  chart("sizes", "Equal loss at this budget", {
    x: scale("active parameters", true, [left, right]), y: scale("total / active parameters", true, [1, most]),
    marks: [
      Plot.contour({ x1: left, x2: right, y1: 1, y2: most, fill: (x, y) => Math.min(at(x, y), least + VALLEY), stroke: "var(--paper)", pixelSize: 6,
        thresholds: [0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2].map((rise) => least + rise) }),
      dot(values.params_active, values.expansion, { fill: COLOR.dense }),
    ],
    color: { scheme: "viridis", reverse: true, legend: false, domain: [least, least + VALLEY] },
  });
}

function drawLeverage(values) {
  if (!LEVERAGE) return;
  chart("leverage", "FLOPs of a dense model per FLOP of the MoE model (Tian)", {
    x: scale("share of active experts", true, [0.01, 1]), y: scale("granularity", true, [1, 32]),
    marks: [
      Plot.contour({ x1: 0.01, x2: 1, y1: 1, y2: 32, fill: (x, y) => answers(LEVERAGE, { ...values, expert_expansion: 1 / x, granularity: y })[0],
        stroke: "var(--paper)", pixelSize: 6 }),
      Plot.text(d3.cross([0.012, 0.03, 0.1, 0.3], [1.3, 4, 12, 26]), { x: "0", y: "1", fontSize: 10, fill: "white", stroke: "black", strokeWidth: 2,
        text: ([x, y]) => short(answers(LEVERAGE, { ...values, expert_expansion: 1 / x, granularity: y })[0], 2) }),
      dot(1 / values.expert_expansion, Math.min(Math.max(values.granularity, 1), 32), { fill: COLOR.dense }),
    ],
    color: { scheme: "viridis" },
  });
}

function drawUnique(law, values, here) {
  const shown = DATA.laws[law].inputs.includes("unique_tokens");
  if (!shown) return element("chart-unique_tokens")?.remove();
  const tokens = tokensOf(values), unique = logs(Math.min(tokens, values.unique_tokens) / 100, tokens * 2, POINTS);
  const along = (start) => unique.map((x) => ({ x, y: loss(law, { ...start, unique_tokens: x }) }));
  chart("unique_tokens", "Along unique tokens", {
    x: scale("unique tokens", true), y: scale("loss, nats/token"),
    marks: [line(along(denseOf(values)), COLOR.dense, true), line(along(values), COLOR.mixture), dot(Math.min(tokens, values.unique_tokens), here)],
  });
}

// ---- rendering ----

function table(id, head, rows) {
  const row = (cells, tag) => {
    const tr = document.createElement("tr");
    cells.forEach((cell) => (tr.appendChild(document.createElement(tag)).textContent = cell));
    return tr;
  };
  const body = rows.map(({ cells, id: own, chosen }) => Object.assign(row(cells, "td"), { id: own ?? "", className: chosen ? "chosen" : "" }));
  const thead = document.createElement("thead"), tbody = document.createElement("tbody");
  thead.append(row(head, "th"));
  tbody.append(...body);
  element(id).replaceChildren(thead, tbody);
}

function show() {
  const { law, values } = state, here = loss(law, values), dense = loss(law, denseOf(values)), point = design(values);
  for (const [id, value] of [["loss", here], ["dense", dense]]) {
    element(id).textContent = value.toFixed(4);
    element(id).dataset.value = String(value);
  }
  const read = STRUCTURE.filter((name) => name === "params_active" || isRead(law, values, name));
  const optima = Object.fromEntries(read.map((name) => [name, optimum(law, values, name)]));
  showHeadline(law, values, here, dense, point, optima);
  showControls(read);
  drawCompute(law, values, here);
  for (const name of STRUCTURE) if (!read.includes(name)) element(`chart-${name}`)?.remove();
  for (const name of read) drawSlice(law, values, here, name, optima[name]);
  drawSizes(law, values, here);
  drawUnique(law, values, here);
  drawLeverage(values);
  table("ranges", ["", "now", "best", `within ${WITHIN} nats of the best`, "loss above the best, in 0.001 nats"],
    read.map((name) => {
      const found = optima[name], higher = found.best > KNOBS[name].search[0] * 1.001;
      const best = found.endless ? `no optimum: ${higher ? "higher" : "lower"} is better` : written(name, found.best);
      const span = found.endless ? "–" : `${written(name, found.low)} – ${written(name, found.high)}${found.open ? " or more" : ""}`;
      return { id: `range-${name}`, cells: [KNOBS[name].label, written(name, values[name]), best, span, (1e3 * (here - found.least)).toFixed(2)] };
    }));
  table("constants", ["symbol", "constant", "value", "meaning"],
    DATA.laws[law].constants.map(([symbol, name, value, meaning]) => ({ id: `constant-${name}`, cells: [symbol, words(name), short(value, 9), meaning] })));
  const found = variablesOf(asArray(values));
  table("fitted", ["variable", "smallest fitted", "largest fitted", "this design"],
    Object.entries(DATA.laws[law].fitted).map(([name, [low, high]]) => {
      const value = found[VARIABLES.indexOf(name)];
      return { id: `fitted-${name}`, cells: [words(name), size(low), size(high), value === undefined ? "–" : size(value)] };
    }));
  table("every", ["law", "prediction", "unit"],
    Object.keys(DATA.laws).flatMap((key) => Object.entries(DATA.laws[key].outputs).map(([name, unit], i) => {
      const value = answers(key, values)[i];
      return { chosen: key === law, cells: [DATA.laws[key].label, `${words(name)} ${name === "loss" ? value.toFixed(4) : size(value, 4)}`, unit] };
    })));
  element("command").textContent = command(law, values);
  element("build").textContent = buildCommand(law, values);
  element("source").textContent = DATA.laws[law].source;
  element("link").href = linkOf(state);
  history.replaceState(null, "", linkOf(state));
}

function isRead(law, values, name) {
  const knob = KNOBS[name], grid = (knob.linear ? linear : logs)(knob.low, knob.high, 9);
  const [least, most] = d3.extent(grid, (x) => loss(law, { ...values, [name]: x }));
  return most - least > MOVES;
}

function showHeadline(law, values, here, dense, point, optima) {
  const one = DATA.laws[law], gain = dense - here, best = optima.params_active, tokens = tokensOf(values);
  const than = Math.abs(gain) < 5e-7 ? "This loss equals that of" : `This loss is ${Math.abs(gain).toFixed(4)} nats ${gain > 0 ? "lower" : "higher"} than that of`;
  const twin = optimum(law, denseOf(values), "params_active", false);
  element("gain").textContent = `${than} the dense model. ` + (best.endless
    ? "The law has no best size at this budget."
    : `At this budget the best model of this structure has ${size(best.best)} active parameters, and the best dense model ${size(twin.best)}.`);
  const epochs = tokens / values.unique_tokens, repeats = element("repeats");
  repeats.hidden = epochs <= 1;
  repeats.textContent = `${short(epochs)} epochs of ${size(values.unique_tokens)} unique tokens. ` + (one.inputs.includes("unique_tokens")
    ? `Without repeated tokens, the loss would be ${loss(law, { ...values, unique_tokens: Infinity }).toFixed(4)}.`
    : "This law counts a repeated token as a new one.");
  const facts = [["training tokens", size(tokens, 4)], ["training FLOPs", short(values.flops, 4)], ["total parameters", size(point.params_total, 4)]];
  if (program(law).effective) facts.push(["dense model of equal loss", size(program(law).effective(one.coefficients, asArray(values))[0], 4)]);
  facts.push(["weights in bfloat16", `${size(2 * point.params_total)}B`.replace("BB", " GB").replace("TB", " TB").replace("MB", " MB").replace("KB", " kB")]);
  facts.push(["forward FLOPs per token", short(2 * values.params_active)]);
  if (LEVERAGE) facts.push(["leverage (Tian)", short(answers(LEVERAGE, values)[0])]);
  element("facts").replaceChildren(...facts.map(([name, value]) => {
    const pair = document.createElement("div");
    pair.appendChild(document.createElement("dt")).textContent = name;
    pair.appendChild(document.createElement("dd")).textContent = value;
    return pair;
  }));
  const far = beyond(law, values), range = rangeOf(law, values), notes = [];
  if (one.uncertainty?.why_none) notes.push(one.uncertainty.why_none);
  if (range) notes.push(`${100 * DATA.level} % of such runs have a loss in [${range.map((end) => end.toPrecision(5)).join(", ")}]${far.length ? ", if the law's form holds that far beyond the fitted runs" : ""}.`);
  if (far.length) notes.push(`Beyond the fitted range: ${far.join("; ")}.`);
  else if (one.unchecked.length) notes.push(`No fitted range is known for ${one.unchecked.map(words).join(", ")}.`);
  if (one.dense && point.params_total > point.params_active * (1 + 1e-9)) notes.push(DATA.as_dense);
  element("notes").replaceChildren(...[...notes, ...one.notes].map((sentence) =>
    Object.assign(document.createElement("p"), { className: "note", textContent: sentence })));
  element("notes").dataset.range = range ? JSON.stringify(range) : "";
}

// ---- controls ----

const PER_DECADE = 20, PER_UNIT = 50;
const sliderSteps = (knob) => (knob.linear ? Math.round((knob.high - knob.low) * PER_UNIT) : Math.round(Math.log10(knob.high / knob.low) * PER_DECADE));
const stepOf = (knob, value) => (value === Infinity ? sliderSteps(knob) + 1 : knob.linear ? (value - knob.low) * PER_UNIT : Math.log10(value / knob.low) * PER_DECADE);
const valueOf = (knob, step) => (step > sliderSteps(knob) ? Infinity : knob.linear ? +(knob.low + step / PER_UNIT).toFixed(4) : +(knob.low * 10 ** (step / PER_DECADE)).toPrecision(2));

function makeControls() {
  for (const knob of DATA.knobs) {
    const box = document.createElement("div");
    box.className = "knob";
    box.id = `knob-${knob.name}`;
    box.innerHTML = `<label for="slider-${knob.name}">${knob.label} <small>${knob.letter}</small></label><output></output><input type="range" id="slider-${knob.name}" min="0" max="${sliderSteps(knob) + (knob.unlimited ? 1 : 0)}" step="1">`;
    box.querySelector("input").addEventListener("input", (event) => {
      const model = [...STRUCTURE].includes(knob.name) ? "" : state.model;
      change({ ...state, model, values: moved(state.values, knob.name, valueOf(knob, Number(event.target.value))) });
    });
    element("knobs").append(box);
  }
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
  element("law").append(...LOSSES.map((key) => option(key, DATA.laws[key].label)));
  element("model").append(option("", "none"), ...Object.keys(DATA.models).map((name) => option(name, name)));
  element("law").addEventListener("change", (event) => change({ ...state, law: event.target.value }));
  element("model").addEventListener("change", (event) => {
    const model = event.target.value;
    change({ ...state, model, values: model ? { ...state.values, ...sizesOf(model) } : state.values });
  });
  for (const [name, array] of Object.entries(DATA.presets)) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
    button.addEventListener("click", () => change({ ...state, model: "", values: { ...asValues(array), unique_tokens: state.values.unique_tokens } }));
    element("presets").append(button);
  }
  element("to-dense").addEventListener("click", () => change({ ...state, model: "", values: denseOf(state.values) }));
  element("to-best").addEventListener("click", () => {
    const found = optimum(state.law, state.values, "params_active");
    if (!found.endless) change({ ...state, model: "", values: { ...state.values, params_active: found.best } });
  });
  element("tour-next").addEventListener("click", () => tour(step + 1));
  element("tour-back").addEventListener("click", () => tour(step - 1));
  window.addEventListener("hashchange", () => follow(location.hash));
}

function showControls(read) {
  for (const knob of DATA.knobs) {
    const box = element(`knob-${knob.name}`), value = knob.name === "tokens" ? tokensOf(state.values) : state.values[knob.name];
    const input = box.querySelector("input");
    input.value = stepOf(knob, value);
    input.setAttribute("aria-valuetext", written(knob.name, value));
    box.querySelector("output").textContent = written(knob.name, value);
    box.classList.toggle("idle", STRUCTURE.includes(knob.name) && !read.includes(knob.name));
  }
  element("law").value = state.law;
  element("model").value = state.model;
}

let waiting = false;
/** Change the state. Of several changes within one frame, only the last is drawn. */
function change(next) {
  state = next;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    show();
  });
}

function follow(hash) {
  const { now, refused } = ofLink(hash);
  element("alarm").hidden = !refused.length;
  element("alarm").textContent = refused.join(" ");
  if (linkOf(now) !== linkOf(state) || !refused.length) change(now);
}

// ---- the tour: five designs that build on each other ----

let step = 0;
const CHAPTER = "effective_params:chapter-002";
const fromPreset = (name, more) => ({ ...asValues(DATA.presets[name]), ...more });
const TOUR = [
  { law: CHAPTER, values: () => fromPreset("dense 70B"),
    text: () => "1 of 5. A dense model uses every parameter for every token. 70B parameters at 3.4e24 FLOPs see 8.1T tokens. The two curves coincide, because this model is its own dense twin." },
  { law: CHAPTER, values: () => fromPreset("DeepSeek 671B / 37B"),
    text: (now) => `2 of 5. A mixture of experts computes with 37B parameters per token and stores 18.1 times as many. At equal compute its loss is ${(loss(now.law, denseOf(now.values)) - loss(now.law, now.values)).toFixed(3)} nats below its dense twin, the dashed curve.` },
  { law: "sparsity:abnar-2025", values: () => fromPreset("DeepSeek 671B / 37B", { expansion: 40, expert_expansion: 40 }),
    text: () => "3 of 5. Sparsity is the share of experts that a token does not use, 1 − 1/E. Under Abnar's law, sparser models reach a lower loss with the same active parameters. Move the slider E; the table below the charts shows whether an optimum exists." },
  { law: "granularity:krajewski-2024", values: () => fromPreset("DeepSeek 671B / 37B", { granularity: 8 }),
    text: () => "4 of 5. Granularity splits each expert into smaller ones, and a token uses more of them. Under Krajewski's law, finer experts are always better. On hardware they are not, because small matrices multiply slowly and routing costs more." },
  { law: CHAPTER, values: () => fromPreset("DeepSeek 671B / 37B", { expansion: 60, expert_expansion: 60 }),
    text: (now) => `5 of 5. Serving needs memory for every stored parameter. With 60 times as many total as active parameters, the weights take ${size(2 * design(now.values).params_total)}B in bfloat16, and the loss is ${(loss(CHAPTER, fromPreset("DeepSeek 671B / 37B")) - loss(now.law, now.values)).toFixed(3)} nats lower than in step 2. \`moejax design --memory\` finds the best model that fits.` },
];

function tour(next) {
  step = (next + TOUR.length + 1) % (TOUR.length + 1);
  element("tour-back").disabled = step === 0;
  element("tour-next").textContent = step === 0 ? "Start the tour" : step === TOUR.length ? "End the tour" : "Next";
  if (step === 0) return element("tour").replaceChildren();
  const stop = TOUR[step - 1], law = stop.law in DATA.laws ? stop.law : START.law;
  change({ law, model: "", values: stop.values() });
  element("tour").textContent = stop.text(state);
}

if (typeof window !== "undefined" && !window.moejaxTest) {
  makeControls();
  tour(0);
  follow(location.hash);
}
