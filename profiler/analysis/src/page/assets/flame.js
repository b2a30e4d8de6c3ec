// Flame graph, icicle and bottom-up view: boxes as wide as what went through a function.

const ROW = 19;
// Boxes narrower than this are left out.
const NARROWEST = 2.5;
// About as wide as a letter in a box.
const LETTER = 6.5;

const flame = {
  boxes: [],
  focused: null,
  visible: null,

  // Whether the root is at the bottom.
  isUpright: () => state.view === "flame",

  build() {
    const { model, measure, range, zoom } = state;
    const values = groupValues(model, measure, range);
    const width = Math.max(200, byId("boxes").clientWidth);
    if (state.view === "compared") return { values, width, tree: compare.graph(zoom, NARROWEST / width) };
    const make = state.view === "bottom" ? fromLeaves : fromRoot;
    return { values, width, tree: make(model, values, zoom, NARROWEST / width) };
  },

  draw() {
    const { model } = state, stage = byId("boxes");
    const { values, width, tree } = this.build();
    this.width = stage.clientWidth;
    // Of a path that no longer is, what is left.
    if (tree.path.length - 1 < state.zoom.length) state.zoom = tree.path.slice(1).map(node => node.key);
    const found = foundFrames(model, state.query);
    this.found = found;
    this.foundBefore = compare.base && foundFrames(compare.base, state.query);
    const nodes = [];
    let depth = tree.path.length - 1;
    tree.path.forEach(node => nodes.push(Object.assign(node, { x: 0, w: width })));
    const pending = [tree.top];
    while (pending.length) {
      const node = pending.pop();
      let x = node.x;
      for (const child of node.children) {
        const w = tree.top.value ? child.value / tree.top.value * width : 0;
        if (w < NARROWEST) continue;
        Object.assign(child, { x, w, parent: node });
        x += w;
        nodes.push(child);
        pending.push(child);
        depth = Math.max(depth, child.depth);
      }
    }
    tree.path.forEach((node, at) => { node.parent = tree.path[at - 1]; });
    const height = (depth + 1) * ROW, upright = this.isUpright();
    stage.style.height = `${height}px`;
    const keep = stage.contains(document.activeElement);
    stage.replaceChildren(...nodes.map(node => this.box(node, tree, width, upright ? height - (node.depth + 1) * ROW : node.depth * ROW)));
    this.nodes = nodes;
    this.top = tree.top;
    this.root = tree.root;
    const isEmpty = !(tree.root.value > 0);
    byId("flame-empty").hidden = !isEmpty;
    stage.hidden = isEmpty;
    byId("flame-empty").textContent = isEmpty ? emptyText() : "";
    this.crumbs(tree);
    this.say(values, found);
    this.tab(keep);
    // The root is in sight at first, and again whenever the graph has another height.
    const shape = `${state.view} ${height}`;
    if (this.shape !== shape) byId("flame-scroll").scrollTop = upright ? height : 0;
    this.shape = shape;
  },

  box(node, tree, width, top) {
    const { model } = state, isRoot = node.depth === 0, isFolded = !isRoot && node.key === FOLDED;
    const frame = model.nodes.frame[node.sample];
    const colour = node.owner ? compare.colour(node) : isRoot ? "mr" : isFolded ? "mf" : model.colours.of(model.frames.module[frame]);
    const text = nodeText(model, node);
    const part = shareText(node.value, tree.root.value);
    let look = `box ${colour}`;
    if (node.depth < tree.top.depth) look += " above";
    if (this.found && !isRoot) look += !isFolded && this.isFound(node) ? " found" : " faded";
    const box = el("div", {
      class: look, role: "treeitem", tabindex: "-1", "aria-level": node.depth + 1,
      "aria-label": node.owner ? `${text}, ${compare.words(node)}` : `${text}, ${valueText(state.measure, node.value)}, ${part}`,
      text: node.w > 26 ? (!isRoot ? shortName(text, node.w / LETTER) : node.owner ? `all: ${compare.words(node)}` : `all: ${valueText(state.measure, node.value)}`) : "",
    });
    box.style.left = `${node.x}px`;
    box.style.width = `${Math.max(1, node.w - 1)}px`;
    box.style.top = `${top}px`;
    box.node = node;
    node.box = box;
    return box;
  },

  // Any of the lines of a function may lie in a file that is searched for; its box stands for all of them.
  isFound(node) {
    const isBefore = node.owner && node.owner === compare.base, { nodes } = isBefore ? compare.base : state.model;
    return (isBefore ? this.foundBefore : this.found)[nodes.frame[node.sample]] === 1;
  },

  crumbs(tree) {
    const { model } = state;
    const list = tree.path.map((node, at) => {
      const last = at === tree.path.length - 1;
      const text = at === 0 ? "all" : nodeText(model, node);
      return el("li", {}, last ? el("span", { text: shortName(text, 60), "aria-current": "location", title: text })
        : el("button", { type: "button", text: shortName(text, 60), title: text, onclick: () => choose({ zoom: state.zoom.slice(0, at) }) }));
    });
    byId("crumbs").replaceChildren(...list);
    byId("crumb-nav").hidden = list.length < 2;
  },

  // The line below the graph: what is drawn, what isn't, what was found.
  say(values, found) {
    const { model, measure } = state;
    let gone = 0, matched = 0;
    const hits = found && foundGroups(model, found);
    values.forEach((value, group) => {
      if (value < 0) gone -= value;
      else if (hits && hits[group]) matched += value;
    });
    const notes = [];
    if (hits && state.view !== "compared") notes.push(`found in ${valueText(measure, matched)}, ${shareText(matched, this.root.value)}`);
    if (measure === "growth" && gone) notes.push(`stacks that shrank, by ${bytesText(gone)} in all, are not drawn`);
    byId("flame-note").textContent = notes.join("; ");
  },

  // One box is in the order of the tab key: the one that had the focus, or the one that fills the view.
  tab(focus) {
    const node = this.nodes.find(node => node.key === this.focused?.key && node.sample === this.focused?.sample) || this.top;
    if (!node.box) return;
    node.box.tabIndex = 0;
    this.focused = node;
    if (focus) node.box.focus({ preventScroll: true });
  },

  zoomTo(node) {
    if (node.key === FOLDED && node.depth > 0) return;
    const keys = [];
    for (let at = node; at.depth > 0; at = at.parent) keys.unshift(at.key);
    this.focused = node;
    choose({ zoom: keys });
  },

  details(node) {
    const { measure } = state, model = node.owner || state.model, value = valueText(measure, node.value);
    if (node.owner) {
      const line = node.depth && node.key !== FOLDED && lineText(model, model.nodes.frame[node.sample], true);
      return [nodeText(model, node), compare.words(node), line];
    }
    const lines = [nodeText(model, node), `${value} ${MEASURES[measure].unit === "blocks" ? "blocks " : ""}${MEASURES[measure].long}, ${shareText(node.value, this.root.value)} of all`];
    if (state.view !== "bottom" && node.self > 0 && node.depth > 0 && node.key !== FOLDED && node.self < node.value) {
      lines.push(`${valueText(measure, node.self)} by itself`);
    }
    if (this.top.depth > 0 && node.depth > this.top.depth) lines.push(`${shareText(node.value, this.top.value)} of what is shown`);
    if (node.depth > 0 && node.key !== FOLDED) {
      const frame = model.nodes.frame[node.sample], line = lineText(model, frame, true);
      if (line) lines.push(line);
      lines.push(model.texts[model.frames.module[frame]] + (model.frames.flags[frame] & INLINED ? " · inlined" : ""));
    } else if (node.depth > 0) {
      lines.push(`Each has less than ${(model.facts.folded.threshold * 100).toPrecision(1)}% of everything, at any time.`);
    }
    lines.push(counted(node.stacks, "stack"));
    return lines;
  },

  listen() {
    const stage = byId("boxes");
    const nodeOf = event => event.target.closest(".box")?.node;
    stage.addEventListener("click", event => {
      const node = nodeOf(event);
      if (node) this.zoomTo(node);
    });
    stage.addEventListener("pointermove", event => {
      const node = nodeOf(event);
      if (node) tip.show(this.details(node), event.clientX, event.clientY);
      else tip.hide();
    });
    stage.addEventListener("pointerleave", () => tip.hide());
    stage.addEventListener("focusin", event => {
      const node = nodeOf(event);
      if (!node) return;
      this.focused = node;
      if (!node.box.matches(":focus-visible")) return;
      const place = node.box.getBoundingClientRect();
      tip.show(this.details(node), place.left, place.bottom - 8);
    });
    stage.addEventListener("focusout", () => tip.hide());
    stage.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(once(() => {
      if (stage.clientWidth !== this.width && !byId("panel-flame").hidden) this.draw();
    })).observe(byId("flame-scroll"));
  },

  key(event) {
    const node = this.focused;
    if (!node || event.altKey || event.ctrlKey || event.metaKey) return;
    const upright = this.isUpright();
    const go = { ArrowUp: upright ? 1 : -1, ArrowDown: upright ? -1 : 1 }[event.key];
    let next = null;
    if (go) next = go > 0 ? this.nodes.find(other => other.parent === node) : node.parent;
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const row = this.nodes.filter(other => other.depth === node.depth).sort((a, b) => a.x - b.x);
      next = row[row.indexOf(node) + (event.key === "ArrowLeft" ? -1 : 1)];
    } else if (event.key === "Enter" || event.key === " ") this.zoomTo(node);
    else if (event.key === "Backspace" || event.key === "Escape") {
      if (state.zoom.length) choose({ zoom: event.key === "Escape" ? [] : state.zoom.slice(0, -1) });
    } else if (event.key === "Home") next = this.top;
    else return;
    event.preventDefault();
    if (!next?.box) return;
    node.box.tabIndex = -1;
    next.box.tabIndex = 0;
    this.focused = next;
    next.box.focus();
  },
};

// Why there is nothing to draw.
function emptyText() {
  const { measure, model } = state;
  const what = {
    peak: "Nothing was live in this range.",
    live: "Nothing is live at the end of this range: all that was allocated was freed.",
    growth: "No stack holds more at the end of this range than at its beginning.",
    allocated: "Nothing was allocated in this range.",
    allocations: "Nothing was allocated in this range.",
    temporary: "No block was freed before its thread allocated again, in this range.",
  }[measure];
  return model.groups.count ? what : "This recording has no allocations.";
}
