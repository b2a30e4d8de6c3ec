// Sites and leaks as tables.

const PAGE_ROWS = 100;
// Letters of a name in a table.
const NAME_ROOM = 60;
const CALLER_ROOM = 36;

// The frames of a stack, from the one that allocated.
function stackNodes(model, node) {
  const stack = [];
  for (let at = node; at; at = model.nodes.parent[at]) stack.push(at);
  return stack;
}

function frameItem(model, node, child) {
  const { frames, nodes, texts } = model, frame = nodes.frame[node];
  const marks = [
    frames.flags[frame] & INLINED && "inlined",
    frames.flags[frame] & SIGNAL && "signal handler called",
    child && nodes.guess[node] && "guess",
  ].filter(Boolean);
  const line = lineText(model, frame, false);
  return el("li", { class: model.foundFrames && model.foundFrames[frame] ? "found" : "" },
    el("span", { class: `swatch ${model.colours.of(frames.module[frame])}`, "aria-hidden": "true" }),
    el("span", { class: "function", text: functionText(model, frame) }),
    el("span", { class: "place", title: [lineText(model, frame, true), texts[frames.module[frame]]].filter(Boolean).join("\n"),
      text: [line, frames.func[frame] || line ? moduleText(model, frame) : "", ...marks].filter(Boolean).join(" · ") }));
}

const SHORT_STACK = 14;

// The frames as a list; of a deep stack the middle comes on request.
function stackList(model, node) {
  const stack = stackNodes(model, node);
  if (!stack.length) return el("p", { class: "faint", text: "No frame of this stack is known." });
  const item = at => frameItem(model, stack[at], at > 0);
  const list = el("ol", { class: "stack" });
  if (stack.length <= SHORT_STACK + 2) stack.forEach((_, at) => list.append(item(at)));
  else {
    for (let at = 0; at < SHORT_STACK - 4; at++) list.append(item(at));
    const middle = [];
    for (let at = SHORT_STACK - 4; at < stack.length - 4; at++) middle.push(at);
    const more = el("li", { class: "more" }, el("button", { type: "button", text: `${middle.length} more frames`,
      onclick: () => more.replaceWith(...middle.map(item)) }));
    list.append(more);
    for (let at = stack.length - 4; at < stack.length; at++) list.append(item(at));
  }
  return list;
}

// A stack in a few words: who allocated, and who asked for it.
function siteName(model, group) {
  const { groups, nodes } = model, stack = stackNodes(model, groups.node[group]).slice(0, 4);
  const text = node => functionText(model, nodes.frame[node]);
  if (groups.folded[group]) {
    const where = stack.length ? `below ${text(stack[0])}` : "all over";
    return { title: groups.stacks[group] === 1 ? "1 smaller stack" : `${countText(groups.stacks[group])} smaller stacks`, callers: [], where, isFolded: true };
  }
  if (!stack.length) return { title: "no stack", callers: [], isFolded: true };
  const line = lineText(model, nodes.frame[stack[0]], false);
  return { title: text(stack[0]), line, callers: stack.slice(1).map(text) };
}

// Who asked for it, as far as there is room.
function callersLine(callers) {
  const line = room => callers.map(text => `← ${shortName(text, room)}`).join(" ");
  return el("div", { class: "callers", text: line(CALLER_ROOM), title: line(Infinity) });
}

function siteCell(model, group, open, toggle) {
  const { title, line, callers, where, isFolded } = siteName(model, group);
  const frame = model.nodes.frame[model.groups.node[group]];
  const colour = isFolded ? "mf" : model.colours.of(model.frames.module[frame]);
  return el("td", { class: "site" },
    el("button", { type: "button", class: "opener", "aria-expanded": open ? "true" : "false", onclick: toggle },
      el("span", { class: `swatch ${colour}`, "aria-hidden": "true" }),
      el("span", { class: isFolded ? "function folded" : "function", text: shortName(title, NAME_ROOM), title }),
      line ? el("span", { class: "place", text: line }) : null),
    where ? el("div", { class: "callers", text: where, title: where }) : callersLine(callers));
}

// A number with a bar behind it, as long as its part of the largest.
function numberCell(text, part) {
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  bar.style.width = `${Math.max(0, Math.min(1, part || 0)) * 100}%`;
  const look = /^(0|0 B|–)$/.test(text) ? "figure zero" : "figure";
  return el("td", { class: "number" }, part ? bar : null, el("span", { class: look, text }));
}

// A table of groups that can be sorted and searched, whose rows open to stacks.
class GroupTable {
  constructor(id, columns, sort) {
    Object.assign(this, { id, columns, sort, down: true, rows: PAGE_ROWS, open: new Set() });
  }

