"use strict";
/* The field without a graphics card. Which triangle lies under a pixel depends on the camera alone, so it is found once per camera;
   then a frame is one interpolation and one look into the colour table per pixel, whatever the number of nodes. */

class SoftField {
  constructor(canvas) { this.canvas = canvas; this.context = canvas.getContext("2d"); this.key = ""; }

  /** Draw what the viewer shows. */
  draw(viewer) {
    const w = this.canvas.width, h = this.canvas.height;
    const key = [w, h, viewer.zoom, viewer.shift, viewer.turn, viewer.plane, viewer.opened, viewer.edges].join();
    if (key !== this.key) { this.key = key; this._raster(viewer, w, h); }
    const {i, j, k, a, b, at, shade} = this.pixels, rgb = viewer.maps[viewer.map], table = new Uint32Array(16 * 256);
    for (let s = 0; s < 16; s++) for (let c = 0; c < 256; c++) {
      const f = (s + 1) / 16;
      table[256 * s + c] = 255 << 24 | Math.round(f * rgb[3 * c + 2]) << 16 | Math.round(f * rgb[3 * c + 1]) << 8 | Math.round(f * rgb[3 * c]);
    }
    let v = viewer.values;
    if (viewer.section) { v = new Float32Array(viewer.n + viewer.section.values.length); v.set(viewer.values); v.set(viewer.section.values, viewer.n); }
    const [lo, hi] = viewer.range, scale = 256 / (hi > lo ? hi - lo : 1), out = this.out, bands = viewer.bands / 256, count = at.length;
    for (let p = 0; p < count; p++) {
      const x = a[p], y = b[p];
      let c = (x * v[i[p]] + y * v[j[p]] + (1 - x - y) * v[k[p]] - lo) * scale;
      c = c < 0 ? 0 : c > 255 ? 255 : c | 0;
      out[at[p]] = table[shade[p] << 8 | c];
    }
    if (bands) this._bands(v, lo, scale, bands);
    this.context.putImageData(this.image, 0, 0);
  }

  /** Lines of equal value: pixels whose band differs from that of the pixel to the left or above. */
  _bands(v, lo, scale, bands) {
    const {i, j, k, a, b, at} = this.pixels, w = this.canvas.width, band = new Int16Array(this.out.length).fill(-9999);
    for (let p = 0; p < at.length; p++) {
      const q = at[p], mine = band[q] = Math.round((a[p] * v[i[p]] + b[p] * v[j[p]] + (1 - a[p] - b[p]) * v[k[p]] - lo) * scale * bands);
      if (band[q - 1] > -9999 && band[q - 1] !== mine || band[q - w] > -9999 && band[q - w] !== mine) this.out[q] = 0xff302820;
    }
  }

