// The page shows the data from the server as text; none of it is ever parsed as HTML.
'use strict';

const kept = 150;         // points in the charts
const lostAfter = 12000;  // ms without a state before reconnecting
const hiddenFor = 300000; // ms after which a hidden page disconnects

const $ = id => document.getElementById(id);
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const make = (tag, name, text) => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
};

// Numbers for people.
const scaled = (n, step, units) => {
  let i = 0;
  for (; Math.abs(n) >= step * 0.9995 && i < units.length - 1; i++) n /= step;
  const digits = n === 0 || n >= 100 || (i === 0 && Number.isInteger(n)) ? 0 : n >= 10 ? 1 : 2;
  return n.toFixed(digits) + (units[i] ? '\u00a0' + units[i] : '');
};
const bytes = n => scaled(n, 1024, ['bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
const rate = n => scaled(n, 1024, ['bytes/s', 'KiB/s', 'MiB/s', 'GiB/s', 'TiB/s']);
const amount = n => Math.round(n).toLocaleString('en');
const latency = ns => scaled(ns, 1000, ['ns', 'µs', 'ms', 's']);
const short = text => text.replace(/(\.\d*?)0+(?=\D|$)/, '$1').replace(/\.(?=\D|$)/, ''); // 10.0 ms
const clock = text => new Date(text).toLocaleTimeString('en-GB');
const moment = text => new Date(text).toDateString() === new Date().toDateString() ? clock(text) :
  new Date(text).toLocaleString('sv-SE'); // 2026-11-23 22:44:51
const several = (n, thing) => `${amount(n)} ${thing}${n === 1 ? '' : 's'}`;
const lasting = s => s >= 172800 ? `${Math.floor(s / 86400)} days` : s >= 7200 ?
  `${Math.floor(s / 3600)} hours` : s >= 120 ? `${Math.floor(s / 60)} minutes` :
    `${Math.floor(s)} seconds`;

// The part of an NQN after its naming authority, unless two NQNs share it.
let names = new Map();
function shorten(all) {
  const part = nqn => nqn.slice(nqn.indexOf(':') + 1);
  const uses = new Map();
  for (const nqn of new Set(all)) uses.set(part(nqn), (uses.get(part(nqn)) || 0) + 1);
  names = new Map(all.map(nqn => [nqn, uses.get(part(nqn)) === 1 ? part(nqn) : nqn]));
}
const shown = nqn => names.get(nqn) || nqn;

// A cell is a text, or {text, more, state, number, title}.
function fill(id, rows, cells, key) {
  const body = $(id), labels = body.parentNode.tHead.rows[0].cells;
  const old = new Map([...body.rows].map(r => [r.dataset.key, r]));
  rows.forEach((row, i) => {
    const name = key(row);
    let tr = old.get(name);
    old.delete(name);
    if (!tr) {
      tr = make('tr');
      tr.setAttribute('role', 'row');
      tr.dataset.key = name;
      for (const label of labels) {
        const td = make('td');
        td.setAttribute('role', 'cell');
        td.dataset.label = label.textContent;
        td.append(make('span'), make('small'));
        tr.append(td);
      }
    }
    if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i] || null);
    cells(row).forEach((cell, column) => {
      const td = tr.cells[column], c = typeof cell === 'object' ? cell : {text: cell};
      put(td.firstChild, String(c.text));
      put(td.lastChild, c.more || '');
      td.lastChild.hidden = !c.more;
      td.title = c.title || '';
      td.firstChild.className = c.state || '';
      td.className = (c.number ? 'number' : '') + (c.text === '' && !c.more ? ' empty' : '');
    });
  });
  for (const tr of old.values()) tr.remove();
}

const difference = (now, before) => now >= before ? now - before : 0;
let before = null; // the last state
// The shown target; '' is the one that serves the page.
let target = new URLSearchParams(location.search).get('target') || '';
const server = $('host').textContent;

// A point has the counts of s seconds: {t, s, reads, writes, read, written, counts, stages}; t is its
// end, in seconds by the clock of states. A point without counts is a gap. past has the points of the
// last hour of the chosen namespace, which the target keeps.
let past = [], asked = 0;
const per = (p, field) => p[field] / p.s;
function sum(a, b) {
  const out = {t: b.t, s: a.s + b.s, counts: {...a.counts}, stages: {...a.stages}};
  for (const k of ['reads', 'writes', 'read', 'written']) out[k] = a[k] + b[k];
  for (const m of ['counts', 'stages']) {
    for (const k in b[m]) out[m][k] = (out[m][k] || 0) + b[m][k];
  }
  return out;
}

