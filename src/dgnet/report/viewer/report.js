"use strict";
/* The field of the report page: stored frames, a switch between truth, model, errors and source, probes, files to take away. */

(async () => {
  const byId = id => document.getElementById(id), about = JSON.parse(byId("field-about").textContent), box = byId("field-box");
  const packed = Uint8Array.from(atob(byId("field-data").textContent), c => c.charCodeAt(0));
  if (typeof DecompressionStream === "undefined") { box.textContent = "This browser is too old to unpack the field of this page."; return; }
  const buffer = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  const n = about.nodes, fields = about.fields.length, frames = about.times.length, size = frames * fields * n;
  let at = 0;
  const take = (type, count) => { const part = new type(buffer, at, count); at += count * type.BYTES_PER_ELEMENT; return part; };
  const mesh = {dim: about.dim, points: take(Float32Array, n * about.dim)};
  [mesh.triangles, mesh.tets, mesh.lines] = about.counts.map(count => take(Uint32Array, count));
  const truth = take(Uint16Array, size), errors = [take(Int8Array, size), take(Int8Array, size)], source = about.source.length ? take(Int8Array, size) : null;

  const make = (tag, properties = {}, ...children) => { const made = Object.assign(document.createElement(tag), properties); made.append(...children); return made; };
  const select = (label, options, change) => {
    const made = make("select", {}, ...options.map(([value, text]) => make("option", {value}, text)));
    made.setAttribute("aria-label", label); made.onchange = () => change(made.value); return made;
  };
  const state = {view: "truth", field: 0, frame: 0, playing: false, probes: [], axis: null, share: 0.5};
  const views = [["truth", "Truth"], ["0", about.names[0]], ["1", about.names[1]], ["e0", `Error of ${about.names[0]}`], ["e1", `Error of ${about.names[1]}`]];
  if (source) views.push(["source", "Source"]);
  const lower = make("canvas"), upper = make("canvas", {tabIndex: 0}), stage = make("div", {className: "stage"}, lower, upper), lines = make("canvas", {className: "lines"});
  const clock = make("output"), slider = make("input", {type: "range", min: 0, max: frames - 1, value: 0}), play = make("button", {type: "button"}, "Play");
  const legend = make("p", {className: "legend"}), cut = make("input", {type: "range", min: 0, max: 1, step: 0.01, value: 0.5, hidden: true});
  slider.setAttribute("aria-label", "Time"); cut.setAttribute("aria-label", "Place of the cutting plane");
  const top = make("div", {className: "controls"}, select("What is shown", views, v => { state.view = v; draw(); }));
  if (fields > 1) top.append(select("Field", about.fields.map((f, k) => [k, f]), v => { state.field = Number(v); draw(); }));
  if (mesh.tets.length) top.append(select("Cutting plane", [["", "no cutting plane"], [0, "cut across x"], [1, "cut across y"], [2, "cut across z"]], v => {
    state.axis = v === "" ? null : Number(v); cut.hidden = v === ""; recut(); }), cut);
  const files = make("div", {className: "controls"}, "Take away: ", ...[["Scores, JSON", saveScores], ["Probes, CSV", saveProbes], ["This time, VTU", saveMesh], ["Picture, PNG", savePicture]].map(
    ([text, act]) => make("button", {type: "button", onclick: act}, text)));
  box.append(top, stage, make("div", {className: "controls"}, play, slider, clock), legend, lines, files);
  const viewer = new FieldViewer(lower, upper, about.colours);
  viewer.open(mesh);
  window.report = {state, viewer, about};

  /** Values of a view at a frame; errors are differences from the truth. */
  function values(view, frame) {
    const made = new Float32Array(n), from = (frame * fields + state.field) * n, low = about.low[state.field], step = (about.high[state.field] - low) / 65535;
    const add = (array, scale) => { for (let i = 0; i < n; i++) made[i] += array[from + i] * scale / 127; };
    if (view === "source") { add(source, about.source[state.field]); return made; }
    if (view === "truth" || view === "0" || view === "1") for (let i = 0; i < n; i++) made[i] = low + truth[from + i] * step;
    const k = Number(view.slice(-1));
    if (view !== "truth") add(errors[k], about.scales[k][state.field]);
    return made;
  }

  function draw() {
    const f = state.field, unit = about.units.fields[f], error = state.view[0] === "e", name = about.fields[f];
    const widest = Math.max(about.scales[0][f], about.scales[1][f]);
    viewer.range = error ? [-widest, widest] : state.view === "source" ? [Math.min(0, ...limits(values("source", state.frame))), about.source[f]] : [about.low[f], about.high[f]];
    viewer.colours(error ? "diverging" : "viridis");
    viewer.label = state.view === "source" ? `source${about.units.source ? ` in ${about.units.source}` : ""}` : `${error ? "Δ" : ""}${name}${unit ? ` in ${unit}` : ""}`;
    const point = node => Array.from(mesh.points.subarray(node * about.dim, (node + 1) * about.dim));
    viewer.marks = state.probes.map((p, k) => ({point: point(p), text: k + 1, colour: SERIES[k]}));
    if (about.peaks.length) {
      for (let k = Math.max(0, state.frame - 8); k < state.frame; k++) for (const node of about.peaks[k]) viewer.marks.push({point: point(node), faint: 1 - (state.frame - k) / 9, colour: "#8a3b12"});
      for (const node of about.peaks[state.frame]) viewer.marks.push({point: point(node), radius: viewer.half * 0.03, colour: "#c2410c"});
    }
    viewer.show(values(state.view, state.frame)); viewer.draw();
    slider.value = state.frame; clock.textContent = `t = ${short(about.times[state.frame], about.times[frames - 1])} ${about.units.time}`.trim();
    probes();
  }

  function probes() {
    lines.hidden = legend.hidden = !state.probes.length;
    if (!state.probes.length) return;
    const error = state.view[0] === "e", shown = state.view === "source" ? ["source"] : error ? ["e0", "e1"] : ["truth", "0", "1"], series = [];
    state.probes.forEach((p, k) => shown.forEach((view, j) => series.push({colour: SERIES[(shown.length * k + j) % SERIES.length], label: `${k + 1}: ${views.find(v => v[0] === view)[1]}`,
      x: about.times, y: about.times.map((t, frame) => values(view, frame)[p])})));
    legend.replaceChildren(...series.map(s => { const dot = make("i"); dot.style.background = s.colour; return make("span", {}, dot, s.label); }));
    chart(lines, series, {now: about.times[state.frame], unit: viewer.label, time: about.units.time ? `t in ${about.units.time}` : "t"});
  }

  function recut() { viewer.cut(state.axis, Number(cut.value)); draw(); }
  cut.oninput = recut;
  slider.oninput = () => { stop(); state.frame = Number(slider.value); draw(); };
  function stop() { state.playing = false; play.textContent = "Play"; }
  function go(last = 0) {
    if (!state.playing) return;
    requestAnimationFrame(now => {
      if (now - last > 90) { last = now; state.frame = (state.frame + 1) % frames; draw(); }
      go(last);
    });
  }
  play.onclick = () => { if (state.playing) return stop(); state.playing = true; play.textContent = "Pause"; go(); };

  let from = null, moved = 0;
  const place = e => { const r = upper.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  upper.onpointerdown = e => { upper.setPointerCapture(e.pointerId); from = place(e); moved = 0; };
  upper.onpointermove = e => {
    if (!from) return;
    const [x, y] = place(e); moved += Math.hypot(x - from[0], y - from[1]);
    if (moved > 4) { viewer[about.dim === 3 && !e.shiftKey ? "rotate" : "pan"](x - from[0], y - from[1]); draw(); }
    from = [x, y];
  };
  upper.onpointerup = e => {
    const hit = moved <= 4 ? viewer.pick(...place(e)) : null; from = null;
    if (hit && hit.inside) { state.probes = [...state.probes.filter(p => p !== hit.node), hit.node].slice(-2); draw(); }
  };
  upper.addEventListener("wheel", e => { if (e.ctrlKey || document.activeElement === upper) { e.preventDefault(); viewer.magnify(Math.exp(-0.0015 * e.deltaY), ...place(e)); draw(); } }, {passive: false});
  upper.ondblclick = () => { viewer.home(); draw(); };
  upper.onkeydown = e => {
    const turn = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (turn) { stop(); state.frame = (state.frame + turn + frames) % frames; draw(); e.preventDefault(); } else if (e.key === " ") { play.onclick(); e.preventDefault(); }
  };

  const stem = about.title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  function saveScores() { download(`${stem}-scores.json`, JSON.stringify(JSON.parse(byId("field-scores").textContent), null, 1), "application/json"); }
  function saveProbes() {
    if (!state.probes.length) state.probes = [mesh.triangles[0]];
    const f = about.fields[state.field], unit = about.units.fields[state.field], kinds = ["truth", "0", "1"], title = v => views.find(w => w[0] === v)[1];
    const rows = about.times.map((t, k) => { const all = kinds.map(v => values(v, k)); return [t, ...state.probes.flatMap(p => all.map(a => a[p]))].join(","); });
    const head = [`t${about.units.time ? ` [${about.units.time}]` : ""}`, ...state.probes.flatMap(p => kinds.map(v => `"node ${p}, ${title(v)}: ${f}${unit ? ` [${unit}]` : ""}"`))];
    download(`${stem}-probes.csv`, [head.join(","), ...rows, ""].join("\n"), "text/csv"); draw();
  }
  function saveMesh() {
    const solid = about.dim === 3 && mesh.tets.length, cells = solid ? mesh.tets : mesh.triangles, corners = solid ? 4 : 3, count = cells.length / corners, kept = state.field, parts = [];
    const list = (name, type, values, more = "") => `<DataArray type="${type}" Name="${name}"${more} format="ascii">${values.join(" ")}</DataArray>`;
    for (state.field = 0; state.field < fields; state.field++) for (const v of ["truth", "0", "1"]) parts.push(list(`${about.fields[state.field]}, ${views.find(w => w[0] === v)[1]}`, "Float32", Array.from(values(v, state.frame), x => x.toPrecision(7))));
    state.field = kept;
    const points = []; for (let i = 0; i < n; i++) for (let a = 0; a < 3; a++) points.push(a < about.dim ? mesh.points[i * about.dim + a] : 0);
    const text = `<?xml version="1.0"?><VTKFile type="UnstructuredGrid" version="0.1" byte_order="LittleEndian"><UnstructuredGrid><Piece NumberOfPoints="${n}" NumberOfCells="${count}">` +
      `<Points>${list("Points", "Float32", points, ' NumberOfComponents="3"')}</Points><Cells>${list("connectivity", "Int64", Array.from(cells))}` +
      `${list("offsets", "Int64", Array.from({length: count}, (_, k) => corners * (k + 1)))}${list("types", "UInt8", Array(count).fill(solid ? 10 : 5))}</Cells>` +
      `<PointData>${parts.join("")}</PointData></Piece></UnstructuredGrid></VTKFile>`;
    download(`${stem}-t-${about.times[state.frame]}.vtu`, text, "application/xml");
  }
  function savePicture() { viewer.picture(1400, "#ffffff", `${about.title}, ${clock.textContent}`).toBlob(blob => download(`${stem}.png`, blob)); }

  new ResizeObserver(draw).observe(stage);
  state.frame = Math.floor(frames / 2); draw();
})();
