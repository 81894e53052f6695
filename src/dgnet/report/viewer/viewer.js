"use strict";
/* A field on a mesh, drawn with WebGL 2 (triangles with one value per node, a colour map as a texture) or, without a graphics card, by
   soft.js.

   Flat meshes are panned and zoomed, solid ones also rotated; a cutting plane opens them. Coordinates given to and by the viewer are
   those of the mesh; inside, they are shifted and scaled to [-1, 1]. A second canvas on top holds what is not the field: colour
   bar, markers, pointer. No library, no network. */

const VERTEX = `#version 300 es
in vec3 place; in float value;
uniform mat4 camera; uniform vec2 range;
out float t; out vec3 x;
void main() { x = place; t = (value - range.x) / (range.y - range.x); gl_Position = camera * vec4(place, 1.0); }`;
const FRAGMENT = `#version 300 es
precision highp float;
in float t; in vec3 x;
uniform sampler2D map; uniform vec4 cut; uniform float solid, bands; uniform vec4 plain;
out vec4 colour;
void main() {
  if (cut.w < 9.0 && dot(cut.xyz, x) > cut.w) discard;
  if (plain.a > 0.0) { colour = plain; return; }
  vec3 c = texture(map, vec2(clamp(t, 0.0, 1.0) * (255.0 / 256.0) + 0.5 / 256.0, 0.5)).rgb;
  if (bands > 0.0) {
    float b = t * bands, d = abs(fract(b - 0.5) - 0.5) / max(fwidth(b), 1e-6);
    c = mix(c, dot(c, vec3(0.3, 0.6, 0.1)) > 0.45 ? vec3(0.0) : vec3(1.0), 0.55 * (1.0 - smoothstep(0.4, 1.2, d)));
  }
  if (solid > 0.0) { vec3 n = normalize(cross(dFdx(x), dFdy(x))); c *= 0.72 + 0.28 * abs(dot(n, normalize(vec3(0.35, 0.5, 0.8)))); }
  colour = vec4(c, 1.0);
}`;

const NARROW = 560;  // CSS pixels below which the colour bar lies across the top instead of standing at the left

class FieldViewer {
  /** `canvas` shows the field, `overlay` lies on top of it; `maps` are colour maps by name, base64 of RGB bytes. */
  constructor(canvas, overlay, maps) {
    this.canvas = canvas; this.overlay = overlay;
    this.gl = FieldViewer.card() ? canvas.getContext("webgl2", {antialias: true}) : null;
    this.soft = this.gl ? null : new SoftField(canvas); this.opened = 0;
    this.maps = {};
    for (const [name, text] of Object.entries(maps)) this.maps[name] = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    this.marks = []; this.range = [0, 1]; this.bands = 0; this.edges = false; this.label = "";
    this.ink = "#1d2733"; this.plane = null; this.logarithmic = false; this.legend = true;
    this.headroom = 0;  // CSS pixels at the top that the page has put tools over
    if (this.gl) this._start();
    canvas.addEventListener("webglcontextlost", e => e.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => {
      this._start(); this.colours(this.map); if (this.mesh) { const v = this.values, p = this.plane; this.open(this.mesh, true); this.plane = p; if (v) this.show(v); }
    });
    this.colours("viridis");
  }

  /** Whether a graphics card draws WebGL. Where the processor would imitate one, SoftField is several times quicker. */
  static card() {
    const gl = document.createElement("canvas").getContext("webgl2"), info = gl && gl.getExtension("WEBGL_debug_renderer_info");
    const name = info ? String(gl.getParameter(info.UNMASKED_RENDERER_WEBGL)) : "";
    if (gl) gl.getExtension("WEBGL_lose_context")?.loseContext();
    return !!gl && !/swiftshader|llvmpipe|softpipe|software|basic render/i.test(name) || location.hash === "#webgl";
  }