// remember adds the point of a state.
function remember(s) {
  const which = $('which').value;
  const p = which ? s.namespaces.find(n => name(n) === which)?.point : s.total;
  if (p && p.s && !(past.length && past[past.length - 1].t >= p.t)) past.push(p);
  while (past.length && past[0].t < s.elapsed - 3600) past.shift();
}

// recall fetches the earlier points.
function recall() {
  const mine = ++asked;
  past = [];
  fetch('history?' + new URLSearchParams({target, of: $('which').value})).then(r => r.json()).then(list => {
    if (mine !== asked) return;
    const last = list.length ? list[list.length - 1].t : 0;
    past = [...list, ...past.filter(p => p.t > last)];
    draw();
  }).catch(() => {}); // the connection is lost, and is reopened
  draw();
}

// columns merges the points of the shown time into as many as fit.
const span = () => Number($('span').value);
function columns() {
  if (!before) return [];
  const step = span() / kept, list = [], zero = Date.parse(before.time) / 1000 - before.elapsed;
  let bin;
  for (const p of past) {
    if (p.t <= before.elapsed - span()) continue;
    const last = list[list.length - 1], at = Math.floor(p.t / step + 1e-6);
    if (last && at === bin && last.counts && p.counts) list[list.length - 1] = sum(last, p);
    else list.push(p);
    bin = at;
  }
  return list.map(p => ({...p, time: zero + p.t}));
}

// Latencies come by buckets, four for each power of two.
const lowest = bucket => 2 ** (bucket >> 2) * (1 + (bucket & 3) / 4);
function quantile(counts, q) {
  const list = Object.keys(counts).map(Number).sort((a, b) => a - b);
  let left = q * list.reduce((sum, b) => sum + counts[b], 0);
  for (const b of list) {
    left -= counts[b];
    if (left < 0) return (lowest(b) + lowest(b + 1)) / 2;
  }
  return null;
}

const name = n => `${n.nsid} of ${n.subsystem}`;
const stageNames = {wait: 'waiting', host_data: 'data of the host', backend: 'storage',
  response: 'response'};
const mostOf = stages => {
  const list = Object.entries(stages || {}).sort((a, b) => b[1] - a[1]);
  const sum = list.reduce((all, s) => all + s[1], 0);
  return sum ? `${stageNames[list[0][0]]}, ${Math.round(100 * list[0][1] / sum)} %` : '';
};
const states = {ready: 'good', up: 'good', serving: 'good', good: 'good', 'not ready': 'error', degraded: 'error',
  pending: 'error', failed: 'error', failing: 'error', paused: 'warning', waiting: 'warning',
  warning: 'warning', WARN: 'warning', ERROR: 'error'};
const state = (text, more) => ({text, more, state: states[text] || 'dim'});
const details = list => (list || []).map(a => `${a.key}: ${a.value}`).join(', ');

function show(s) {
  const started = before && before.status.started === s.status.started ? before : null;
  const seconds = started ? s.elapsed - started.elapsed : 0;
  const last = started && seconds > 0 ? started : null;
  before = s;
  s.groups ||= []; // those of another target of an earlier version
  shorten([...s.subsystems.map(n => n.nqn), ...s.subsystems.flatMap(n => n.hosts || []),
    ...s.namespaces.map(n => n.subsystem), ...s.hosts.flatMap(h => [h.host, h.subsystem])]);
  choices(s.namespaces);
  remember(s);
  overview(s, s.total);
  namespaces(s);
  tables(s, last, seconds);
  configuration(s.plan, s.more.changes);
  for (const table of ['namespaces', 'subsystems', 'disks', 'hosts', 'listeners', 'groups',
    'refusals', 'events']) {
    put($(table + '-more'), s.errors[table] ? `Not known: ${s.errors[table]}.` : s.more[table] ?
      `${amount(s.more[table])} more are not shown.` : s[table].length ? '' : 'None.');
  }
  draw();
}

