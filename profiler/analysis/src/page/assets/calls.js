// Trees of calls as a graph shows them: functions from the root, or from those that allocated towards the root.

const FOLDED = -1;

// A tree of functions, made of the nodes of all stacks: it has one child for each function that is called, whatever the lines.
function functionTree(model) {
  const { nodes, groups, keys } = model, most = nodes.count + groups.count;
  const parent = new Int32Array(most), key = new Int32Array(most), sample = new Int32Array(most);
  // Children are a list: the first one of a node, and the next one after each.
  const first = new Int32Array(most), next = new Int32Array(most);
  const known = new Map(), kinds = keys.length + 1;
  let count = 1;
  const child = (of, which, node) => {
    // FOLDED is −1.
    const name = of * kinds + which + 1, place = known.get(name);
    if (place !== undefined) return place;
    known.set(name, count);
    parent[count] = of;
    key[count] = which;
    sample[count] = node;
    next[count] = first[of];
    first[of] = count;
    return count++;
  };
  const place = new Int32Array(nodes.count);
  for (let node = 1; node < nodes.count; node++) {
    place[node] = child(place[nodes.parent[node]], keys[nodes.frame[node]], node);
  }
  const ofGroup = new Int32Array(groups.count);
  for (let group = 0; group < groups.count; group++) {
    const at = place[groups.node[group]];
    ofGroup[group] = groups.folded[group] ? child(at, FOLDED, groups.node[group]) : at;
  }
  return { count, parent, key, sample, first, next, ofGroup };
}

// Nodes of a view have a key, a node of the model that they stand for, a value, a part of it that is their own, and children.
function viewNode(key, sample, depth) {
  return { key, sample, depth, value: 0, self: 0, stacks: 0, children: [] };
}

// Functions from the root. Follows `zoom` however little there is, and elsewhere leaves out what has less than `least`.
function fromRoot(model, values, zoom, least) {
  const tree = model.tree || (model.tree = functionTree(model));
  const sums = new Float64Array(tree.count), own = new Float64Array(tree.count), stacks = new Float64Array(tree.count);
  values.forEach((value, group) => {
    if (value <= 0) return;
    own[tree.ofGroup[group]] += value;
    stacks[tree.ofGroup[group]] += model.groups.stacks[group];
  });
  for (let at = sums.length - 1; at > 0; at--) {
    sums[at] += own[at];
    sums[tree.parent[at]] += sums[at];
    stacks[tree.parent[at]] += stacks[at];
  }
  sums[0] += own[0];
  const make = (place, depth) => {
    const node = viewNode(tree.key[place], tree.sample[place], depth);
    Object.assign(node, { place, value: sums[place], self: own[place], stacks: stacks[place] });
    return node;
  };
  return grow(make(0, 0), zoom, least, node => {
    const all = [];
    for (let place = tree.first[node.place]; place; place = tree.next[place]) {
      if (sums[place] > 0) all.push(make(place, node.depth + 1));
    }
    return all;
  });
}

// Functions that allocated, and who called them.
function fromLeaves(model, values, zoom, least) {
  const { nodes, groups, keys } = model;
  const root = viewNode(FOLDED, 0, 0);
  root.items = [];
  values.forEach((value, group) => {
    if (value <= 0) return;
    root.value += value;
    root.stacks += groups.stacks[group];
    // Where nothing is known of the innermost frames, the callers are still known.
    root.items.push({ group, node: groups.node[group], folded: groups.folded[group] });
  });
  return grow(root, zoom, least, parent => {
    const known = new Map();
    for (const item of parent.items) {
      const key = item.folded ? FOLDED : keys[nodes.frame[item.node]];
      if (!item.node && !item.folded) {
        parent.self += values[item.group];
        continue;
      }
      let node = known.get(key);
      if (!node) {
        node = viewNode(key, item.node, parent.depth + 1);
        node.items = [];
        known.set(key, node);
      }
      node.value += values[item.group];
      node.stacks += groups.stacks[item.group];
      node.items.push({ group: item.group, node: item.folded ? item.node : nodes.parent[item.node], folded: 0 });
    }
    return [...known.values()];
  });
}

// Grows a tree from its root along `zoom`, and whole from there.
function grow(root, zoom, least, childrenOf) {
  const path = [root];
  let top = root;
  for (const key of zoom) {
    const next = childrenOf(top).find(child => child.key === key);
    if (!next) break;
    top.children = [next];
    path.push(next);
    top = next;
  }
  const limit = top.value * least, pending = [top];
  // No recursion: stacks may be deeper than the script's own.
  while (pending.length) {
    const node = pending.pop();
    node.children = childrenOf(node).filter(child => child.value >= limit);
    node.children.sort((a, b) => (a.key === FOLDED) - (b.key === FOLDED) || b.value - a.value);
    pending.push(...node.children);
    delete node.items;
  }
  return { root, top, path };
}

// What a node of a view is called.
function nodeText(model, node) {
  if (node.depth === 0) return "all";
  if (node.text) return node.text;
  if (node.key === FOLDED) return node.stacks === 1 ? "1 smaller stack" : `${countText(node.stacks)} smaller stacks`;
  return functionText(model, model.nodes.frame[node.sample]);
}

// Colours go by module. The largest have one of their own, by the bytes that were allocated through their functions. A
// model that is shown after another one has that one's colours.
function moduleColours(model, before) {
  const { nodes, groups, frames, texts } = model;
  const through = new Float64Array(nodes.count), all = groupValues(model, "allocated", wholeRange());
  all.forEach((value, group) => { through[groups.node[group]] += value; });
  const sums = new Map();
  for (let node = nodes.count - 1; node > 0; node--) {
    through[nodes.parent[node]] += through[node];
    const module = frames.module[nodes.frame[node]];
    sums.set(module, (sums.get(module) || 0) + through[node]);
  }
  const ranked = [...sums].sort((a, b) => b[1] - a[1]).map(([module]) => module);
  const paths = before ? before.paths : ranked.slice(0, ranked.length > 7 ? 6 : 7).map(module => texts[module]);
  const own = ranked.filter(module => paths.includes(texts[module]));
  const colours = new Map(own.map(module => [module, `m${paths.indexOf(texts[module])}`]));
  const legend = own.map(module => ({ colour: colours.get(module), name: texts[module] ? baseName(texts[module]) : "no module" }));
  if (ranked.length > own.length) legend.push({ colour: "mx", name: counted(ranked.length - own.length, "other module") });
  return { of: module => colours.get(module) || "mx", legend, paths };
}
