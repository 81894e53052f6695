"use strict";
/* The page of `dgnet studio`. It asks the server for one frame at a time and keeps the frames, so that scrubbing, histories and
   readings need no server; the server keeps nothing but the present state (see session.py for the messages). */

const FRAME = 1, MESH = 2, IMPULSE = 3, TOLD = 4, MEMORY = 256e6, KEPT = 1500, BUDGET = 25, PACE = 15, DOUBTS = 2000;  // milliseconds: of computing a frame, and at least between two requests of each kind
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const studio = {
  scene: null, mesh: null, controls: null, frames: [], shown: -1, playing: true, tool: "draw", field: 0, view: "first", map: null,
  steps: 5, cost: 1, driven: false, radius: 1, power: 1, spots: [], sensors: [], node: null, green: null, told: null, pointer: null, cross: null, cut: null,
  upload: null, stats: {latency: [], parts: [], shown: 0, times: [], fps: 0},
};
window.studio = studio;  // for scripts that measure
let viewer, socket = null, waiting = false, tag = 0, retry = 0, wanted = null, drawing = false, asked = 0, tellLater = 0, stamps = new Map(), resuming = false, opening = false, galleryData = null, asking = 0;

// ---------------------------------------------------------------------- talking with the server

function connect() {
  status("connecting", "busy");
  socket = new WebSocket(`ws://${location.host}/session`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    status("connected", ""); retry = 0; waiting = false; stamps.clear();
    if (studio.scene) { resuming = studio.frames.length > 0; reopen(); } else if (wanted) open(wanted);
  };
  socket.onmessage = e => typeof e.data === "string" ? told(JSON.parse(e.data)) : binary(e.data);
  socket.onclose = e => {
    socket = null; waiting = false; endTold();
    if (e.code === 1013) { status("too many pages", "lost"); hint(e.reason, true); return; }
    status("connection lost", "lost");
    if (studio.scene || retry) hint("The connection to dgnet studio is lost. Trying again; what was computed is kept.", true, true);
    setTimeout(connect, Math.min(8000, 400 * 2 ** retry++));
  };
}

function send(message) { if (socket && socket.readyState === 1) { socket.send(message instanceof ArrayBuffer ? message : JSON.stringify(message)); return true; } return false; }

/** Ask for a scene. Frames of the one before that are still on their way are not wanted any more. */
function open(name, controls = {}) {
  wanted = name; waiting = false; opening = true; clearTimeout(tellLater); status("preparing", "busy"); send({type: "open", scene: name, controls});
}

async function reopen() {
  const given = studio.upload ? await uploaded(studio.upload).catch(() => null) : {scene: studio.scene.scene};
  if (given) open(given.scene, studio.controls);
}

function told(message) {
  if (message.type === "scene") { studio.next = message; asking = 0; $("doubts").textContent = ""; return; }
  if (message.type === "controls") { status("connected", ""); ask(); return; }
  if (message.type === "told") { studio.said = message; return; }
  if (message.type === "doubts") { $("doubts").textContent = message.doubts.map(text => `${text}.`).join(" "); return; }
  if (message.type === "progress") { shareTold(message.share); return; }
  if (message.type === "error") {
    status("connected", ""); hint(message.message, true);
    if (message.of === "tell") return endTold();  // frames go on while sensors are asked
    waiting = false;
    if (message.of === "open") { opening = false; studio.setup = null; }
    if (["frame", "controls"].includes(message.of)) pause();
  }
}

function binary(buffer) {
  const head = new DataView(buffer), kind = head.getUint32(0, true), step = head.getUint32(4, true), a = head.getUint32(8, true), b = head.getUint32(12, true);
  const mark = head.getUint32(16, true), time = head.getFloat64(24, true);
  if (kind === MESH) return opened(buffer, a, b);
  if (kind === IMPULSE) return showGreen(new Float32Array(buffer, 32), mark);
  if (kind === TOLD) return showTold(new Float32Array(buffer, 32));
  waiting = false;
  if (opening || !studio.scene || b !== studio.scene.nodes) return;
  const frame = {step, time, values: new Float32Array(buffer, 32), tag: mark, milliseconds: head.getFloat32(20, true), arrived: performance.now()};
  const last = studio.frames[studio.frames.length - 1];
  if (frame.arrived - asking > DOUBTS) { asking = frame.arrived; send({type: "doubts"}); }
  if (last && step > last.step) studio.cost += 0.3 * (frame.milliseconds / (step - last.step) - studio.cost);
  if (last && step <= last.step) { if (step < last.step) studio.frames = studio.frames.filter(f => f.step < step); else studio.frames.pop(); }
  const follow = studio.playing || studio.shown >= studio.frames.length - 1;
  studio.frames.push(frame);
  thin();
  if (follow) studio.shown = studio.frames.length - 1;
  if (frame.arrived - asked >= PACE) ask();  // the server computes while the page draws; a quick one waits for the next picture
  redraw();
}