function overview(s, total) {
  const wrong = s.findings.filter(f => f.severity !== 'note');
  const worst = wrong.length ? wrong[0].severity : 'good';
  $('verdict').dataset.state = worst;
  put($('verdict'), wrong.length === 0 ? s.findings.length ?
    'Nothing is broken; there is something to know.' : 'Everything is in order.' : wrong.length === 1 ?
    'One thing needs attention.' : `${wrong.length} things need attention.`);
  const list = $('findings');
  s.findings.forEach((f, i) => { // unchanged ones stay, since changes are read aloud
    const li = list.children[i] || list.appendChild(make('li'));
    if (li.childElementCount === 0) li.append(make('span'), make('span'));
    li.firstChild.className = 'tag ' + f.severity;
    put(li.firstChild, f.severity[0].toUpperCase() + f.severity.slice(1));
    put(li.lastChild, f.text);
  });
  while (list.children.length > s.findings.length) list.lastChild.remove();
  put($('about'), `nvmf-target ${s.status.version}, running for ` +
    lasting(s.status.uptime_seconds));
  put($('t-namespaces'), `${s.traffic.ready} of ${s.status.namespaces + s.status.pending_namespaces}`);
  put($('t-hosts'), amount(s.traffic.hosts) + (s.status.controllers === s.traffic.hosts ? '' :
    ` (${several(s.status.controllers, 'controller')})`));
  if (!total.counts) return;
  const p99 = quantile(total.counts, 0.99);
  put($('t-read'), rate(per(total, 'read')));
  put($('t-write'), rate(per(total, 'written')));
  put($('t-iops'), amount(per(total, 'reads') + per(total, 'writes')) + '/s');
  put($('t-p99'), p99 === null ? '–' : latency(p99));
}

function namespaces(s) {
  fill('namespaces', s.namespaces, n => {
    const p = n.point || {}, known = p.counts;
    const half = known && quantile(p.counts, 0.5);
    const errors = Object.entries(n.errors || {}).map(e => `${e[0]}: ${amount(e[1])}`);
    if (n.timeouts) errors.push(`timeouts: ${amount(n.timeouts)}`);
    return [
      {text: n.nsid, more: shown(n.subsystem), title: n.subsystem},
      state(n.state, n.write_protected ? 'write protected' : ''),
      {text: n.size_bytes ? bytes(n.size_bytes) : '', number: true,
        more: n.block_size_bytes ? `blocks of ${n.block_size_bytes}` : ''},
      {text: n.backend, more: n.path},
      {text: known ? rate(per(p, 'read')) : '',
        more: known ? `${amount(per(p, 'reads'))}/s` : '', number: true},
      {text: known ? rate(per(p, 'written')) : '',
        more: known ? `${amount(per(p, 'writes'))}/s` : '', number: true},
      {text: half ? `${latency(half)}, ${latency(quantile(p.counts, 0.99))}` : '', number: true},
      known ? {text: mostOf(p.stages), number: true} : '',
      errors.length ? {text: errors.join(', '), state: 'warning'} : 'none',
    ];
  }, name);
}

