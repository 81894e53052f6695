"use strict";
/* Pieces of the side bar: rows with a number and a slider that belong together. */

const $ = id => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) key.startsWith("on") || key in made ? made[key] = value : made.setAttribute(key, value);
  made.append(...children.filter(c => c !== null));
  return made;
}

/** Put these into a box, without those that are null. */
function fill(box, ...children) { box.replaceChildren(...children.filter(c => c !== null)); }

let rows = 0;

/** A number with its slider. `log`: the slider moves the exponent over `decades` either side; else from `low` to `high`. */
function slider({label, unit = "", value, log = false, decades = 1, low = 0, high = 1, change}) {
  const id = `row${++rows}`, base = value;
  const range = make("input", {type: "range", min: log ? -decades : low, max: log ? decades : high, step: log ? 0.02 : (high - low) / 200 || 1e-9,
                               value: log ? 0 : value, "aria-label": label});
  const field = make("input", {id, type: "text", inputMode: "decimal", value: short(value, Math.abs(value)), autocomplete: "off"});
  const set = (v, tell = true) => {
    field.value = digits(v); if (tell) change(v); row.value = v;
  };
  range.oninput = () => set(log ? base * 10 ** Number(range.value) : Number(range.value));
  field.onchange = () => {
    const v = Number(field.value.replace(",", "."));
    if (!Number.isFinite(v) || field.value.trim() === "" || (log && v <= 0)) { field.value = digits(row.value); return; }
    range.value = log ? Math.log10(v / base) : v; set(v);
  };
  const row = make("div", {className: "row"}, make("label", {htmlFor: id}, label), make("div", {className: "number"}, field, make("span", {}, unit)), range);
  row.value = value;
  row.put = v => { range.value = log ? Math.log10(v / base) : v; set(v, false); };
  field.value = digits(value);
  return row;
}

function digits(v) {
  if (v === 0) return "0";
  const size = Math.abs(v);
  return size >= 1e5 || size < 1e-3 ? v.toExponential(2).replace("e+", "e") : String(parseFloat(v.toPrecision(size >= 100 ? 5 : 3)));
}

function choice(label, options, value, change) {
  const id = `row${++rows}`, select = make("select", {id});
  for (const [key, text] of options) select.append(make("option", {value: key, selected: key === value}, text));
  select.onchange = () => change(select.value);
  const row = make("div", {className: "row"}, make("label", {htmlFor: id}, label), select);
  row.put = v => { select.value = v; };
  return row;
}

function check(label, on, change) {
  const box = make("input", {type: "checkbox", checked: on});
  box.onchange = () => change(box.checked);
  const row = make("label", {className: "check"}, box, label);
  row.put = v => { box.checked = v; };
  return row;
}

/** The rows of one boundary; `change` is called with the row of the protocol. */
function boundary(row, free, scale, units, change) {
  const box = make("div", {className: "boundary"}), words = {held: "held at", flux: "flux inwards", exchange: "exchanges with", insulated: "insulated", periodic: "periodic"};
  const rebuild = () => {
    box.replaceChildren(make("b", {}, row.boundary));
    if (row.fixed) { box.append(make("p", {className: "quiet"}, row.kind === "periodic" ? "periodic" : `${words[row.kind]} a function of place and time`)); return; }
    if (free) box.append(choice("is", [["insulated", "insulated"], ["held", "held at a value"], ["flux", "given a flux"], ["exchange", "exchanging with surroundings"]], row.kind,
      v => { row.kind = v; rebuild(); change(); }));
    if (row.kind === "insulated") return;
    const span = row.kind === "flux" ? scale.flux : scale.field;
    box.append(slider({label: free ? "value" : words[row.kind], unit: row.kind === "flux" ? units.flux : units.fields[0], value: row.value,
      low: row.value - span, high: row.value + span, change: v => { row.value = v; change(); }}));
    if (row.kind === "exchange") box.append(slider({label: "coefficient", unit: units.coefficient, value: row.coefficient || scale.coefficient, log: true, decades: 2,
      change: v => { row.coefficient = v; change(); }}));
  };
  rebuild();
  return box;
}
