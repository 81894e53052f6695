"use strict";
/* Lines over time on a canvas: series of {label, colour, x, y}; `now` marks a time. */

function chart(canvas, series, {now = null, unit = "", time = "", ink = "#1d2733", quiet = "#66717e", line = "#e3e7eb"} = {}) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2), w = canvas.clientWidth, h = canvas.clientHeight;
  canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
  const c = canvas.getContext("2d"); c.scale(ratio, ratio); c.clearRect(0, 0, w, h);
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const s of series) {
    const [a, b] = limits(s.x), [p, q] = limits(s.y);
    x0 = Math.min(x0, a); x1 = Math.max(x1, b); y0 = Math.min(y0, p); y1 = Math.max(y1, q);
  }
  c.font = "11px system-ui, sans-serif"; c.textBaseline = "middle";
  if (!(x1 > x0)) { c.fillStyle = quiet; c.textAlign = "center"; c.fillText("No history yet: let it run.", w / 2, h / 2); return; }
  if (!(y1 > y0)) { const pad = Math.max(1e-6, 1e-3 * Math.abs(y0)); y0 -= pad; y1 += pad; }
  const left = 48, right = 8, top = 16, bottom = 20;
  const X = v => left + (v - x0) / (x1 - x0) * (w - left - right), Y = v => h - bottom - (v - y0) / (y1 - y0) * (h - top - bottom);
  c.textAlign = "right";
  for (const v of ticks(y0, y1, 4)) {
    c.fillStyle = line; c.fillRect(left, Math.round(Y(v)), w - left - right, 1); c.fillStyle = quiet; c.fillText(short(v, y1 - y0), left - 6, Y(v));
  }
  c.textAlign = "center";
  for (const v of ticks(x0, x1, 4)) { c.fillStyle = quiet; c.fillText(short(v, x1 - x0), Math.min(Math.max(X(v), left + 8), w - 18), h - 8); }
  c.textAlign = "left"; c.fillText(unit, 4, 7); c.textAlign = "right"; c.fillText(time, w - right, 7);
  if (now !== null && now >= x0 && now <= x1) { c.fillStyle = quiet; c.fillRect(X(now) - 0.5, top, 1, h - top - bottom); }
  c.lineWidth = 1.8; c.lineJoin = "round";
  for (const s of series) {
    c.strokeStyle = s.colour; c.beginPath();
    for (let i = 0; i < s.x.length; i++) i ? c.lineTo(X(s.x[i]), Y(s.y[i])) : c.moveTo(X(s.x[i]), Y(s.y[i]));
    c.stroke();
  }
}

/** Eight colours that differ for every common colour blindness (Okabe and Ito 2008). */
const SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6000", "#6b6b6b"];
