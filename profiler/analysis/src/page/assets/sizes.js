// How large blocks are.

function sizeText(digits) {
  if (digits < 2) return `${digits} B`;
  const from = 2 ** (digits - 1), to = 2 * from - 1;
  if (from < 1024) return `${from} to ${to} B`;
  const short = bytes => bytesText(bytes).replace(".0 ", " ");
  return `${short(from)} to ${short(to + 1)}`;
}

// Classes of sizes in a range: what was allocated in it, and what is live at its end.
function sizeRows({ buckets }, [from, to]) {
  const rows = new Map();
  for (let bucket = 0; bucket < to; bucket++) {
    for (const size of buckets.sizes[bucket]) {
      if (!rows.has(size.digits)) rows.set(size.digits, { digits: size.digits, allocations: 0, allocated: 0, blocks: 0, bytes: 0 });
      const row = rows.get(size.digits);
      row.blocks += size.grownBlocks;
      row.bytes += size.grownBytes;
      if (bucket < from) continue;
      row.allocations += size.allocations;
      row.allocated += size.allocated;
    }
  }
  const all = [...rows.values()].filter(row => row.allocations || row.blocks || row.bytes).sort((a, b) => a.digits - b.digits);
  // Without gaps, so that distances between rows mean something.
  const filled = [];
  for (const row of all) {
    const last = filled[filled.length - 1];
    for (let digits = last ? last.digits + 1 : row.digits; digits < row.digits; digits++) {
      filled.push({ digits, allocations: 0, allocated: 0, blocks: 0, bytes: 0 });
    }
    filled.push(row);
  }
  return filled;
}

function drawSizes() {
  const rows = sizeRows(state.model, state.range);
  const keys = ["allocations", "allocated", "blocks", "bytes"], most = {};
  for (const key of keys) most[key] = rows.reduce((best, row) => Math.max(best, row[key]), 0);
  const names = ["Allocations", "Bytes allocated", "Live blocks at end", "Live bytes at end"];
  const head = el("tr", {}, el("th", { scope: "col", text: "Size of the block" }), ...names.map(name => el("th", { scope: "col", class: "number", text: name })));
  const line = row => el("tr", {}, el("th", { scope: "row", text: sizeText(row.digits) }), ...keys.map(key =>
    numberCell(row[key] ? (key === "allocations" || key === "blocks" ? countText : bytesText)(row[key]) : "–", most[key] ? row[key] / most[key] : 0)));
  byId("sizes").replaceChildren(el("thead", {}, head), el("tbody", {}, ...rows.map(line)));
  byId("sizes").hidden = !rows.length;
  byId("sizes-empty").hidden = rows.length > 0;
}
