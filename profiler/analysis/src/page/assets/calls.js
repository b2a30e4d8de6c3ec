// Trees of calls as a graph shows them: functions from the root, or from those that allocated towards the root.

const FOLDED = -1;

// A tree of functions, made of the nodes of all stacks: it has one child for each function that is called, whatever the lines.
function functionTree(model) {
  const { nodes, groups, keys } = model;
  const parent = [0], key = [FOLDED], sample = [0], children = [new Map()];
  const child = (of, which, node) => {
    let place = children[of].get(which);
    if (place === undefined) {
      place = parent.length;
      children[of].set(which, place);
      parent.push(of);
      key.push(which);
      sample.push(node);
      children.push(new Map());
    }
    return place;
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
  return { parent, key, sample, children, ofGroup };
}

// Nodes of a view have a key, a node of the model that they stand for, a value, a part of it that is their own, and children.
function viewNode(key, sample, depth) {
  return { key, sample, depth, value: 0, self: 0, stacks: 0, children: [] };
}

// Functions from the root. Follows `zoom` however little there is, and elsewhere leaves out what has less than `least`.
function fromRoot(model, values, zoom, least) {
  const tree = model.tree || (model.tree = functionTree(model));
  const sums = new Float64Array(tree.parent.length), own = new Float64Array(tree.parent.length);
  const stacks = new Float64Array(tree.parent.length);
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
    for (const place of tree.children[node.place].values()) if (sums[place] > 0) all.push(make(place, node.depth + 1));
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
  if (node.key === FOLDED) return node.stacks === 1 ? "1 smaller stack" : `${countText(node.stacks)} smaller stacks`;
  return functionText(model, model.nodes.frame[node.sample]);
}

// Colours go by module. The largest have one of their own, by the bytes that were allocated through their functions.
function moduleColours(model) {
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
  const own = ranked.slice(0, ranked.length > 7 ? 6 : 7);
  const colours = new Map(own.map((module, at) => [module, `m${at}`]));
  const legend = own.map((module, at) => ({ colour: `m${at}`, name: texts[module] ? baseName(texts[module]) : "no module", module }));
  if (ranked.length > own.length) legend.push({ colour: "mx", name: counted(ranked.length - own.length, "other module") });
  return { of: module => colours.get(module) || "mx", legend };
}