  _start() {
    const gl = this.gl, program = this.program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text); gl.compileShader(shader); gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error("The viewer's shader does not run here.");
    gl.useProgram(program);
    this.at = {};
    for (const name of ["camera", "range", "cut", "solid", "bands", "plain"]) this.at[name] = gl.getUniformLocation(program, name);
    this.place = gl.getAttribLocation(program, "place"); this.value = gl.getAttribLocation(program, "value");
    this.buffers = {};
    for (const name of ["points", "values", "triangles", "edges", "lines", "cutPoints", "cutValues"]) this.buffers[name] = gl.createBuffer();
    this.texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    for (const [k, v] of [[gl.TEXTURE_MIN_FILTER, gl.LINEAR], [gl.TEXTURE_MAG_FILTER, gl.LINEAR], [gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE],
                          [gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE]]) gl.texParameteri(gl.TEXTURE_2D, k, v);
    gl.depthFunc(gl.LEQUAL); gl.enable(gl.POLYGON_OFFSET_FILL); gl.polygonOffset(1, 4);
  }

  // ---------------------------------------------------------------- what is shown

  /** mesh: dim, points [N*dim] (Float32Array), triangles, tets, lines (Uint32Array). The camera stays where `keep` is true. */
  open(mesh, keep = false) {
    const n = mesh.points.length / mesh.dim, low = [Infinity, Infinity, Infinity], high = [-Infinity, -Infinity, -Infinity];
    for (let i = 0; i < n; i++) for (let a = 0; a < mesh.dim; a++) {
      const v = mesh.points[i * mesh.dim + a];
      if (v < low[a]) low[a] = v; if (v > high[a]) high[a] = v;
    }
    if (mesh.dim === 2) low[2] = high[2] = 0;
    this.centre = low.map((v, a) => (v + high[a]) / 2);
    this.half = Math.max(...low.map((v, a) => high[a] - v)) / 2 || 1;
    this.extent = low.map((v, a) => (high[a] - v) / 2 / this.half);
    const x = this.x = new Float32Array(3 * n);
    for (let i = 0; i < n; i++) for (let a = 0; a < mesh.dim; a++) x[3 * i + a] = (mesh.points[i * mesh.dim + a] - this.centre[a]) / this.half;
    this.mesh = mesh; this.n = n; this.values = null; this.plane = null; this.section = null; this.grid = null; this.opened++;
    if (!keep) this.home();
    if (!this.gl) return;
    const t = mesh.triangles, e = new Uint32Array(2 * t.length), index = this.gl.ELEMENT_ARRAY_BUFFER;
    for (let k = 0; k < t.length; k += 3) e.set([t[k], t[k + 1], t[k + 1], t[k + 2], t[k + 2], t[k]], 2 * k);
    this._fill("points", this.gl.ARRAY_BUFFER, x);
    for (const [name, data] of [["triangles", t], ["lines", mesh.lines], ["edges", e]]) this._fill(name, index, data);
  }

  _bottom() { return this.headroom ? 52 : 24; }

  /** The whole mesh, a little lower than the middle: tools and the colour bar may be above it. */
  home() {
    this.zoom = 1; this.turn = this.mesh && this.mesh.dim === 3 ? [-0.6, -1.05] : [0, 0]; this._look = null;
    this.shift = [0, -(this._top() - this._bottom()) / 2 / this._scale()];
  }

  _fill(name, target, data) { this.gl.bindBuffer(target, this.buffers[name]); this.gl.bufferData(target, data, this.gl.DYNAMIC_DRAW); }

  /** Values at the nodes [N] (Float32Array). */
  show(values) {
    this.values = values;
    if (this.gl) this._fill("values", this.gl.ARRAY_BUFFER, values);
    if (this.section) this._cutValues();
  }

  colours(name) {
    const gl = this.gl, rgb = this.maps[name]; this.map = name;
    if (!gl) return;
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGB, 256, 1, 0, gl.RGB, gl.UNSIGNED_BYTE, rgb);
  }

  /** Cut a solid mesh by the plane x[axis] = low + share * (high - low); what lies beyond it is hidden. null: no cut. */
  cut(axis, share) {
    if (axis === null || this.mesh.dim === 2) { this.plane = this.section = null; return; }
    const d = (2 * share - 1) * this.extent[axis] * 1.0001;
    this.plane = [axis === 0 ? 1 : 0, axis === 1 ? 1 : 0, axis === 2 ? 1 : 0, d];
    const tets = this.mesh.tets, x = this.x, ends = [], weights = [];
    const corner = (a, b) => { const p = x[3 * a + axis] - d, q = x[3 * b + axis] - d; ends.push(a, b); weights.push(p / (p - q)); };
    for (let k = 0; k < tets.length; k += 4) {
      const up = [], down = [];
      for (let j = 0; j < 4; j++) (x[3 * tets[k + j] + axis] > d ? up : down).push(tets[k + j]);
      if (up.length === 1 || up.length === 3) {
        const [one, rest] = up.length === 1 ? [up[0], down] : [down[0], up];
        for (const other of rest) corner(one, other);
      } else if (up.length === 2) {
        const quad = [[up[0], down[0]], [up[0], down[1]], [up[1], down[1]], [up[1], down[0]]];
        for (const j of [0, 1, 2, 0, 2, 3]) corner(...quad[j]);
      }
    }
    const m = weights.length, place = new Float32Array(3 * m);
    for (let i = 0; i < m; i++) for (let a = 0; a < 3; a++) {
      const p = x[3 * ends[2 * i] + a]; place[3 * i + a] = p + weights[i] * (x[3 * ends[2 * i + 1] + a] - p);
    }
    this.section = {ends: Uint32Array.from(ends), weights: Float32Array.from(weights), place, values: new Float32Array(m)};
    if (this.gl) this._fill("cutPoints", this.gl.ARRAY_BUFFER, place);
    if (this.values) this._cutValues();
  }

  _cutValues() {
    const {ends, weights, values} = this.section, v = this.values;
    for (let i = 0; i < weights.length; i++) { const p = v[ends[2 * i]]; values[i] = p + weights[i] * (v[ends[2 * i + 1]] - p); }
    if (this.gl) this._fill("cutValues", this.gl.ARRAY_BUFFER, values);
  }

  // ---------------------------------------------------------------- camera

  pan(dx, dy) { const s = this._scale(); this.shift[0] += dx / s; this.shift[1] -= dy / s; this._look = null; }

  rotate(dx, dy) {
    this.turn[0] += 0.008 * dx; this.turn[1] = Math.max(-Math.PI, Math.min(0, this.turn[1] + 0.008 * dy)); this._look = null;
  }

  /** Zoom by a factor so that the point under (x, y), in CSS pixels of the canvas, stays. */
  magnify(factor, x, y) {
    const next = Math.max(0.2, Math.min(200, this.zoom * factor)), w = this.canvas.clientWidth, h = this.canvas.clientHeight;
    const f = next / this.zoom, px = (x - w / 2) / this._scale(), py = (h / 2 - y) / this._scale();
    this.shift = [px - f * (px - this.shift[0]), py - f * (py - this.shift[1])].map(v => v / f);
    this.zoom = next; this._look = null;
  }

  /** CSS pixels per unit of the inner coordinates. */
  _scale() {
    const w = this.canvas.clientWidth, h = this.canvas.clientHeight, e = this.extent || [1, 1, 1];
    const r = this.mesh && this.mesh.dim === 3 ? Math.hypot(...e) * 0.92 : 0;
    const room = this.legend && w >= NARROW ? 84 : 16;
    return this.zoom * Math.min(Math.max(w - 2 * room, 60) / 2 / (r || e[0]), Math.max(h - this._top() - this._bottom(), 60) / 2 / (r || e[1]));
  }

  /** CSS pixels above the mesh that tools and, on narrow pages, the colour bar take. */
  _top() { return 24 + (this.canvas.clientWidth < NARROW && this.legend ? this.headroom + 56 : 0.6 * this.headroom); }

  /** Rotation matrix, rows: right, up, towards the eye. */
  _axes() {
    if (!this._look) {
      const [c, s] = [Math.cos(this.turn[0]), Math.sin(this.turn[0])], [p, q] = [Math.cos(this.turn[1]), Math.sin(this.turn[1])];
      this._look = this.mesh && this.mesh.dim === 3 ? [[c, -s, 0], [p * s, p * c, -q], [q * s, q * c, p]] : [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    }
    return this._look;
  }

  _camera() {
    const [r, u, f] = this._axes(), s = this._scale(), w = this.canvas.clientWidth, h = this.canvas.clientHeight;
    const a = 2 * s / w, b = 2 * s / h;
    return new Float32Array([a * r[0], b * u[0], -f[0] / 4, 0, a * r[1], b * u[1], -f[1] / 4, 0, a * r[2], b * u[2], -f[2] / 4, 0,
                             a * this.shift[0], b * this.shift[1], 0, 1]);
  }

  /** A point of the mesh in CSS pixels of the canvas. */
  project(point) {
    const y = [0, 1, 2].map(a => ((point[a] || 0) - this.centre[a]) / this.half), [r, u] = this._axes(), s = this._scale();
    const dot = v => v[0] * y[0] + v[1] * y[1] + v[2] * y[2];
    return [this.canvas.clientWidth / 2 + s * (dot(r) + this.shift[0]), this.canvas.clientHeight / 2 - s * (dot(u) + this.shift[1])];
  }

  /** What lies under a place in CSS pixels: point (mesh coordinates), nearest node, and whether it is on the mesh; null in space. */
  pick(px, py) {
    const s = this._scale(), [r, u, f] = this._axes();
    const a = (px - this.canvas.clientWidth / 2) / s - this.shift[0], b = (this.canvas.clientHeight / 2 - py) / s - this.shift[1];
    const flat = this.mesh.dim === 2, best = {depth: -Infinity}, x = this.x;
    const view = (v, at, array) => v[0] * array[3 * at] + v[1] * array[3 * at + 1] + v[2] * array[3 * at + 2];
    const test = (array, i, j, k, names) => {
      const ax = view(r, i, array) - a, ay = view(u, i, array) - b, bx = view(r, j, array) - a, by = view(u, j, array) - b;
      const cx = view(r, k, array) - a, cy = view(u, k, array) - b;
      const A = bx * cy - cx * by, B = cx * ay - ax * cy, C = ax * by - bx * ay, sum = A + B + C;
      if (!(A >= 0 && B >= 0 && C >= 0) && !(A <= 0 && B <= 0 && C <= 0) || sum === 0) return;
      const w = [A / sum, B / sum, C / sum], p = [0, 1, 2].map(c => w[0] * array[3 * i + c] + w[1] * array[3 * j + c] + w[2] * array[3 * k + c]);
      if (this.plane && array === x && this.plane[0] * p[0] + this.plane[1] * p[1] + this.plane[2] * p[2] > this.plane[3]) return;
      const depth = flat ? 0 : f[0] * p[0] + f[1] * p[1] + f[2] * p[2];
      if (depth > best.depth) { best.depth = depth; best.p = p; best.node = names[w.indexOf(Math.max(...w))]; }
    };
    const t = this.mesh.triangles;
    if (flat) { for (const k of this._near(a, b)) test(x, t[k], t[k + 1], t[k + 2], [t[k], t[k + 1], t[k + 2]]); }
    else for (let k = 0; k < t.length; k += 3) test(x, t[k], t[k + 1], t[k + 2], [t[k], t[k + 1], t[k + 2]]);
    if (this.section) {
      const {ends, weights, place} = this.section, name = i => ends[2 * i + (weights[i] > 0.5 ? 1 : 0)];
      for (let k = 0; k < weights.length; k += 3) test(place, k, k + 1, k + 2, [name(k), name(k + 1), name(k + 2)]);
    }
    const inside = best.depth > -Infinity, p = inside ? best.p : flat ? [a, b, 0] : null;
    if (!p) return null;
    return {inside, node: inside ? best.node : -1, point: [0, 1, 2].slice(0, this.mesh.dim).map(c => p[c] * this.half + this.centre[c])};
  }

  /** Triangles of a flat mesh near a place: those of one cell of a coarse grid. */
  _near(a, b) {
    const t = this.mesh.triangles, x = this.x;
    if (!this.grid) {
      const m = Math.max(1, Math.min(256, Math.round(Math.sqrt(t.length / 12)))), cells = Array.from({length: m * m}, () => []);
      const place = v => Math.max(0, Math.min(m - 1, Math.floor((v + 1) / 2 * m)));
      for (let k = 0; k < t.length; k += 3) {
        const X = [x[3 * t[k]], x[3 * t[k + 1]], x[3 * t[k + 2]]], Y = [x[3 * t[k] + 1], x[3 * t[k + 1] + 1], x[3 * t[k + 2] + 1]];
        for (let i = place(Math.min(...X)); i <= place(Math.max(...X)); i++)
          for (let j = place(Math.min(...Y)); j <= place(Math.max(...Y)); j++) cells[i * m + j].push(k);
      }
      this.grid = {m, cells, place};
    }
    const {m, cells, place} = this.grid;
    return cells[place(a) * m + place(b)];
  }

  // ---------------------------------------------------------------- drawing

  _size(canvas) {
    const ratio = Math.min(window.devicePixelRatio || 1, 2), w = Math.max(1, Math.round(canvas.clientWidth * ratio));
    const h = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    return ratio;
  }

  draw() {
    this._size(this.canvas);
    if (this.gl) this._drawCard(); else if (this.mesh && this.values) this.soft.draw(this);
    this._above();
  }

  _drawCard() {
    const gl = this.gl;
    gl.viewport(0, 0, this.canvas.width, this.canvas.height);
    gl.clearColor(0, 0, 0, 0); gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    if (this.mesh && this.values) {
      const solid = this.mesh.dim === 3;
      solid ? gl.enable(gl.DEPTH_TEST) : gl.disable(gl.DEPTH_TEST);
      gl.uniformMatrix4fv(this.at.camera, false, this._camera());
      const [lo, hi] = this.range;
      gl.uniform2f(this.at.range, lo, hi > lo ? hi : lo + 1);
      gl.uniform4fv(this.at.cut, this.plane || [0, 0, 0, 10]);
      gl.uniform1f(this.at.solid, solid ? 1 : 0); gl.uniform1f(this.at.bands, this.bands);
      gl.uniform4f(this.at.plain, 0, 0, 0, 0);
      this._attribute("points", this.place, 3); this._attribute("values", this.value, 1);
      this._elements("triangles", gl.TRIANGLES, this.mesh.triangles.length);
      if (this.edges) { gl.uniform4f(this.at.plain, 0, 0, 0, 0.18);  // every inner edge is drawn twice
        gl.enable(gl.BLEND); gl.blendFunc(gl.ZERO, gl.ONE_MINUS_SRC_ALPHA);
        gl.colorMask(true, true, true, false); this._elements("edges", gl.LINES, 2 * this.mesh.triangles.length);
        gl.colorMask(true, true, true, true); gl.disable(gl.BLEND); }
      const ink = this._rgb(this.ink);
      if (this.mesh.lines.length) { gl.uniform4f(this.at.plain, ...ink, 1); this._elements("lines", gl.LINES, this.mesh.lines.length); }
      gl.uniform4f(this.at.plain, 0, 0, 0, 0);
      if (this.section) {
        gl.uniform4fv(this.at.cut, [0, 0, 0, 10]); gl.uniform1f(this.at.solid, 0);
        this._attribute("cutPoints", this.place, 3); this._attribute("cutValues", this.value, 1);
        gl.drawArrays(gl.TRIANGLES, 0, this.section.weights.length);
      }
    }
  }

  _rgb(text) { return [1, 3, 5].map(k => parseInt(text.slice(k, k + 2), 16) / 255); }
  _attribute(buffer, at, size) {
    const gl = this.gl; gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[buffer]); gl.enableVertexAttribArray(at); gl.vertexAttribPointer(at, size, gl.FLOAT, false, 0, 0);
  }
  _elements(buffer, kind, count) {
    const gl = this.gl; gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.buffers[buffer]); gl.drawElements(kind, count, gl.UNSIGNED_INT, 0);
  }

  /** Colour bar, markers and the pointer on the canvas on top. marks: {point, text, colour, radius (in mesh lengths), cross, faint (opacity)}. */
  _above() {
    const h = this.canvas.clientHeight, bar = this._scaleMarks();
    const marks = this.mesh ? this.marks.map(m => [...this.project(m.point).map(Math.round), m.text, m.colour, m.faint, m.radius && m.radius * this.zoom]) : [];
    const now = JSON.stringify([h, this.canvas.clientWidth, window.devicePixelRatio, marks, bar, this.plane, this.label, this.map, this.ink, !!this.values]);
    if (now === this._drawn) return;  // a second layer that changes in every frame would cost as much as the field
    this._drawn = now;
    const ratio = this._size(this.overlay), c = this.overlay.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0); c.clearRect(0, 0, this.overlay.width, this.overlay.height);
    if (!this.mesh) return;
    c.font = "600 12px system-ui, sans-serif"; c.textBaseline = "middle";
    for (const mark of this.marks) {
      if (this._cutAway(mark.point)) continue;
      const [x, y] = this.project(mark.point);
      if (mark.radius) {
        c.beginPath(); c.arc(x, y, Math.max(4, mark.radius / this.half * this._scale()), 0, 7); c.lineWidth = 3;
        c.strokeStyle = "rgba(255,255,255,.75)"; c.stroke(); c.lineWidth = 1.5; c.strokeStyle = mark.colour; c.stroke();
      } else if (mark.faint) {
        c.beginPath(); c.arc(x, y, 2.5, 0, 7); c.globalAlpha = mark.faint; c.fillStyle = mark.colour; c.fill(); c.globalAlpha = 1;
      } else if (mark.cross) {
        for (const [width, style] of [[4, "rgba(255,255,255,.85)"], [1.5, mark.colour]]) {
          c.beginPath(); c.moveTo(x - 9, y); c.lineTo(x + 9, y); c.moveTo(x, y - 9); c.lineTo(x, y + 9); c.lineWidth = width; c.strokeStyle = style; c.stroke();
        }
      } else {
        c.beginPath(); c.arc(x, y, 9, 0, 7); c.fillStyle = mark.colour; c.fill(); c.lineWidth = 2; c.strokeStyle = "#fff"; c.stroke();
        c.fillStyle = "#fff"; c.textAlign = "center"; c.fillText(mark.text, x, y + 0.5);
      }
    }
    if (bar.length) this._bar(c, bar);
  }

  /** Whether a point lies in the part that the cutting plane hides. */
  _cutAway(point) {
    if (!this.plane) return false;
    const axis = this.plane.indexOf(1);
    return (point[axis] - this.centre[axis]) / this.half > this.plane[3] + 1e-3;
  }

  /** Length of the colour bar in CSS pixels. */
  _barLength() { const w = this.canvas.clientWidth; return w < NARROW ? w - 48 : Math.min(260, this.canvas.clientHeight - 84); }

  /** The colour bar's numbers as [pixels from its low end, text]; none where there is no room. */
  _scaleMarks() {
    const size = this._barLength(), [lo, hi] = this.range;
    if (!this.legend || size < 60 || !this.values) return [];
    return ticks(lo, hi, 5).map(v => [Math.round(size * (v - lo) / (hi - lo)), this.logarithmic ? `10${raised(v)}` : short(v, hi - lo)]);
  }

  _bar(c, numbers) {
    const rgb = this.maps[this.map], size = this._barLength(), flat = this.canvas.clientWidth < NARROW, top = flat ? this.headroom + 40 : 44, left = flat ? 24 : 16;
    for (let k = 0; k < size; k++) {
      const i = Math.min(255, Math.floor(256 * (flat ? k / size : 1 - k / size)));
      c.fillStyle = `rgb(${rgb[3 * i]},${rgb[3 * i + 1]},${rgb[3 * i + 2]})`;
      flat ? c.fillRect(left + k, top, 1.5, 12) : c.fillRect(left, top + k, 14, 1.5);
    }
    c.strokeStyle = this.ink; c.globalAlpha = 0.5; c.lineWidth = 1;
    c.strokeRect(left - 0.5, top - 0.5, flat ? size + 1 : 15, flat ? 13 : size + 1); c.globalAlpha = 1;
    c.fillStyle = this.ink; c.textAlign = flat ? "center" : "left"; c.font = "12px system-ui, sans-serif";
    for (const [at, text] of numbers) {
      if (flat) { c.fillRect(left + at - 0.5, top + 13, 1, 4); c.fillText(text, Math.min(left + at, left + size - 8), top + 25); }
      else { c.fillRect(31, top + size - at - 0.5, 4, 1); c.fillText(text, 39, top + size - at + 0.5); }
    }
    c.textAlign = "left"; c.font = "600 13px system-ui, sans-serif"; c.fillText(this.label, flat ? left : 15, flat ? top - 14 : top - 20);
  }

  /** Everything as one picture of a given width, with a title line. Returns a canvas. */
  picture(width, background, title) {
    this.draw();
    const w = this.canvas.clientWidth, h = this.canvas.clientHeight, s = width / w, made = document.createElement("canvas");
    made.width = Math.round(width); made.height = Math.round(h * s);
    const c = made.getContext("2d");
    c.fillStyle = background; c.fillRect(0, 0, made.width, made.height);
    c.imageSmoothingQuality = "high";
    c.drawImage(this.canvas, 0, 0, made.width, made.height); c.drawImage(this.overlay, 0, 0, made.width, made.height);
    if (title) {
      c.fillStyle = this.ink; c.font = `600 ${Math.round(13 * s)}px system-ui, sans-serif`; c.textAlign = "right"; c.textBaseline = "bottom";
      c.fillText(title, made.width - 12 * s, made.height - 10 * s);
    }
    return made;
  }
}