/** Every second frame goes where memory would not suffice: the whole time stays, less finely. */
function thin() {
  const most = Math.max(20, Math.min(KEPT, Math.floor(MEMORY / studio.frames[0].values.byteLength)));
  if (studio.frames.length <= most) return;
  studio.frames = studio.frames.filter((f, k) => k % 2 === 0 || k === studio.frames.length - 1);
}

function opened(buffer, n, dim) {
  let at = 32;
  const floats = new Float32Array(buffer, at, n * dim); at += 4 * n * dim;
  const [nt, nk, nl] = new Uint32Array(buffer, at, 3); at += 12;
  const take = count => { const part = new Uint32Array(buffer, at, count); at += 4 * count; return part; };
  const mesh = {dim, points: floats, triangles: take(3 * nt), tets: take(4 * nk), lines: take(2 * nl)};
  const scene = studio.next, again = resuming && studio.scene && studio.scene.nodes === scene.nodes;
  studio.mesh = mesh; opening = false; status("connected", ""); hideHint();
  if (again) {
    studio.scene.scene = scene.scene; resuming = false;
    const last = studio.frames[studio.frames.length - 1];
    waiting = send(state(last));
    return;
  }
  resuming = false; studio.scene = scene; studio.controls = scene.controls; TELL.asked = false; $("banner").hidden = true;
  Object.assign(studio, {frames: [], shown: -1, cost: 1, field: 0, view: "first", steps: scene.steps, driven: scene.driven, radius: scene.radius, power: scene.power,
    spots: [], sensors: [], node: null, green: null, told: null, cut: null, cross: null, playing: true, range: null});
  viewer.open(mesh); playButton();
  if (studio.setup) { apply(studio.setup); studio.setup = null; }
  sidebar(); ask(0);
}

/** A stored frame as the server takes it back. */
function state(frame) {
  const buffer = new ArrayBuffer(16 + frame.values.byteLength), head = new DataView(buffer);
  head.setFloat64(0, frame.time, true); head.setUint32(8, frame.step, true); head.setUint32(12, frame.values.length / studio.scene.nodes, true);
  new Float32Array(buffer, 16).set(frame.values);
  return buffer;
}

/** Ask for the next frame, unless one is on its way: the page sets the pace. Slow steps make frames of fewer steps, so that the
    picture follows the pointer. */
function ask(steps = studio.steps) {
  if (waiting || opening || !studio.scene || !socket || (steps && (!studio.playing || studio.shown < studio.frames.length - 1))) return;
  const spots = studio.spots.map(s => ({from: s.point, to: s.point, radius: s.radius, power: s.power, field: s.field}));
  const p = studio.pointer;
  if (p && p.on) { spots.push({from: p.last || p.point, to: p.point, radius: studio.radius, power: studio.power, field: studio.field}); p.last = p.point; }
  tag = tag % 4e9 + 1; asked = performance.now();
  if (p && p.since) { stamps.set(tag, {since: p.since, asked}); p.since = 0; }
  waiting = send({type: "frame", steps: Math.min(steps, Math.max(1, Math.floor(BUDGET / Math.max(studio.cost, 0.1)))), spots, driven: studio.driven, tag});
}

/** Send the settings, once they have not changed for a moment. */
function tell() {
  clearTimeout(tellLater);
  tellLater = setTimeout(() => { status("preparing", "busy"); send({type: "controls", controls: studio.controls}); }, 120);
}

// ---------------------------------------------------------------------- drawing

function redraw() { if (!drawing) { drawing = true; requestAnimationFrame(paint); } }

function paint() {
  drawing = false;
  const {frames, stats} = studio;
  if (studio.playing && studio.shown < frames.length - 1 && !waiting) { studio.shown++; redraw(); }  // replay what is stored
  ask();
  const frame = frames[studio.shown];
  if (!frame || !viewer.mesh) return;
  const still = studio.green ? studio.green.values : studio.told ? studio.told.rows[studio.told.shown] : null, values = still || shownValues(frame);
  if (!still) range(values, viewOf(frame));
  viewer.marks = marks();
  viewer.show(values);
  viewer.draw();
  const now = performance.now();
  for (const [mark, at] of stamps) {  // also those of frames that another one has overtaken
    if (mark > frame.tag) continue;
    stamps.delete(mark); stats.latency.push(now - at.since); stats.parts.push([at.asked - at.since, frame.arrived - at.asked, now - frame.arrived]);
    if (stats.latency.length > 500) { stats.latency.shift(); stats.parts.shift(); }
  }
  if (frame !== stats.last) { stats.last = frame; stats.shown++; stats.times.push(now); while (stats.times.length > 40) stats.times.shift(); }
  $("scrub").max = Math.max(0, frames.length - 1); $("scrub").value = studio.shown;
  $("clock").textContent = `t = ${short(frame.time, frame.time)} ${studio.scene.units.time}`.trim();
  $("scrub").setAttribute("aria-valuetext", $("clock").textContent);
  $("branch").hidden = studio.playing || studio.shown >= frames.length - 1;
  readings(frame, now);
}

