// Two recordings side by side: what there is now, and what there was before. Functions are the same by their names.

const compare = {
  // The recording of before, if there is one.
  base: null,

  // The stretch of the recording before that is at the same part of its time.
  range() {
    const { base } = this, { model, range } = state;
    if (isWhole()) return [base.buckets.first, base.buckets.count];
    const span = ({ buckets }) => [buckets.edges[buckets.first], buckets.edges[buckets.count]];
    const [start, end] = span(model), [baseStart, baseEnd] = span(base);
    const edge = at => nearestEdge(base, baseStart + (model.buckets.edges[at] - start) / Math.max(1, end - start) * (baseEnd - baseStart));
    const from = Math.min(edge(range[0]), base.buckets.count - 1);
    return [from, Math.max(from + 1, edge(range[1]))];
  },

  // The functions of both, each with what it has in the one and in the other.
  tree() {
    if (this.known?.model === state.model) return this.known;
    const names = new Map(), places = new Map();
    const all = { model: state.model, parent: [0], key: [FOLDED], name: [""], sample: [0], owner: [state.model], first: [0], next: [0], of: [] };
    for (const model of [state.model, this.base]) {
      const tree = model.tree || (model.tree = functionTree(model)), of = new Int32Array(tree.count);
      for (let place = 1; place < tree.count; place++) {
        const isFolded = tree.key[place] === FOLDED;
        const text = isFolded ? "smaller stacks" : functionText(model, model.nodes.frame[tree.sample[place]]);
        if (!names.has(text)) names.set(text, names.size);
        const parent = of[tree.parent[place]], key = isFolded ? FOLDED : names.get(text);
        const path = parent * 4194304 + key + 1;
        let at = places.get(path);
        if (at === undefined) {
          at = all.parent.length;
          places.set(path, at);
          all.parent.push(parent);
          all.key.push(key);
          all.name.push(text);
          all.sample.push(tree.sample[place]);
          all.owner.push(model);
          all.next.push(all.first[parent]);
          all.first.push(0);
          all.first[parent] = at;
        }
        of[place] = at;
      }
      all.of.push(of);
    }
    this.known = all;
    return all;
  },

  // As wide as both together.
  graph(zoom, least) {
    const all = this.tree(), count = all.parent.length;
    const sums = [state.model, this.base].map((model, at) => {
      const values = groupValues(model, state.measure, at ? this.range() : state.range), sum = new Float64Array(count);
      values.forEach((value, group) => { if (value > 0) sum[all.of[at][model.tree.ofGroup[group]]] += value; });
      for (let place = count - 1; place > 0; place--) sum[all.parent[place]] += sum[place];
      return sum;
    });
    const make = (place, depth) => Object.assign(viewNode(all.key[place], all.sample[place], depth), {
      place, text: depth ? all.name[place] : "all", owner: all.owner[place],
      now: sums[0][place], before: sums[1][place], value: sums[0][place] + sums[1][place],
    });
    return grow(make(0, 0), zoom, least, node => {
      const children = [];
      for (let place = all.first[node.place]; place; place = all.next[place]) {
        if (sums[0][place] + sums[1][place] > 0) children.push(make(place, node.depth + 1));
      }
      return children;
    });
  },

  // Seven colours, from what went to what came.
  colour({ now, before }) {
    const part = (now - before) / Math.max(1, now + before);
    return `d${Math.abs(part) < 0.02 ? 3 : part < 0 ? (part < -0.5 ? 0 : part < -0.15 ? 1 : 2) : part > 0.5 ? 6 : part > 0.15 ? 5 : 4}`;
  },

  // How much more there is, where there was some before.
  more(now, before) {
    if (now >= 10 * before) return `${countText(Math.round(now / before))} times as much`;
    return `${now >= before ? "+" : "−"}${shareText(Math.abs(now - before), before)}`;
  },

  words({ now, before }) {
    const text = value => valueText(state.measure, value);
    const change = before ? ` (${this.more(now, before)})` : "";
    return `${text(now)} now, ${text(before)} before: ${now >= before ? "+" : ""}${text(now - before)}${change}`;
  },

  legend() {
    const names = ["only before", "", "", "the same", "", "", "only now"];
    return names.map((name, at) => el("li", {}, el("span", { class: `swatch d${at}`, "aria-hidden": "true" }), name ? el("span", { text: name }) : null));
  },

  // What a fact was before.
  was(now, before, text) {
    if (!this.base) return null;
    const change = now === before ? "the same" : before ? this.more(now, before) : "new";
    return el("dd", { class: "rest was", text: `before ${text(before)}, ${change}` });
  },
};