/** About `count` round numbers between two limits. */
function ticks(lo, hi, count) {
  if (!(hi > lo)) return [lo];
  const raw = (hi - lo) / count, power = 10 ** Math.floor(Math.log10(raw)), step = power * [1, 2, 5, 10].find(m => m * power >= raw * 0.999);
  const found = [];
  for (let v = Math.ceil(lo / step - 1e-9) * step; v <= hi + 1e-9 * step; v += step) found.push(Math.abs(v) < 1e-9 * step ? 0 : v);
  return found;
}

/** A number with as many digits as a difference of `span` needs. */
function short(v, span) {
  if (!Number.isFinite(v)) return "–";
  const size = Math.max(Math.abs(v), span || 0);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return v === 0 ? "0" : v.toExponential(Math.max(0, Math.min(4, Math.ceil(Math.log10(Math.abs(v) / (span || Math.abs(v)))) + 1))).replace("e+", "e");
  const digits = span > 0 ? Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(span)))) : 3;
  return String(parseFloat(v.toFixed(digits)));
}
function raised(v) { return String(v).replace(/./g, d => "⁰¹²³⁴⁵⁶⁷⁸⁹"["0123456789".indexOf(d)] || (d === "-" ? "⁻" : "·")); }

/** Smallest and largest value. */
function limits(values) {
  let lo = Infinity, hi = -Infinity;
  for (let i = 0; i < values.length; i++) { const v = values[i]; if (v < lo) lo = v; if (v > hi) hi = v; }
  return [lo, hi];
}

/** Hand a file to the person: `content` is a string, a Blob or bytes. */
function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], {type}));
  link.download = name; document.body.append(link); link.click(); link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