/** What can be shown of a frame: those from before a second model was chosen have the first one only. */
const viewOf = frame => frame.values.length > studio.scene.nodes * studio.scene.fields.length ? studio.view : "first";

/** The row of a frame that is shown: of the first model, the second, or their difference. */
function shownValues(frame) {
  const n = studio.scene.nodes, fields = studio.scene.fields.length, row = k => frame.values.subarray(k * n, (k + 1) * n), view = viewOf(frame);
  if (view === "first") return row(studio.field);
  if (view === "second") return row(fields + studio.field);
  const a = row(studio.field), b = row(fields + studio.field), d = new Float32Array(n);
  for (let i = 0; i < n; i++) d[i] = a[i] - b[i];
  return d;
}

/** Colours follow the values: they widen at once and narrow slowly, so that nothing flickers. */
function range(values, view, fit = false) {
  let [lo, hi] = limits(values);
  const apart = view === "difference", small = apart ? 1e-9 : 0.2 * Math.abs(studio.power) * studio.controls.dt || 1e-9;
  if (apart !== studio.apart) { studio.apart = apart; studio.range = null; }
  if (apart) { hi = Math.max(Math.abs(lo), Math.abs(hi), small); lo = -hi; } else if (hi - lo < small) hi = lo + small;
  const old = studio.range;
  if (old && !fit) {
    const slow = studio.playing ? 0.03 : 0;
    lo = lo < old[0] ? lo : old[0] + slow * (lo - old[0]); hi = hi > old[1] ? hi : old[1] + slow * (hi - old[1]);
  }
  studio.range = [lo, hi];
  viewer.range = studio.range; viewer.logarithmic = false;
  const unit = studio.scene.units.fields[studio.field];
  viewer.label = studio.label = (apart ? "Δ" : "") + studio.scene.fields[studio.field] + (unit ? ` in ${unit}` : "");
  const map = apart ? "diverging" : studio.map || "viridis";
  if (viewer.map !== map) viewer.colours(map);
}

function marks() {
  const found = studio.spots.map(s => ({point: s.point, radius: s.radius, colour: "#c2410c"}));
  studio.sensors.forEach((s, k) => found.push({point: s.point, text: k + 1, colour: SERIES[k % SERIES.length]}));
  const p = studio.pointer;
  if (p && studio.tool === "draw" && p.point) found.push({point: p.point, radius: studio.radius, colour: p.on ? "#c2410c" : "#444b54"});
  if (studio.node) found.push({point: studio.node.point, cross: true, colour: "#111"});
  if (studio.cross) found.push({point: studio.cross, cross: true, colour: "#0b63a5"});
  return found;
}

let lastReading = 0;
function readings(frame, now) {
  const t = studio.stats.times, l = studio.stats.latency.slice(-20).sort((a, b) => a - b);
  if (now - lastReading < 120 && studio.playing) return;
  lastReading = now;
  const fps = t.length > 2 && now - t[0] < 8000 ? 1000 * (t.length - 1) / (t[t.length - 1] - t[0]) : 0;
  studio.stats.fps = fps;
  $("speed").textContent = studio.playing && fps ? `${fps.toFixed(0)} frames/s${l.length ? ` · ${l[l.length >> 1].toFixed(0)} ms` : ""}` : "";
  const unit = studio.scene.units.fields[studio.field], values = shownValues(frame);
  studio.sensors.forEach(s => { s.out.textContent = `${short(values[s.node], width())} ${unit}`.trim(); });
  const style = {now: frame.time, unit: studio.label || "", time: studio.scene.units.time ? `t in ${studio.scene.units.time}` : "t", ink: colour("--ink"), quiet: colour("--quiet"), line: colour("--line")};
  if (studio.sensors.length) chart($("sensor-chart"), studio.sensors.map((s, k) => history(s.node, SERIES[k % SERIES.length])), style);
  if (studio.node) {
    $("node-value").textContent = `${short(values[studio.node.node], width())} ${unit}`.trim();
    chart($("node-chart"), [history(studio.node.node, colour("--accent"))], style);
  }
}
const width = () => studio.range ? studio.range[1] - studio.range[0] : 1;  // of the colours: how many digits a value deserves

function history(node, colour) {
  const every = Math.max(1, Math.ceil(studio.frames.length / 400)), picked = studio.frames.filter((f, k) => k % every === 0 || k === studio.frames.length - 1);
  return {colour, x: picked.map(f => f.time), y: picked.map(f => shownValues(f)[node])};
}

