"use strict";
/* An animated GIF from canvases: 255 frequent colours of all frames, then LZW. */

async function makeGif(frames, draw, delay, tell) {
  const first = draw(0), w = first.width, h = first.height, counts = new Map(), images = [];
  for (let k = 0; k < frames; k++) {
    const data = (k ? draw(k) : first).getContext("2d").getImageData(0, 0, w, h).data, small = new Uint16Array(w * h);
    for (let i = 0; i < small.length; i++) small[i] = (data[4 * i] >> 3) << 10 | (data[4 * i + 1] >> 3) << 5 | data[4 * i + 2] >> 3;
    for (let i = 0; i < small.length; i += 3) counts.set(small[i], (counts.get(small[i]) || 0) + 1);
    images.push(small);
    tell(k / frames / 2); await new Promise(r => setTimeout(r));
  }
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(p => p[0]);
  while (palette.length < 256) palette.push(0);
  const part = c => [c >> 10, c >> 5 & 31, c & 31], parts = palette.map(part), index = new Int16Array(32768).fill(-1);
  const nearest = c => {
    if (index[c] < 0) {
      const [r, g, b] = part(c); let best = Infinity;
      parts.forEach((p, i) => { const d = (p[0] - r) ** 2 + (p[1] - g) ** 2 + (p[2] - b) ** 2; if (d < best) { best = d; index[c] = i; } });
    }
    return index[c];
  };
  const out = [], word = v => out.push(v & 255, v >> 8), text = s => { for (const c of s) out.push(c.charCodeAt(0)); };
  text("GIF89a"); word(w); word(h); out.push(0xf7, 0, 0);
  for (const [r, g, b] of parts) out.push(r << 3 | r >> 2, g << 3 | g >> 2, b << 3 | b >> 2);
  out.push(0x21, 0xff, 11); text("NETSCAPE2.0"); out.push(3, 1, 0, 0, 0);
  const chunks = [Uint8Array.from(out)];
  for (let k = 0; k < frames; k++) {
    out.length = 0;
    out.push(0x21, 0xf9, 4, 0); word(delay); out.push(0, 0, 0x2c); word(0); word(0); word(w); word(h); out.push(0, 8);
    chunks.push(Uint8Array.from(out), lzw(Uint8Array.from(images[k], nearest)));
    tell(0.5 + k / frames / 2); await new Promise(r => setTimeout(r));
  }
  chunks.push(Uint8Array.of(0x3b));
  return new Blob(chunks, {type: "image/gif"});
}

/** LZW of bytes as GIF has it: codes of 9 to 12 bits in blocks of up to 255 bytes. */
function lzw(pixels) {
  const bytes = []; let bits = 0, held = 0, size = 9, next = 258, table = new Map(), prefix = pixels[0];
  const put = code => { bits |= code << held; held += size; while (held >= 8) { bytes.push(bits & 255); bits >>>= 8; held -= 8; } };
  put(256);
  for (let i = 1; i < pixels.length; i++) {
    const key = prefix << 8 | pixels[i], known = table.get(key);
    if (known !== undefined) { prefix = known; continue; }
    put(prefix); prefix = pixels[i];
    if (next === 4096) { put(256); table = new Map(); next = 258; size = 9; }
    else { if (next === 1 << size) size++; table.set(key, next++); }
  }
  put(prefix); put(257); if (held) bytes.push(bits & 255);
  const blocks = [];
  for (let i = 0; i < bytes.length; i += 255) { const part = bytes.slice(i, i + 255); blocks.push(part.length, ...part); }
  blocks.push(0);
  return Uint8Array.from(blocks);
}