  // A row is of the recording that is shown, unless it says of which.
  draw(rows, note) {
    const found = row => (row.model || state.model).foundGroups, isSearched = Boolean(state.model.foundGroups);
    const shown = isSearched ? rows.filter(row => found(row)[row.group]) : rows;
    const { sort, down } = this, bySize = this.columns.find(column => column.key === sort)?.bySize;
    const value = row => bySize ? Math.abs(row[sort]) : row[sort];
    shown.sort((a, b) => (down ? value(b) - value(a) : value(a) - value(b)) || a.group - b.group);
    const most = {};
    for (const { key } of this.columns) most[key] = shown.reduce((best, row) => Math.max(best, Math.abs(row[key])), 0);
    const head = el("tr", {}, el("th", { scope: "col", class: "site", text: "Site" }), ...this.columns.map(column => this.header(column)));
    const body = shown.slice(0, this.rows).flatMap(row => this.row(row.model || state.model, row, most));
    byId(this.id).replaceChildren(el("thead", {}, head), el("tbody", {}, ...body));
    byId(`${this.id}-empty`).hidden = shown.length > 0;
    byId(`${this.id}-empty`).textContent = rows.length ? `No site is found by “${state.query}”.` : note;
    const more = byId(`${this.id}-more`);
    more.hidden = shown.length <= this.rows;
    more.textContent = `Show more: ${countText(Math.max(0, shown.length - this.rows))} left`;
    more.onclick = () => { this.rows += PAGE_ROWS * 2; tell(); };
    byId(`${this.id}-count`).textContent = this.counts(shown, isSearched ? rows : null);
  }

  // How many rows there are, and of which kind.
  counts(shown, all) {
    const isSingle = row => !(row.model || state.model).groups.folded[row.group], single = rows => rows.filter(isSingle).length;
    const groups = shown.length - single(shown);
    const text = all ? `${countText(single(shown))} of ${counted(single(all), "site")}` : counted(single(shown), "site");
    return groups ? `${text}, and ${counted(groups, "group")} of smaller ones.` : `${text}.`;
  }

  header({ key, name, title }) {
    const current = key === this.sort;
    return el("th", { scope: "col", class: "number", "aria-sort": current ? (this.down ? "descending" : "ascending") : null },
      el("button", { type: "button", title, text: name, id: `${this.id}-by-${key}`, onclick: () => {
        this.down = current ? !this.down : true;
        this.sort = key;
        tell();
        requestAnimationFrame(() => requestAnimationFrame(() => byId(`${this.id}-by-${key}`)?.focus()));
      } }));
  }

  row(model, row, most) {
    const { group, key = group } = row, isOpen = this.open.has(key);
    const toggle = event => {
      const opener = event.currentTarget, line = opener.closest("tr");
      if (this.open.delete(key)) line.nextElementSibling.remove();
      else {
        this.open.add(key);
        line.after(this.stackRow(model, group));
      }
      opener.setAttribute("aria-expanded", this.open.has(key) ? "true" : "false");
    };
    const cells = this.columns.map(({ key, text }) => numberCell(text(row[key], row), key === this.sort && most[key] ? Math.abs(row[key]) / most[key] : undefined));
    const line = el("tr", {}, siteCell(model, group, isOpen, toggle), ...cells);
    return isOpen ? [line, this.stackRow(model, group)] : [line];
  }

  stackRow(model, group) {
    const { groups } = model, names = model.facts.sources.filter((_, at) => groups.sources[group] >> at & 1);
    return el("tr", { class: "opened" }, el("td", { colspan: this.columns.length + 1 },
      names.length ? el("p", { class: "faint", text: `Blocks from ${names.join(", ")}.${groups.folded[group] ? " These stacks are too small to be told one by one; they have in common:" : ""}` }) : null,
      stackList(model, groups.node[group])));
  }
}

const siteColumn = key => ({ key, name: MEASURES[key].name, title: MEASURES[key].long, text: value => valueText(key, value) });
const sitesTable = new GroupTable("sites", ["peak", "live", "growth", "allocated", "allocations", "temporary"].map(siteColumn), "peak");
const leaksTable = new GroupTable("leaks", [
  { key: "bytes", name: "Live bytes", title: "live when the recording ended", text: bytesText },
  { key: "blocks", name: "Blocks", title: "live when the recording ended", text: countText },
  { key: "mean", name: "Mean size", title: "bytes of a block", text: bytesText },
], "bytes");

function drawSites() {
  const { model, range } = state, measures = sitesTable.columns.map(column => column.key);
  const values = measures.map(measure => groupValues(model, measure, range));
  const rows = [];
  for (let group = 0; group < model.groups.count; group++) {
    if (!values.some(column => column[group])) continue;
    const row = { group };
    measures.forEach((measure, at) => { row[measure] = values[at][group]; });
    rows.push(row);
  }
  sitesTable.draw(rows, "No site allocated, held or freed anything in this range.");
}

function drawLeaks() {
  const { groups } = state.model, rows = [];
  for (let group = 0; group < groups.count; group++) {
    const bytes = groups.liveBytes[group], blocks = groups.liveBlocks[group];
    if (blocks || bytes) rows.push({ group, bytes, blocks, mean: blocks ? Math.round(bytes / blocks) : 0 });
  }
  leaksTable.draw(rows, "Everything that was allocated was freed before the recording ended.");
}
