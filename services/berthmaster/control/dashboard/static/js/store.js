// What the service has told: documents by key, and the GPUs of each cluster as rows of small numbers.
// The service sends what changed since this page last read; a page that comes back says how far it was.

export const COLUMNS = 5;
export const BUSY = 0, HELD = 1, MEMORY = 2, HEAT = 3, MARKS = 4;
export const UNKNOWN = 255;
export const DEGRADED = 1, LOST = 2, MIG = 4, PARTS = 8, FOREIGN = 16, CLOSED = 32, SILENT = 64, NOT_READY = 128;

const documents = new Map();
export const grids = new Map(); // cluster -> Grid
const listeners = new Set(); // [prefix, call]
let changed = new Set();
let drawing = false;
let offset = 0; // of the service's clock to this machine's
let last = "";
let source = null;
let retry = 0;
let heard = 0;
export const connection = { state: "waiting", why: "" };

export const now = () => Date.now() / 1000 + offset;
export const get = (key) => documents.get(key);

export function all(prefix) {
  const found = [];
  for (const [key, value] of documents) if (key.startsWith(prefix)) found.push(value);
  return found;
}

export function on(prefix, call) {
  const entry = [prefix, call];
  listeners.add(entry);
  return () => listeners.delete(entry);
}

export class Grid {
  constructor(cluster, document) {
    this.cluster = cluster;
    this.layout = document.layout;
    this.models = document.models;
    this.nodes = document.nodes.map(([name, gpus, model]) => ({ name, gpus, model, first: 0 }));
    let first = 0;
    for (const node of this.nodes) {
      node.first = first;
      first += node.gpus;
    }
    this.gpus = first;
    this.rows = new Uint8Array(first * COLUMNS).fill(UNKNOWN);
  }

  take(changes) {
    if (changes.layout !== this.layout) return;
    const rows = bytes(changes.rows);
    if (changes.nodes === undefined) {
      if (rows.length === this.rows.length) this.rows = rows;
      return;
    }
    const numbers = new Uint32Array(bytes(changes.nodes).buffer);
    let from = 0;
    for (const number of numbers) {
      const node = this.nodes[number];
      const size = node.gpus * COLUMNS;
      this.rows.set(rows.subarray(from, from + size), node.first * COLUMNS);
      from += size;
    }
  }

  // The node that a GPU's row is of.
  nodeAt(row) {
    let low = 0, high = this.nodes.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.nodes[middle].first <= row) low = middle;
      else high = middle - 1;
    }
    return this.nodes[low];
  }
}

function bytes(base64) {
  const packed = atob(base64);
  const found = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) found[at] = packed.charCodeAt(at);
  return found;
}

function take(told) {
  offset = told.now_s - Date.now() / 1000;
  if (told.whole) {
    for (const key of [...documents.keys()]) if (!(key in told.documents)) drop(key);
  }
  for (const [key, value] of Object.entries(told.documents)) {
    documents.set(key, value);
    if (key.startsWith("layout/")) grids.set(key.slice(7), new Grid(key.slice(7), value));
    changed.add(key);
  }
  told.gone.forEach(drop);
  for (const [cluster, changes] of Object.entries(told.gpus || {})) {
    grids.get(cluster)?.take(changes);
    changed.add(`gpus/${cluster}`);
  }
  draw();
}

function drop(key) {
  documents.delete(key);
  if (key.startsWith("layout/")) grids.delete(key.slice(7));
  changed.add(key);
}

// Once for all that came since the last frame.
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const keys = changed;
    changed = new Set();
    for (const [prefix, call] of [...listeners]) {
      const mine = prefix === "" ? keys : new Set([...keys].filter((key) => key.startsWith(prefix)));
      if (mine.size) call(mine);
    }
  });
}

function state(name, why = "") {
  if (connection.state === name && connection.why === why) return;
  connection.state = name;
  connection.why = why;
  changed.add("connection");
  draw();
}

export function follow() {
  source?.close();
  source = new EventSource(`api/stream${last ? `?after=${encodeURIComponent(last)}` : ""}`);
  source.onopen = () => { retry = 0; heard = Date.now(); };
  source.onmessage = (event) => {
    last = event.lastEventId;
    heard = Date.now();
    state("live");
    take(JSON.parse(event.data));
  };
  source.onerror = () => {
    state("lost", "no connection");
    if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
    retry = Math.min(10, retry + 1);
    setTimeout(follow, 1000 * retry * (0.75 + Math.random() / 2));
  };
}

// A connection may be dead without anybody saying so.
setInterval(() => {
  if (source && heard && Date.now() - heard > 25_000) {
    heard = Date.now();
    state("lost", "no messages");
    follow();
  }
  changed.add("time");
  draw();
}, 1000);