// ---------------------------------------------------------------------- side bar

function sidebar() {
  const s = studio.scene, u = s.units, heat = s.fields[0] === "T";
  $("title").textContent = s.title; document.title = `${s.title} – dgnet studio`;
  fillSelect($("model"), Object.entries(s.models), studio.controls.model);
  fillSelect($("versus"), [["", "nothing"], ...Object.entries(s.models).filter(([k]) => k !== studio.controls.model)], studio.controls.versus || "");
  $("versus-box").hidden = Object.keys(s.models).length < 2;
  const span = Math.max(20 * s.power * s.dt, 1e-6);
  fill($("source"),
    make("p", {className: "quiet"}, "Hold the pointer on the mesh. Shift-click leaves a source that stays."),
    slider({label: "power", unit: u.power, value: s.power, log: true, change: v => { studio.power = studio.power < 0 ? -v : v; }}),
    slider({label: "radius", unit: u.length, value: s.radius, log: true, decades: 0.7, change: v => { studio.radius = v; redraw(); }}),
    check(heat ? "cool instead of heat" : "take away instead of add", studio.power < 0, v => { studio.power = Math.abs(studio.power) * (v ? -1 : 1); }),
    s.driven ? check("sources of the scenario", studio.driven, v => { studio.driven = v; }) : null,
    make("div", {className: "buttons"}, make("button", {onclick: () => { studio.spots = []; redraw(); }}, "Remove sources that stay")));
  $("equation").replaceChildren(
    slider({label: "time step Δt", unit: u.time, value: studio.controls.dt, log: true, change: v => { studio.controls.dt = v; tell(); }}),
    slider({label: heat ? "conductivity ×" : "diffusion ×", value: studio.controls.diffusion, log: true, change: v => { studio.controls.diffusion = v; tell(); }}),
    slider({label: "steps a frame", value: studio.steps, low: 1, high: 20, change: v => { studio.steps = Math.max(1, Math.round(v)); }}));
  $("boundaries-box").hidden = !studio.controls.conditions.length;
  $("boundaries").replaceChildren(...studio.controls.conditions.map(row => boundary(row, s.free,
    {field: Math.max(span, Math.abs(row.value || 0) * 0.5), flux: Math.max(1, 4 * Math.abs(row.value || 0)) * (s.free ? s.power * s.radius : 1), coefficient: row.coefficient}, u, tell)));
  pictureBox(); sensorsBox(); nodeBox();
  $("notes").textContent = [`${s.nodes.toLocaleString("en")} nodes, ${s.cells.toLocaleString("en")} ${s.dim === 2 ? "triangles" : "tetrahedra"}.`, ...s.notes].join(" ");
}

function fillSelect(select, options, value) {
  select.replaceChildren(...options.map(([key, text]) => make("option", {value: key, selected: key === value}, text)));
}

function pictureBox() {
  const s = studio.scene, two = !!studio.controls.versus, name = k => s.models[k];
  if (!two) studio.view = "first";
  fill($("picture"),
    two ? choice("show", [["first", name(studio.controls.model)], ["second", name(studio.controls.versus)], ["difference", "difference of both"]], studio.view,
      v => { studio.view = v; studio.range = null; redraw(); }) : null,
    s.fields.length > 1 ? choice("field", s.fields.map((f, k) => [String(k), f]), String(studio.field), v => { studio.field = Number(v); studio.range = null; redraw(); }) : null,
    choice("colours", [["viridis", "viridis"], ["cividis", "cividis"], ["inferno", "inferno"], ["diverging", "blue – orange"]], studio.map || "viridis", v => { studio.map = v; redraw(); }),
    s.dim === 3 ? choice("cutting plane", [["", "none"], ["0", "across x"], ["1", "across y"], ["2", "across z"]], studio.cut ? String(studio.cut.axis) : "",
      v => { studio.cut = v === "" ? null : {axis: Number(v), share: 0.5}; recut(); pictureBox(); }) : null,
    studio.cut ? slider({label: "place of the plane", value: studio.cut.share, low: 0, high: 1, change: v => { studio.cut.share = v; recut(); }}) : null,
    check("lines of equal value", viewer.bands > 0, v => { viewer.bands = v ? 12 : 0; redraw(); }),
    check("mesh", viewer.edges, v => { viewer.edges = v; redraw(); }));
}

function recut() { studio.cut ? viewer.cut(studio.cut.axis, studio.cut.share) : viewer.cut(null); redraw(); }

