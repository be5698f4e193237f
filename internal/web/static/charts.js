// The charts of the page. It uses functions of page.js.
'use strict';

const color = where => getComputedStyle(document.querySelector(where)).color;
const plots = [];
function plot(id, fields, text) {
  const axis = {stroke: () => color('.u-axis'), font: '12px system-ui, sans-serif',
    grid: {stroke: () => color('.u-axis').replace('rgb(', 'rgba(').replace(')', ', 0.2)'),
      width: 1}, ticks: {show: false}};
  const steps = text === rate ? Array.from({length: 50}, (_, i) => 2 ** i) : undefined;
  const points = {show: false}, value = (_, v) => v == null ? '–' : text(v);
  const one = new uPlot({
    width: 400, height: 190, cursor: {drag: {x: false, y: false}, points: {size: 6}},
    scales: {x: {range: (_, min, max) => [max - span(), max]},
      y: {range: (_, min, max) => [0, Math.max(max || 0, 10) * 1.1]}},
    axes: [{...axis, values: (_, list) => list.map(t => clock(t * 1000)), space: 90, size: 30},
      {...axis, size: 84, incrs: steps, values: (_, list) => list.map(v => short(text(v)))}],
    series: [{label: 'Time', value: (_, t) => t == null ? '–' : clock(t * 1000)},
      {label: 'Reads', stroke: () => color('.key.read'), width: 1.5, value, points},
      {label: 'Writes', stroke: () => color('.key.write'), width: 1.5, value, points}],
  }, [[], [], []], $(id));
  one.root.setAttribute('aria-hidden', 'true'); // the tables say the same
  plots.push(list => {
    const width = $(id).clientWidth;
    if (one.width !== width) one.setSize({width, height: 190});
    one.setData([list.map(p => p.time), ...fields.map(f => list.map(p => p.counts ? per(p, f) : null))]);
  });
}

function heat(points) {
  const canvas = $('heat'), ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const g = canvas.getContext('2d');
  g.scale(ratio, ratio);
  const all = {}; // of all points
  for (const p of points) {
    for (const b in p.counts) all[b] = Math.max(all[b] || 0, p.counts[b] / p.s);
  }
  const used = Object.keys(all).map(Number);
  const text = $('heat-text'), now = points[points.length - 1];
  const p99 = now && now.counts ? quantile(now.counts, 0.99) : null;
  put(text, !used.length ? 'No commands yet.' : p99 === null ? 'No commands at the moment.' :
    `In the last ${several(Math.round(now.s), 'second')} half of the commands took less than ` +
    `${latency(quantile(now.counts, 0.5))}, 99 % less than ${latency(p99)}. ` +
    `Most of the time: ${mostOf(now.stages)}.`);
  if (!used.length) return;
  const left = 64, bottom = 22, low = Math.min(...used) - 2, high = Math.max(...used) + 3;
  const row = (height - bottom) / (high - low), column = (width - left) / span();
  const x = t => width + (t - now.t) * column;
  const y = ns => {
    const log = Math.log2(ns), whole = Math.floor(log);
    return height - bottom - (4 * whole + 4 * (ns / 2 ** whole - 1) - low) * row;
  };
  const most = Math.log1p(Math.max(...used.map(b => all[b])));
  g.fillStyle = color('.key.heat');
  for (const p of points) {
    for (const b in p.counts) {
      const from = Math.max(x(p.t - p.s), left);
      g.globalAlpha = 0.12 + 0.88 * Math.log1p(p.counts[b] / p.s) / most;
      g.fillRect(from, height - bottom - (b - low + 1) * row, x(p.t) - from + 0.3, row + 0.3);
    }
  }
  g.globalAlpha = 1;
  g.strokeStyle = color('.key.line');
  g.lineWidth = 1.5;
  g.beginPath();
  let drawing = false;
  for (const p of points) {
    const q = p.counts ? quantile(p.counts, 0.99) : null, at = x(p.t - p.s / 2);
    if (q !== null && at > left) drawing ? g.lineTo(at, y(q)) : g.moveTo(at, y(q));
    drawing = q !== null;
  }
  g.stroke();
  g.fillStyle = g.strokeStyle = color('.u-axis');
  g.font = '12px system-ui, sans-serif';
  g.textAlign = 'right';
  for (const ns of [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].flatMap(d => [10 ** d, 3 * 10 ** d])) {
    const at = y(ns);
    if (at < 8 || at > height - bottom) continue;
    g.fillText(short(latency(ns)), left - 8, at + 4);
    g.globalAlpha = 0.2;
    g.fillRect(left, at, width - left, 1);
    g.globalAlpha = 1;
  }
  g.textAlign = 'center';
  const every = span() / 5 * Math.ceil(400 / (width - left));
  for (let ago = 0; ago < span(); ago += every) {
    const at = Math.min(x(now.t - ago), width - 26);
    if (at > left + 20) g.fillText(clock((now.time - ago) * 1000), at, height - 6);
  }
}
