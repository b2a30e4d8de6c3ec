// Two recordings as a table: what each stack of functions has now, and what it had before.

// Rows of stacks that are the same by the names of their functions. Each has a group of one of the recordings to show.
function changedRows() {
  const all = compare.tree(), rows = new Map();
  [state.model, compare.base].forEach((model, at) => {
    const values = groupValues(model, state.measure, at ? compare.range() : state.range);
    values.forEach((value, group) => {
      if (!value) return;
      const place = all.of[at][model.tree.ofGroup[group]];
      if (!rows.has(place)) rows.set(place, { key: place, model, group, now: 0, before: 0 });
      rows.get(place)[at ? "before" : "now"] += value;
    });
  });
  return [...rows.values()].map(row => Object.assign(row, { change: row.now - row.before }));
}

const changesTable = new GroupTable("changes", [
  { key: "change", name: "Change", title: "from the recording before to this one", text: value => `${value > 0 ? "+" : ""}${valueText(state.measure, value)}`, bySize: true },
  { key: "now", name: "Now", title: "in this recording", text: value => valueText(state.measure, value) },
  { key: "before", name: "Before", title: "in the recording that it is compared with", text: value => valueText(state.measure, value) },
], "change");

function drawChanges() {
  changesTable.draw(changedRows(), "Neither recording has anything of this in this range.");
}