function sensorsBox() {
  const list = studio.sensors.map((s, k) => make("div", {className: "sensor"}, dot(k), make("span", {className: "quiet"}, place(s.point)), s.out = make("b"),
    make("button", {ariaLabel: `Remove sensor ${k + 1}`, onclick: () => { studio.sensors.splice(k, 1); sensorsBox(); redraw(); }}, "✕")));
  $("sensors").replaceChildren(...(list.length ? [...list, make("canvas", {id: "sensor-chart", className: "chart"}), ...tellBox()] :
    [make("p", {className: "quiet"}, "Choose the tool Sensor and click the mesh; readings appear here.")]));
  lastReading = 0;
}
function dot(k) { const made = make("span", {className: "dot"}, String(k + 1)); made.style.background = SERIES[k % SERIES.length]; return made; }
const place = p => `(${p.map(v => short(v, studio.scene.size / 50)).join(", ")})`;

function nodeBox() {
  $("node-box").hidden = !studio.node;
  if (!studio.node) return;
  $("node").replaceChildren(
    make("dl", {className: "facts"}, make("dt", {}, "node"), make("dd", {}, String(studio.node.node)), make("dt", {}, "at"), make("dd", {}, `${place(studio.node.point)} ${studio.scene.units.length}`),
      make("dt", {}, "value now"), make("dd", {id: "node-value"})),
    make("canvas", {id: "node-chart", className: "chart"}),
    make("div", {className: "buttons"}, make("button", {id: "green", onclick: askGreen}, "Green's function of this node"), make("button", {onclick: forget}, "Close")));
  lastReading = 0;
}

function forget() { studio.node = null; leaveGreen(); nodeBox(); redraw(); }
function askGreen() { pause(); send({type: "impulse", node: studio.node.node, field: studio.field}); }

/** What one step makes of a unit impulse at a node, on a logarithmic scale from its peak down to a millionth. */
function showGreen(values, node) {
  const top = Math.max(...limits(values).map(Math.abs)) || 1, logs = new Float32Array(values.length);
  for (let i = 0; i < values.length; i++) logs[i] = Math.log10(Math.max(Math.abs(values[i]) / top, 1e-7));
  studio.green = {values: logs, node, top};
  viewer.range = [-6, 0]; viewer.logarithmic = true; viewer.label = "|G| / peak"; viewer.colours(studio.map || "viridis");
  $("banner").replaceChildren(`What one step of Δt = ${short(studio.controls.dt, studio.controls.dt)} ${studio.scene.units.time} makes of a unit impulse at node ${node}`,
    make("button", {onclick: () => { leaveGreen(); redraw(); }}, "Back to the field"));
  $("banner").hidden = false; redraw();
}
function leaveStill() { if (studio.green || studio.told) leaveGreen(); }
function leaveGreen() { studio.green = studio.told = null; studio.range = null; $("banner").hidden = true; }

// ---------------------------------------------------------------------- pointer and keys