function tables(s, last, seconds) {
  fill('subsystems', s.subsystems, n => [{text: shown(n.nqn), title: n.nqn}, n.allow_any_host ?
    'every host' : {text: several(n.host_count, 'host'), title: (n.hosts || []).join('\n'),
      more: (n.hosts || []).slice(0, 4).map(shown).join(', ') +
      (n.host_count > 4 ? ', …' : '')}, n.security, n.pending_namespaces ?
    {text: `${n.namespaces} and ${n.pending_namespaces} pending`, state: 'error'} : n.namespaces,
  n.controllers], n => n.nqn);
  fill('disks', s.disks, d => [{text: d.name, more: d.path},
    state(d.health.state, d.health.notes.join('; ')), {text: bytes(d.size_bytes), number: true},
    {text: d.model || d.bus, more: d.serial}, d.health.celsius ? `${d.health.celsius} °C` : '',
    d.health.used_percent >= 0 ? `${d.health.used_percent} %` : '', d.uses.join(', ')],
  d => d.name);
  const key = h => `${h.host} ${h.subsystem} ${h.cntlid}`;
  const olds = new Map(last ? last.hosts.map(h => [key(h), h]) : []);
  fill('hosts', s.hosts, h => {
    const o = olds.get(key(h));
    const per = field => o ? rate(difference(h[field], o[field]) / seconds) : '';
    return [{text: h.host ? shown(h.host) : 'not connected yet', title: h.host, more: h.host &&
      `controller ${h.cntlid}, for ${lasting(h.age_seconds)}`},
      {text: shown(h.subsystem), title: h.subsystem}, {text: `${h.transport} from ${h.remote}`, more: `to ${h.local}`, number: true},
      h.tls || 'none', {text: h.queues, more: h.depth ? `${h.depth} entries` : '', number: true},
      h.in_flight, {text: h.rtt_seconds ? latency(h.rtt_seconds * 1e9) : '', more: h.retransmits ?
        `${several(h.retransmits, 'packet')} resent` : '', number: true},
      {text: per('read_bytes'), number: true},
      {text: per('written_bytes'), number: true},
      h.keep_alive_timeout_seconds ? `${Math.round(h.keep_alive_left_seconds)} of ${
        Math.round(h.keep_alive_timeout_seconds)} s` : ''];
  }, key);
  fill('listeners', s.listeners, l => [`${l.transport} ${l.address}`, state(l.state, l.reason),
    l.name, l.connections], l => `${l.transport} ${l.address} ${l.name}`);
  $('groups-table').hidden = s.groups.length === 0;
  fill('groups', s.groups, g => [g.ana_group, {...state(g.problem ? 'warning' : g.drained ?
    'drained' : g.state, g.problem), text: g.state + (g.drained ? ', drained' : '')},
    {text: g.holder || 'nobody', more: `for ${lasting(g.holder_seconds)}`},
    g.gateways.map(w => w.name + (w.hosts ? ' with hosts' : '')).join(', '),
    {text: g.fenced.map(w => w.name).join(', ') || 'none', more: g.fence_seconds ?
      `for ${lasting(g.fence_seconds)}, checked ${lasting(g.check_seconds || 0)} ago` : ''},
    {text: g.configuration || '', more: (g.differences || []).join('; ')}], g => String(g.ana_group));
  fill('refusals', s.refusals, r => [moment(r.last), r.remote, {text: r.message, more: r.hint},
    {text: r.received ? `received ${r.received}` : '', more: [
      r.expected && `expected ${r.expected}`, details(r.attributes)].filter(Boolean).join(', ')},
    amount(r.count)], r => `${r.first} ${r.remote} ${r.message} ${details(r.attributes)}`);
  fill('events', s.events, e => [moment(e.time), state(e.level), e.message,
    {text: '', more: details(e.attributes)}], e => String(e.id));
}

function configuration(plan, more) {
  const list = $('changes'), changes = plan.error ? [] : plan.changes || [];
  $('plan').dataset.state = !plan.known ? '' : plan.error || changes.length ? 'warning' : 'good';
  put($('plan'), !plan.known ? 'Not compared yet.' : (plan.error ?
    `The configuration file cannot be applied; the running configuration stays:\n${plan.error}\n` :
    changes.length ? 'The configuration file differs. A reload would make these changes' +
      (more ? `, and ${amount(more)} more.\n` : '.\n') :
      'The target runs the configuration of the file.\n') + `Compared at ${clock(plan.time)}.`);
  changes.forEach((c, i) => put(list.children[i] || list.appendChild(make('li')), c.text +
    (c.needs_restart ? ' (needs a restart)' : '')));
  while (list.children.length > changes.length) list.lastChild.remove();
}

function choices(list) {
  const select = $('which'), want = ['', ...list.map(name)];
  const texts = ['All namespaces', ...list.map(n => `Namespace ${n.nsid} of ${shown(n.subsystem)}`)];
  if (select.options.length === want.length && want.every((w, i) =>
    select.options[i].value === w && select.options[i].text === texts[i])) return;
  const chosen = select.value;
  select.replaceChildren(...want.map((w, i) => {
    const o = make('option', '', texts[i]);
    o.value = w;
    return o;
  }));
  select.value = want.includes(chosen) ? chosen : '';
  if (select.value !== chosen) recall();
}

function draw() {
  if (document.hidden || document.body.classList.contains('blank')) return;
  const points = columns();
  for (const p of plots) p(points);
  heat(points);
}

