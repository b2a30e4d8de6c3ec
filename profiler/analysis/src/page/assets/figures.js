// Figures of a range of buckets, exact to the edges between them.

const MEASURES = {
  peak: { name: "Peak", unit: "bytes", long: "held at the highest moment of the range" },
  live: { name: "Live at end", unit: "bytes", long: "live at the end of the range" },
  growth: { name: "Growth", unit: "bytes", long: "more at the end of the range than at its beginning" },
  allocated: { name: "Allocated", unit: "bytes", long: "allocated in the range" },
  allocations: { name: "Allocations", unit: "blocks", long: "allocated in the range" },
  temporary: { name: "Temporary", unit: "blocks", long: "freed in the range before their thread allocated again" },
};

function valueText(measure, value) {
  return MEASURES[measure].unit === "bytes" ? bytesText(value) : countText(value);
}

// The bucket with the highest moment of a range; the first of equals.
function peakBucket({ buckets }, [from, to]) {
  let best = from;
  for (let at = from + 1; at < to; at++) if (buckets.peak[at] > buckets.peak[best]) best = at;
  return best;
}

// The number of a group's last cell before a bucket; -1 for none.
function cellBefore({ cells }, group, bucket) {
  let low = cells.first[group], high = cells.first[group + 1];
  const start = low;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cells.bucket[middle] < bucket) low = middle + 1;
    else high = middle;
  }
  return low > start ? low - 1 : -1;
}

// A measure of each group in a range.
function groupValues(model, measure, [from, to]) {
  const { groups, cells } = model;
  const values = new Float64Array(groups.count);
  const sum = (column, group, edge) => {
    const cell = cellBefore(model, group, edge);
    return cell < 0 ? 0 : column[cell];
  };
  if (from >= to) return values;
  const top = measure === "peak" ? peakBucket(model, [from, to]) : 0;
  const column = measure === "live" || measure === "growth" ? cells.held : cells[measure];
  for (let group = 0; group < groups.count; group++) {
    if (measure === "peak") {
      const cell = cellBefore(model, group, top + 1);
      if (cell >= 0) values[group] = (cells.bucket[cell] === top ? cells.heldAtPeak : cells.held)[cell];
    } else {
      const start = measure === "live" ? 0 : sum(column, group, from);
      values[group] = sum(column, group, to) - start;
    }
  }
  return values;
}

// A measure of everything in a range, from the buckets alone.
function wholeValue({ buckets }, measure, [from, to]) {
  if (from >= to) return 0;
  const before = from > 0 ? buckets.live[from - 1] : 0;
  if (measure === "live") return buckets.live[to - 1];
  if (measure === "growth") return buckets.live[to - 1] - before;
  let value = 0;
  for (let at = from; at < to; at++) {
    value = measure === "peak" ? Math.max(value, buckets.peak[at]) : value + buckets[measure][at];
  }
  return value;
}

// The edge that is nearest to a moment.
function nearestEdge({ buckets }, ns) {
  const { edges, count, first } = buckets;
  let low = first, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (edges[middle] < ns) low = middle + 1;
    else high = middle;
  }
  return low > first && ns - edges[low - 1] < edges[low] - ns ? low - 1 : low;
}
