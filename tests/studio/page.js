"use strict";
/* The scripts of the page without a browser: elements are plain objects, the server's messages are those that stand here. Prints
   what a person would see after each of them. Called as: node page.js FOLDER_OF_THE_VIEWER FOLDER_OF_THE_PAGE */

const vm = require("vm"), fs = require("fs"), path = require("path");

function element(id) {
  return {id, hidden: true, textContent: "", className: "", style: {}, dataset: {}, children: [], clientWidth: 100, clientHeight: 100,
    replaceChildren(...all) { this.children = all; }, append(...all) { this.children.push(...all); }, appendChild(one) { this.children.push(one); },
    setAttribute() {}, addEventListener() {}, querySelectorAll: () => [], getContext: () => new Proxy({}, {get: () => () => ({})}), showModal() {}, close() {}};
}
const elements = {}, byId = id => elements[id] ||= element(id);
class Socket { constructor() { this.readyState = 1; Socket.last = this; } send() {} }
class Viewer { constructor() { this.maps = {}; } open(mesh) { this.mesh = mesh; } colours() {} show() {} draw() {} home() {} cut() {} picture() { return element("canvas"); } }

const page = {console, performance, setTimeout: () => 0, clearTimeout: () => 0, requestAnimationFrame: () => 0, location: {host: "here"}, WebSocket: Socket,
  document: {getElementById: byId, createElement: element, documentElement: {}, querySelectorAll: () => [], addEventListener() {}, createTextNode: text => text},
  matchMedia: () => ({matches: false}), getComputedStyle: () => ({getPropertyValue: () => "#000"}), ResizeObserver: class { observe() {} },
  fetch: async () => ({json: async () => ({scenes: [], first: "", colours: {}, upload_bytes: 1})})};
page.window = page; page.FieldViewer = Viewer;  // the true one needs a graphics card
vm.createContext(page);
const [viewer, own] = process.argv.slice(2);
for (const [folder, name] of [[viewer, "soft.js"], [viewer, "viewer.js"], [viewer, "chart.js"], [own, "gif.js"], [own, "controls.js"], [own, "told.js"], [own, "studio.js"]])
  vm.runInContext(fs.readFileSync(path.join(folder, name), "utf8").replace("class FieldViewer", "class Unused"), page, {filename: name});

setImmediate(() => {
  vm.runInContext("viewer = new FieldViewer()", page);
  const say = message => Socket.last.onmessage({data: JSON.stringify(message)}), bytes = buffer => Socket.last.onmessage({data: buffer});
  const scene = (name, nodes) => ({type: "scene", scene: name, title: name, dim: 2, nodes, cells: 1, fields: ["T"], offsets: [0], models: {classical: "Classical"}, dt: 1,
    conditions: [], free: true, radius: 1, power: 1, steps: 1, driven: false, notes: [], size: 1,
    units: {time: "", length: "", fields: [""], power: "", flux: "", coefficient: ""}, controls: {model: "classical", versus: null, dt: 1, diffusion: 1, conditions: []}});
  const mesh = nodes => {
    const buffer = new ArrayBuffer(32 + 8 * nodes + 24), head = new DataView(buffer);
    head.setUint32(0, 2, true); head.setUint32(8, nodes, true); head.setUint32(12, 2, true); head.setUint32(32 + 8 * nodes, 1, true);
    return buffer;
  };
  const answer = nodes => { const buffer = new ArrayBuffer(32 + 12 * nodes); new DataView(buffer).setUint32(0, 4, true); return buffer; };
  const seen = {}, look = when => { seen[when] = {banner: !byId("banner").hidden, play: byId("play").textContent, playing: page.studio.playing, told: page.studio.told !== null,
    button: byId("tell").textContent, hint: byId("hint").textContent}; };

  vm.runInContext("open('first')", page); say(scene("first", 3)); bytes(mesh(3));
  vm.runInContext("studio.sensors = [{node: 0, point: [0, 0]}]; studio.frames = [0, 1, 2, 3, 4, 5].map(k => ({time: k, step: k, values: new Float32Array(3)})); askTold()", page);
  look("asked");
  say({type: "progress", of: "tell", share: 0.4}); look("on the way");
  say({type: "told", noise: 1, left: 1, seconds: 1, readings: 1, determined: 1, notes: []}); bytes(answer(3)); look("told");
  vm.runInContext("open('second')", page); say(scene("second", 4)); bytes(mesh(4)); look("another mesh");
  bytes(answer(3)); look("a late answer");
  say({type: "error", message: "No.", of: "tell"}); look("refused");
  process.stdout.write(JSON.stringify(seen));
});
