"use strict";
/* What the sensors tell: the readings go to the server, the recovered source, its uncertainty and what was drawn come back as three
   fields; small pictures of them stand side by side in the side bar, and a click shows one on the stage. */

const TELL = {noise: 0.01, names: ["recovered", "uncertainty", "drawn"], asked: false, share: 0};

function tellBox() {
  if (!studio.sensors.length) return [];
  return [
    slider({label: "noise of a reading / largest change", value: TELL.noise, log: true, change: v => { TELL.noise = Math.min(v, 1); }}),
    make("div", {className: "buttons"}, make("button", {id: "tell", disabled: TELL.asked, onclick: askTold}, TELL.asked ? computing() : "What do they tell?")),
    make("div", {id: "told", hidden: true})];
}

const computing = () => `Computing: ${Math.round(100 * TELL.share)}%`;
function shareTold(share) { TELL.share = share; const button = $("tell"); if (TELL.asked && button) button.textContent = computing(); }

function askTold() {
  if (studio.frames.length < 5) return hint("Draw a source and let it run for a moment first.");
  pause(); TELL.asked = true; TELL.share = 0; sensorsBox(); status("recovering the source", "busy");
  const first = frame => frame.values.subarray(studio.field * studio.scene.nodes, (studio.field + 1) * studio.scene.nodes);
  send({type: "tell", field: studio.field, noise: TELL.noise, sensors: studio.sensors.map(s => s.node), times: studio.frames.map(f => f.time),
        values: studio.frames.map(f => studio.sensors.map(s => first(f)[s.node]))});
}
function endTold() { if (TELL.asked) { TELL.asked = false; sensorsBox(); } }

/** The answer, three rows of values; its words and numbers have come before it. */
function showTold(values) {
  if (opening || !TELL.asked || !studio.scene || values.length !== 3 * studio.scene.nodes) return;  // of a scene that is left
  const n = studio.scene.nodes, rows = [0, 1, 2].map(k => values.slice(k * n, (k + 1) * n)), [a, b] = limits([...limits(rows[0]), ...limits(rows[2])]);
  const scale = [b > a ? [a, b] : [a, a + 1], [0, limits(rows[1])[1] || 1]];
  studio.told = {rows, ranges: [scale[0], scale[1], scale[0]], shown: 0, said: studio.said};
  TELL.asked = false; status("connected", ""); sensorsBox(); thumbnails(); stageTold(0);
}

function stageTold(k) {
  studio.told.shown = k; studio.green = null;
  const unit = studio.scene.units.power, words = ["the source that the sensors tell of", "its standard deviation", "the mean of what was drawn"];
  viewer.range = studio.told.ranges[k]; viewer.logarithmic = false; viewer.label = unit ? `f in ${unit}` : "f"; viewer.colours(k === 1 ? "cividis" : studio.map || "viridis");
  $("banner").replaceChildren(`On the stage: ${words[k]}`, make("button", {onclick: () => { leaveGreen(); redraw(); }}, "Back to the field"));
  $("banner").hidden = false; redraw();
}

const amount = (v, unit) => `${short(v, v)} ${unit}`.trim();

function thumbnails() {
  const t = studio.told, s = t.said, box = $("told");
  viewer.marks = marks().filter(m => m.text); viewer.legend = false; viewer.logarithmic = false;
  const cards = t.rows.map((row, k) => {
    viewer.range = t.ranges[k]; viewer.colours(k === 1 ? "cividis" : studio.map || "viridis"); viewer.show(row);
    const picture = viewer.picture(240, colour("--stage"), "");
    picture.className = "thumb";
    return make("button", {className: "plain", title: `Show on the stage: ${TELL.names[k]}`, onclick: () => stageTold(k)}, picture, make("span", {}, TELL.names[k]));
  });
  viewer.legend = true;
  const unit = studio.scene.units, field = unit.fields[studio.field];
  box.replaceChildren(make("div", {className: "thumbs"}, ...cards),
    make("p", {className: "quiet"}, `${s.readings} readings over ${amount(s.seconds, unit.time)}, with noise of ${amount(s.noise, field)}, determine ${s.determined.toFixed(1)} numbers ` +
      `and are explained up to ${amount(s.left, field)}. Looked for is a source that does not change during this time; the start and the boundary values are known. ` + s.notes.join(" ")));
  box.hidden = false;
}