  _raster(viewer, w, h) {
    const n = viewer.n, solid = viewer.mesh.dim === 3, cutting = viewer.section, total = n + (cutting ? cutting.weights.length : 0);
    const place = q => q < n ? [viewer.x, q] : [cutting.place, q - n];
    const [r, u, f] = viewer._axes(), s = viewer._scale() * w / this.canvas.clientWidth, X = new Float32Array(total), Y = new Float32Array(total), Z = new Float32Array(total);
    for (let q = 0; q < total; q++) {
      const [x, e] = place(q);
      X[q] = w / 2 + s * (r[0] * x[3 * e] + r[1] * x[3 * e + 1] + r[2] * x[3 * e + 2] + viewer.shift[0]);
      Y[q] = h / 2 - s * (u[0] * x[3 * e] + u[1] * x[3 * e + 1] + u[2] * x[3 * e + 2] + viewer.shift[1]);
      Z[q] = f[0] * x[3 * e] + f[1] * x[3 * e + 1] + f[2] * x[3 * e + 2];
    }
    const size = w * h, owner = new Int32Array(size).fill(-1), depth = solid ? new Float32Array(size).fill(-9) : null, A = new Float32Array(size), B = new Float32Array(size);
    const t = viewer.mesh.triangles, own = t.length / 3, all = own + (total - n) / 3, corner = (m, c) => m < own ? t[3 * m + c] : n + 3 * (m - own) + c;
    const plane = viewer.plane, light = new Uint8Array(all).fill(15);
    for (let m = 0; m < all; m++) {
      const i = corner(m, 0), j = corner(m, 1), k = corner(m, 2);
      const area = (X[j] - X[i]) * (Y[k] - Y[i]) - (X[k] - X[i]) * (Y[j] - Y[i]);
      if (area === 0) continue;
      if (solid && m < own) light[m] = this._light(viewer.x, i, j, k);
      const x0 = Math.max(0, Math.ceil(Math.min(X[i], X[j], X[k]) - 0.5)), x1 = Math.min(w - 1, Math.floor(Math.max(X[i], X[j], X[k]) - 0.5));
      const y0 = Math.max(0, Math.ceil(Math.min(Y[i], Y[j], Y[k]) - 0.5)), y1 = Math.min(h - 1, Math.floor(Math.max(Y[i], Y[j], Y[k]) - 0.5));
      const rim = viewer.edges ? 0.7 * Math.max(Math.hypot(X[j] - X[i], Y[j] - Y[i]), Math.hypot(X[k] - X[i], Y[k] - Y[i]), 1) / Math.abs(area) : 0;
      for (let y = y0; y <= y1; y++) for (let x = x0; x <= x1; x++) {
        const px = x + 0.5, py = y + 0.5;
        const a = ((X[j] - px) * (Y[k] - py) - (X[k] - px) * (Y[j] - py)) / area, b = ((X[k] - px) * (Y[i] - py) - (X[i] - px) * (Y[k] - py)) / area, c = 1 - a - b;
        if (a < -1e-6 || b < -1e-6 || c < -1e-6) continue;
        const p = y * w + x;
        if (solid) {
          if (plane && m < own) {
            const axis = plane.indexOf(1), v = viewer.x;
            if (a * v[3 * i + axis] + b * v[3 * j + axis] + c * v[3 * k + axis] > plane[3]) continue;
          }
          const z = a * Z[i] + b * Z[j] + c * Z[k];
          if (z <= depth[p]) continue;
          depth[p] = z;
        }
        owner[p] = m; A[p] = rim && Math.min(a, b, c) < rim ? a + 8 : a; B[p] = b;  // +8 marks an edge of the mesh
      }
    }
    this._compact(owner, A, B, corner, light, w, h);
  }

  /** Brightness of a triangle of a surface, 0 to 15, as the graphics card's. */
  _light(x, i, j, k) {
    const p = [0, 1, 2].map(c => x[3 * j + c] - x[3 * i + c]), q = [0, 1, 2].map(c => x[3 * k + c] - x[3 * i + c]);
    const n = [p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]], size = Math.hypot(...n) || 1;
    return Math.round(15 * (0.72 + 0.28 * Math.abs(0.35 * n[0] + 0.5 * n[1] + 0.8 * n[2]) / size / 1.007));
  }

  /** Keep the pixels that show something, in rows of arrays. */
  _compact(owner, A, B, corner, light, w, h) {
    let count = 0;
    for (let p = 0; p < owner.length; p++) if (owner[p] >= 0) count++;
    const made = {i: new Uint32Array(count), j: new Uint32Array(count), k: new Uint32Array(count), a: new Float32Array(count), b: new Float32Array(count),
                  at: new Uint32Array(count), shade: new Uint8Array(count)};
    for (let p = 0, q = 0; p < owner.length; p++) {
      const m = owner[p];
      if (m < 0) continue;
      const edge = A[p] > 4;
      made.i[q] = corner(m, 0); made.j[q] = corner(m, 1); made.k[q] = corner(m, 2); made.a[q] = edge ? A[p] - 8 : A[p]; made.b[q] = B[p]; made.at[q] = p;
      made.shade[q++] = edge ? light[m] * 0.7 : light[m];
    }
    this.pixels = made; this.image = this.context.createImageData(w, h); this.out = new Uint32Array(this.image.data.buffer);
  }
}
