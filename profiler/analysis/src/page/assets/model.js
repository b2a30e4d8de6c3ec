// What a recording's data says. The form is described in encode.rs.

class Numbers {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  next() {
    const bytes = this.bytes;
    let byte = bytes[this.at++], value = byte & 127;
    // Shifts would cut at 32 bits.
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[this.at++];
      value += (byte & 127) * scale;
    }
    if (this.at > bytes.length) throw new Error("the data ends early");
    return value;
  }

  signed() {
    const value = this.next();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }

  column(count, Type = Float64Array) {
    const column = new Type(count);
    for (let at = 0; at < count; at++) column[at] = this.next();
    return column;
  }

  take(length) {
    this.at += length;
    if (this.at > this.bytes.length) throw new Error("the data ends early");
    return this.bytes.subarray(this.at - length, this.at);
  }
}

const INLINED = 1, SIGNAL = 4;

function readTexts(input) {
  const decoder = new TextDecoder();
  const lengths = input.column(input.next(), Int32Array);
  return Array.from(lengths, length => decoder.decode(input.take(length)));
}

function readFrames(input) {
  const count = input.next();
  const [func, module, file, line, flags] = Array.from({ length: 5 }, () => input.column(count, Int32Array));
  return { count, func, module, file, line, flags, offset: input.column(count) };
}

// Nodes are numbered from 1; 0 is the root.
function readNodes(input) {
  const count = input.next() + 1;
  const parent = new Int32Array(count), frame = new Int32Array(count), guess = new Uint8Array(count);
  for (let node = 1; node < count; node++) parent[node] = node - input.next();
  for (let node = 1; node < count; node++) {
    const value = input.next();
    frame[node] = value >> 1;
    guess[node] = value & 1;
  }
  return { count, parent, frame, guess };
}

function readGroups(input) {
  const count = input.next();
  const places = input.column(count, Int32Array);
  return {
    count,
    node: places.map(place => place >> 1),
    folded: places.map(place => place & 1),
    stacks: input.column(count),
    liveBlocks: input.column(count),
    liveBytes: input.column(count),
    sources: input.column(count, Int32Array),
  };
}

function readBuckets(input) {
  const hasPrelude = input.next() === 1;
  const count = input.next();
  const edges = new Float64Array(count + 1);
  for (let at = 0; at < count; at++) edges[at + 1] = edges[at] + input.next();
  const changes = new Float64Array(count + 1);
  for (let at = 0; at < count; at++) changes[at + 1] = changes[at] + input.next();
  const [peak, live, allocations, allocated, temporary] = Array.from({ length: 5 }, () => input.column(count));
  const sizes = Array.from({ length: count }, () => Array.from({ length: input.next() }, () => ({
    digits: input.next(),
    allocations: input.next(),
    allocated: input.next(),
    grownBlocks: input.signed(),
    grownBytes: input.signed(),
  })));
  // The first bucket that is shown: what came before a window is only there to be added.
  return { count, first: hasPrelude ? 1 : 0, edges, changes, peak, live, allocations, allocated, temporary, sizes };
}

// Cells lie one after the other, group by group. Their figures are sums from the group's first cell on.
function readCells(input, groups) {
  const first = new Int32Array(groups + 1);
  for (let group = 0; group < groups; group++) first[group + 1] = first[group] + input.next();
  const count = first[groups];
  const bucket = new Int32Array(count);
  const [held, heldAtPeak] = [new Float64Array(count), new Float64Array(count)];
  const each = work => {
    for (let group = 0; group < groups; group++) {
      for (let at = first[group]; at < first[group + 1]; at++) work(at, at > first[group]);
    }
  };
  const sums = column => {
    each((at, follows) => { column[at] = input.next() + (follows ? column[at - 1] : 0); });
    return column;
  };
  each((at, follows) => { bucket[at] = input.next() + (follows ? bucket[at - 1] : 0); });
  each((at, follows) => { held[at] = input.signed() + (follows ? held[at - 1] : 0); });
  each((at, follows) => { heldAtPeak[at] = input.signed() + (follows ? held[at - 1] : 0); });
  const [allocations, allocated, temporary] = Array.from({ length: 3 }, () => sums(new Float64Array(count)));
  return { first, count, bucket, held, heldAtPeak, allocations, allocated, temporary };
}

function readModel(bytes) {
  const input = new Numbers(bytes);
  if (input.next() !== 1) throw new Error("the data has another form than this page reads");
  const facts = JSON.parse(new TextDecoder().decode(input.take(input.next())));
  const model = {
    facts,
    texts: readTexts(input),
    frames: readFrames(input),
    nodes: readNodes(input),
    groups: readGroups(input),
    buckets: readBuckets(input),
  };
  model.cells = readCells(input, model.groups.count);
  model.keys = keysOf(model);
  return model;
}

// Frames of the same function have the same key: they are one box in a graph, whatever their lines.
function keysOf({ frames }) {
  const known = new Map(), keys = new Int32Array(frames.count);
  for (let frame = 0; frame < frames.count; frame++) {
    const name = `${frames.func[frame]} ${frames.module[frame]} ${frames.offset[frame]}`;
    if (!known.has(name)) known.set(name, known.size);
    keys[frame] = known.get(name);
  }
  return keys;
}

// The function's name, or where it is if it has none.
function functionText(model, frame) {
  const { frames, texts } = model;
  if (frames.func[frame]) return texts[frames.func[frame]];
  const offset = `0x${frames.offset[frame].toString(16)}`;
  return frames.module[frame] ? `${moduleText(model, frame)}+${offset}` : `[${offset}]`;
}

function moduleText(model, frame) {
  const path = model.texts[model.frames.module[frame]];
  return path ? baseName(path) : "no module";
}

// `orders.cc:12`, or nothing where it isn't known.
function lineText(model, frame, whole) {
  const { frames, texts } = model;
  if (!frames.file[frame]) return "";
  const file = texts[frames.file[frame]];
  return (whole ? file : baseName(file)) + (frames.line[frame] ? `:${frames.line[frame]}` : "");
}