// The connection.
let source = null, watchdog = 0, failing = false, hidden = 0;
function watch(ms) {
  clearTimeout(watchdog);
  watchdog = setTimeout(lost, ms);
}
function live(text, which) {
  put($('live'), text);
  $('live').dataset.state = which;
  document.body.classList.toggle('stale', which === 'lost');
}
function connect() {
  if (source) source.close();
  failing = false;
  watch(lostAfter);
  source = new EventSource('events?target=' + encodeURIComponent(target));
  source.onopen = recall;
  source.onmessage = e => {
    failing = false;
    watch(lostAfter);
    live('Live', 'live');
    document.body.classList.remove('blank');
    show(JSON.parse(e.data));
  };
  source.addEventListener('targets', e => {
    failing = false;
    watch(lostAfter);
    targets(JSON.parse(e.data));
  });
  source.onerror = () => { // it tries again by itself, unless it was refused
    if (!failing) watch(source.readyState === EventSource.CLOSED ? 1000 : 4000);
    failing = true;
  };
}

// targets shows the overview of all targets, and a notice if the shown one is away.
const away = t => t.error + (t.time.startsWith('0001') ? '' : `. Its last state is of ${clock(t.time)}`);
function targets(list) {
  const box = $('targets-list');
  $('targets').hidden = list.length < 2;
  list.forEach((t, i) => {
    let b = box.children[i];
    if (!b) {
      b = box.appendChild(make('button'));
      b.type = 'button';
      b.append(make('strong'), make('span'), make('small'));
      b.addEventListener('click', () => choose(b.dataset.name));
    }
    const known = !t.time.startsWith('0001');
    b.dataset.name = t.name;
    b.dataset.state = t.error ? 'error' : !known ? '' : t.problems ? 'warning' : 'good';
    b.setAttribute('aria-pressed', String(t.name === target));
    put(b.children[0], t.name || server);
    put(b.children[1], t.error ? `Away: ${away(t)}.` : !known ? 'Waiting for it.' : t.problems ?
      several(t.problems, 'problem') : 'In order');
    put(b.children[2], known && !t.error ? `${t.ready} of ${several(t.namespaces, 'namespace')} ready, ${
      several(t.hosts, 'host')}, reads ${rate(t.read)}, writes ${rate(t.written)}` : '');
  });
  while (box.children.length > list.length) box.lastChild.remove();
  const shown = list.find(t => t.name === target);
  if (!shown) choose(''); // it is no longer in the configuration
  else if (shown.error) live(`${target} is away: ${away(shown)}. Trying again.`, 'lost');
}
function choose(name) {
  target = name;
  before = null;
  past = [];
  $('which').value = '';
  put($('host'), name || server);
  history.replaceState(null, '', name ? '?target=' + encodeURIComponent(name) : '.');
  document.body.classList.add('blank');
  live('Connecting', 'waiting');
  for (const b of $('targets-list').children) {
    b.setAttribute('aria-pressed', String(b.dataset.name === name));
  }
  connect();
}
function lost() {
  source.close();
  live(before ? `Connection lost: this was at ${clock(before.time)}. Trying again.` :
    'The target does not answer, or too many pages are open. Trying again.', 'lost');
  setTimeout(connect, 2000);
}
function pause() {
  source.close();
  clearTimeout(watchdog);
  source = null;
}

const themes = ['system', 'light', 'dark'];
function theme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  put($('theme'), 'Theme: ' + name);
  try { localStorage.setItem('theme', name); } catch { /* then it is not remembered */ }
  draw();
}

$('theme').addEventListener('click', () => {
  const now = document.documentElement.dataset.theme || 'system';
  theme(themes[(themes.indexOf(now) + 1) % themes.length]);
});
$('which').addEventListener('change', recall);
$('span').addEventListener('change', draw);
addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
document.addEventListener('visibilitychange', () => {
  clearTimeout(hidden);
  if (document.hidden) hidden = setTimeout(pause, hiddenFor);
  else if (source) draw();
  else connect();
});
plot('throughput', ['read', 'written'], rate);
plot('iops', ['reads', 'writes'], v => amount(v));
let saved = 'system';
try { saved = localStorage.getItem('theme'); } catch { /* as above */ }
theme(themes.includes(saved) ? saved : 'system');
put($('host'), target || server);
connect();