function pointers(canvas) {
  const held = new Map(); let moving = null, gap = 0;
  const at = e => { const box = canvas.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; };
  canvas.onpointerdown = e => {
    if (!studio.scene) return;
    canvas.setPointerCapture(e.pointerId); held.set(e.pointerId, at(e)); studio.cross = null;
    if (held.size === 2) { moving = "pinch"; endDraw(); gap = spread(held); return; }
    const hit = viewer.pick(...at(e)), tool = e.button === 2 || e.button === 1 || studio.tool === "move" || !hit || !hit.inside ? "move" : studio.tool;
    if (tool === "move") { moving = studio.scene.dim === 3 && !(e.button === 1 || e.ctrlKey) ? "turn" : "pan"; return; }
    use(tool, hit, e.shiftKey);
  };
  canvas.onpointermove = e => {
    if (!studio.scene) return;
    const [x, y] = at(e), before = held.get(e.pointerId);
    if (before) held.set(e.pointerId, [x, y]);
    if (moving === "pinch" && held.size === 2) {
      const next = spread(held), middle = [...held.values()].reduce((a, b) => [a[0] + b[0] / 2, a[1] + b[1] / 2], [0, 0]);
      viewer.magnify(next / gap, ...middle); gap = next; redraw(); return;
    }
    if (before && moving) { viewer[moving === "turn" ? "rotate" : "pan"](x - before[0], y - before[1]); redraw(); return; }
    if (studio.tool !== "draw") return;
    const hit = viewer.pick(x, y), on = !!(studio.pointer && studio.pointer.on);
    if (!hit) { if (!on) studio.pointer = null; redraw(); return; }
    studio.pointer = {...(on ? studio.pointer : {}), point: hit.point, on, since: on ? studio.pointer.since || e.timeStamp : 0};
    if (!studio.playing || !on) redraw();
  };
  const up = e => { held.delete(e.pointerId); if (held.size < 2 && moving === "pinch") moving = null; if (!held.size) { moving = null; endDraw(); } };
  canvas.onpointerup = up; canvas.onpointercancel = up;
  canvas.onpointerleave = e => { if (!held.has(e.pointerId)) { studio.pointer = null; redraw(); } };
  canvas.onmousedown = e => { e.preventDefault(); document.activeElement?.blur(); };  // arrow keys move a cross only where keys lead to it
  canvas.oncontextmenu = e => e.preventDefault();
  canvas.addEventListener("wheel", e => { e.preventDefault(); if (viewer.mesh) { viewer.magnify(Math.exp(-0.0015 * e.deltaY), ...at(e)); redraw(); } }, {passive: false});
}
function spread(held) { const [a, b] = [...held.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1; }
function endDraw() { if (studio.pointer && studio.pointer.on) { studio.pointer = {...studio.pointer, on: false, last: null}; redraw(); } }

/** Use a tool at a place on the mesh. */
function use(tool, hit, stay) {
  leaveStill();
  if (tool === "draw" && stay) studio.spots.push({point: hit.point, radius: studio.radius, power: studio.power, field: studio.field});
  else if (tool === "draw") {
    studio.pointer = {point: hit.point, on: true, since: performance.now()};
    if (!studio.playing) hint("Paused: press space to go on.");
    ask();
  } else if (tool === "node") { studio.node = {node: hit.node, point: nodePoint(hit.node)}; nodeBox(); $("node-box").scrollIntoView({block: "nearest"}); }
  else if (tool === "sensor") {
    if (studio.sensors.length >= 16) return hint("16 sensors are enough for one page.");
    studio.sensors.push({node: hit.node, point: nodePoint(hit.node)}); sensorsBox();
  }
  redraw();
}
const nodePoint = n => Array.from(studio.mesh.points.subarray(n * studio.mesh.dim, (n + 1) * studio.mesh.dim));

function keys(e) {
  if (e.target.matches("input[type=text],select,textarea") || e.ctrlKey || e.metaKey || e.altKey || $("gallery").open) return;
  const onCanvas = document.activeElement === $("above"), arrow = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[e.key];
  if (arrow && onCanvas && studio.scene) { moveCross(arrow, e.shiftKey ? 40 : 8); e.preventDefault(); return; }
  if (e.key === "Enter" && onCanvas && studio.cross) { crossUse(e.shiftKey); e.preventDefault(); return; }
  if (e.target.matches("input[type=range],summary") && (arrow || e.key === " ")) return;
  if (e.key === " " && e.target.matches("button")) return;
  const act = {" ": toggle, ArrowLeft: () => scrub(studio.shown - 1), ArrowRight: () => scrub(studio.shown + 1), r: restart, f: () => { viewer.home(); redraw(); },
    c: fitColours, p: savePicture, g: openGallery, "1": () => pickTool("draw"), "2": () => pickTool("node"), "3": () => pickTool("sensor"), "4": () => pickTool("move"),
    "+": () => zoomBy(1.25), "-": () => zoomBy(0.8), Escape: () => { endDraw(); forget(); studio.cross = null; redraw(); }}[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  if (act && (studio.scene || e.key === "g")) { act(); e.preventDefault(); }
}
function zoomBy(f) { const c = $("above"); viewer.magnify(f, c.clientWidth / 2, c.clientHeight / 2); redraw(); }

function moveCross(arrow, pixels) {
  const c = $("above"), from = studio.cross ? viewer.project(studio.cross) : [c.clientWidth / 2, c.clientHeight / 2];
  const hit = viewer.pick(from[0] + arrow[0] * pixels, from[1] + arrow[1] * pixels);
  if (hit) { studio.cross = hit.point; if (studio.pointer && studio.pointer.on) { studio.pointer.point = hit.point; studio.pointer.since ||= performance.now(); } }
  redraw();
}
/** Enter: the source goes on and off under the cross, the other tools act once. */
function crossUse(stay) {
  const hit = viewer.pick(...viewer.project(studio.cross));
  if (studio.tool === "draw" && studio.pointer && studio.pointer.on) endDraw();
  else if (hit && hit.inside && studio.tool !== "move") use(studio.tool, hit, stay);
}

// ---------------------------------------------------------------------- time

function toggle() { studio.playing ? pause() : play(); }
function pause() { studio.playing = false; playButton(); redraw(); }
function play() { studio.playing = true; leaveStill(); hideHint(); playButton(); redraw(); ask(); }
function playButton() { $("play").textContent = studio.playing ? "❚❚" : "▶"; $("play").setAttribute("aria-label", studio.playing ? "Pause" : "Go on"); }
function scrub(k) { if (!studio.frames.length) return; pause(); leaveStill(); studio.shown = Math.max(0, Math.min(studio.frames.length - 1, k)); redraw(); }
function restart() { studio.frames = []; studio.shown = -1; studio.range = null; leaveStill(); hideHint(); waiting = send({type: "restart"}); studio.playing = true; playButton(); }
function branch() { studio.frames.length = studio.shown + 1; waiting = send(state(studio.frames[studio.shown])); studio.playing = true; playButton(); redraw(); }
function fitColours() { const f = studio.frames[studio.shown]; if (f && !studio.green && !studio.told) { range(shownValues(f), viewOf(f), true); redraw(); } }
function pickTool(name) {
  studio.tool = name; $("above").className = name;
  for (const b of document.querySelectorAll("[data-tool]")) b.setAttribute("aria-pressed", String(b.dataset.tool === name));
}

// ---------------------------------------------------------------------- files

async function uploaded(file) {
  const answer = await fetch(`mesh?name=${encodeURIComponent(file.name)}`, {method: "POST", body: file.content});
  const told = await answer.json().catch(() => ({error: `The server answered ${answer.status}.`}));
  if (!answer.ok) throw new Error(told.error);
  return told;
}

async function take(file) {
  try {
    if (file.name.toLowerCase().endsWith(".json")) return await loadSetup(JSON.parse(await file.text()));
    if (galleryData && file.size > galleryData.upload_bytes) throw new Error(`'${file.name}' is larger than ${galleryData.upload_bytes >> 20} MB.`);
    await openUpload({name: file.name, content: new Uint8Array(await file.arrayBuffer())});
  } catch (error) { status("connected", ""); hint(error instanceof SyntaxError ? `'${file.name}' is not a saved set-up.` : error.message, true); }
}

async function openUpload(file, controls = {}) {
  status("reading", "busy"); hint(`Reading ${file.name} …`);
  const told = await uploaded(file);
  studio.upload = file; $("gallery").close(); open(told.scene, controls);
}

function setup() {
  const s = studio, text = s.upload ? {name: s.upload.name, base64: base64(s.upload.content)} : null;
  return {format: "dgnet-studio", version: 1, scene: s.upload ? null : s.scene.scene, mesh: text, controls: s.controls, steps: s.steps, driven: s.driven, radius: s.radius,
    power: s.power, field: s.field, view: s.view, colours: s.map, cut: s.cut, spots: s.spots, sensors: s.sensors.map(x => x.node)};
}
function base64(bytes) { let text = ""; for (let k = 0; k < bytes.length; k += 8192) text += String.fromCharCode(...bytes.subarray(k, k + 8192)); return btoa(text); }

async function loadSetup(given) {
  if (given.format !== "dgnet-studio" || given.version !== 1) throw new SyntaxError();
  studio.setup = given;
  if (given.mesh) return openUpload({name: given.mesh.name, content: Uint8Array.from(atob(given.mesh.base64), c => c.charCodeAt(0))}, given.controls);
  studio.upload = null; $("gallery").close(); open(given.scene, given.controls);
}

/** What a set-up says beyond the settings that the server has checked; numbers and known names only. */
function apply(given) {
  const num = (v, old) => typeof v === "number" && Number.isFinite(v) ? v : old, s = studio, dim = s.scene.dim;
  s.steps = Math.max(1, Math.min(100, num(given.steps, s.steps))); s.driven = !!given.driven; s.radius = num(given.radius, s.radius); s.power = num(given.power, s.power);
  s.field = Math.max(0, Math.min(s.scene.fields.length - 1, num(given.field, 0))); s.view = ["first", "second", "difference"].includes(given.view) ? given.view : "first";
  s.map = viewer.maps[given.colours] ? given.colours : null;
  s.spots = (given.spots || []).filter(p => Array.isArray(p.point) && p.point.length === dim && p.point.every(Number.isFinite) && p.radius > 0).slice(0, 40);
  s.sensors = (given.sensors || []).filter(n => Number.isInteger(n) && n >= 0 && n < s.scene.nodes).slice(0, 16).map(node => ({node, point: nodePoint(node)}));
  if (given.cut && dim === 3) { s.cut = {axis: Math.max(0, Math.min(2, num(given.cut.axis, 0))), share: num(given.cut.share, 0.5)}; viewer.cut(s.cut.axis, s.cut.share); }
}

const fileName = end => `${studio.scene.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "")}${end}`;
function savePicture() {
  const title = `${studio.scene.title}, ${$("clock").textContent}`;
  viewer.picture(Math.max(1200, viewer.canvas.width), colour("--stage"), title).toBlob(blob => download(fileName(".png"), blob));
}
async function saveGif() {
  if (studio.frames.length < 2) return hint("Let it run for a moment first.");
  pause(); $("save-gif").disabled = true; $("progress").hidden = false;
  const count = Math.min(60, studio.frames.length), pick = k => studio.frames[Math.round(k * (studio.frames.length - 1) / (count - 1))], back = studio.range;
  let all = [Infinity, -Infinity];
  for (let k = 0; k < count; k++) { const [lo, hi] = limits(shownValues(pick(k))); all = [Math.min(all[0], lo), Math.max(all[1], hi)]; }
  if (studio.view === "difference") { const m = Math.max(...all.map(Math.abs)); all = [-m, m]; }
  const draw = k => {
    const frame = pick(k); viewer.range = all[1] > all[0] ? all : [all[0], all[0] + 1]; viewer.show(shownValues(frame));
    return viewer.picture(Math.min(640, viewer.canvas.clientWidth), colour("--stage"), `t = ${short(frame.time, frame.time)} ${studio.scene.units.time}`.trim());
  };
  try {
    const blob = await makeGif(count, draw, 6, share => { $("progress").textContent = `Making the GIF: ${Math.round(100 * share)}%`; });
    download(fileName(".gif"), blob);
  } finally { studio.range = back; $("save-gif").disabled = false; $("progress").hidden = true; redraw(); }
}
function saveReadings() {
  if (!studio.sensors.length) return hint("Place a sensor first.");
  const unit = studio.scene.units, name = studio.scene.fields[studio.field] + (unit.fields[studio.field] ? ` [${unit.fields[studio.field]}]` : "");
  const head = ["t" + (unit.time ? ` [${unit.time}]` : ""), ...studio.sensors.map((s, k) => `"sensor ${k + 1} at ${place(s.point)}: ${name}"`)];
  const lines = studio.frames.map(f => { const v = shownValues(f); return [f.time, ...studio.sensors.map(s => v[s.node])].join(","); });
  download(fileName(".csv"), [head.join(","), ...lines, ""].join("\n"), "text/csv");
}

// ---------------------------------------------------------------------- words to the person

let hintTimer = 0;
function hint(text, bad = false, stay = false) {
  clearTimeout(hintTimer); const box = $("hint"); box.textContent = text; box.className = bad ? "bad" : ""; box.hidden = false;
  if (!stay) hintTimer = setTimeout(hideHint, bad ? 9000 : 3500);
}
function hideHint() { $("hint").hidden = true; }
function status(text, kind) { $("status").textContent = text; $("status").className = kind; }

// ---------------------------------------------------------------------- start

function openGallery() { $("gallery").showModal(); }

async function start() {
  galleryData = await (await fetch("gallery.json")).json();
  viewer = new FieldViewer($("field"), $("above"), galleryData.colours);
  studio.viewer = viewer; viewer.headroom = 54;
  const ink = () => { viewer.ink = dark.matches ? "#e6eaef" : "#1d2733"; redraw(); };
  dark.onchange = ink; ink();
  pointers($("above")); pickTool("draw"); playButton();
  new ResizeObserver(redraw).observe($("stage"));
  $("cards").replaceChildren(...galleryData.scenes.map(s => make("button", {className: "card", onclick: () => { $("gallery").close(); studio.upload = null; studio.setup = null; open(s.name); }},
    s.picture ? make("img", {src: s.picture, alt: ""}) : make("span", {className: "none"}), make("b", {}, s.title), make("span", {}, s.about))));
  const on = (id, event, act) => $(id).addEventListener(event, act);
  on("play", "click", toggle); on("restart", "click", restart); on("branch", "click", branch); on("home", "click", () => { viewer.home(); redraw(); }); on("fit", "click", fitColours);
  on("scrub", "input", e => scrub(Number(e.target.value))); on("gallery-open", "click", openGallery); on("gallery-close", "click", () => $("gallery").close());
  on("save-png", "click", savePicture); on("save-gif", "click", saveGif); on("save-csv", "click", saveReadings);
  on("save-setup", "click", () => download(fileName(".json"), JSON.stringify(setup(), null, 1), "application/json"));
  on("load-setup", "click", () => $("file").click()); on("own", "click", () => $("file").click());
  on("file", "change", e => { if (e.target.files[0]) take(e.target.files[0]); e.target.value = ""; });
  on("model", "change", e => { studio.controls.model = e.target.value; if (studio.controls.versus === e.target.value) studio.controls.versus = null; studio.range = null; sidebar(); tell(); });
  on("versus", "change", e => { studio.controls.versus = e.target.value || null; studio.view = e.target.value ? "difference" : "first"; studio.range = null; sidebar(); tell(); });
  for (const b of document.querySelectorAll("[data-tool]")) b.onclick = () => pickTool(b.dataset.tool);
  document.addEventListener("keydown", keys);
  let inside = 0;
  document.addEventListener("dragenter", e => { e.preventDefault(); inside++; $("drop").hidden = false; });
  document.addEventListener("dragleave", () => { if (--inside <= 0) { inside = 0; $("drop").hidden = true; } });
  document.addEventListener("dragover", e => e.preventDefault());
  document.addEventListener("drop", e => { e.preventDefault(); inside = 0; $("drop").hidden = true; if (e.dataTransfer.files[0]) take(e.dataTransfer.files[0]); });
  wanted = galleryData.first || null;
  if (!wanted) openGallery();
  connect();
}
start();
