// Live bytes over time, with the range that all else follows.

const TIMELINE = { left: 64, right: 12, top: 18, height: 118, rates: 26, axis: 20 };

// The next of 1, 2, 5, 10, 20, ... that is no less.
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map(n => n * power).find(step => step >= least * 0.999);
}

function timeScale({ buckets }, width) {
  const start = buckets.edges[buckets.first], end = buckets.edges[buckets.count];
  const span = Math.max(1, end - start), room = Math.max(1, width - TIMELINE.left - TIMELINE.right);
  return {
    start, end, span,
    x: ns => TIMELINE.left + (ns - start) / span * room,
    ns: x => start + (x - TIMELINE.left) / room * span,
  };
}

function tickText(ns, step) {
  const [unit, name] = step >= 60e9 ? [60e9, "min"] : step >= 1e9 ? [1e9, "s"] : step >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
  return `${GROUPED.format(Math.round(ns / unit))} ${name}`;
}

function timeAxis(scale, width, bottom) {
  const step = niceStep(Math.max(1e3, scale.span / Math.max(2, (width - 80) / 110)));
  const marks = svg("g", { class: "axis" });
  for (let ns = Math.ceil(scale.start / step) * step; ns <= scale.end; ns += step) {
    const x = scale.x(ns);
    const anchor = x > width - 40 ? "end" : x < TIMELINE.left + 10 ? "start" : "middle";
    marks.append(svg("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
      svg("text", { x: anchor === "end" ? width - 2 : x, y: bottom + 16, "text-anchor": anchor, text: tickText(ns, step) }));
  }
  return marks;
}

// Lines at round numbers of bytes.
function byteAxis(most, width, y) {
  const marks = svg("g", { class: "axis" });
  if (most <= 0) return marks;
  const unit = 1024 ** Math.floor(Math.log2(Math.max(1, most)) / 10);
  const step = Math.max(1, niceStep(most / unit / 3.5) * unit);
  for (let bytes = 0; bytes <= most * 1.02; bytes += step) {
    marks.append(svg("line", { class: "grid", x1: TIMELINE.left, x2: width - TIMELINE.right, y1: y(bytes), y2: y(bytes) }),
      svg("text", { x: TIMELINE.left - 8, y: y(bytes) + 4, "text-anchor": "end", text: bytes ? bytesText(bytes).replace(".0 ", " ") : "0" }));
  }
  return marks;
}

// Through each bucket's beginning, its highest moment and its end.
function livePath({ buckets }, scale, y) {
  const point = (ns, bytes) => `${scale.x(ns).toFixed(1)},${y(bytes).toFixed(1)}`;
  const { edges, first, count } = buckets;
  let live = first > 0 ? buckets.live[first - 1] : 0;
  const points = [point(edges[first], live)];
  for (let at = first; at < count; at++) {
    if (buckets.peak[at] > Math.max(live, buckets.live[at])) points.push(point((edges[at] + edges[at + 1]) / 2, buckets.peak[at]));
    live = buckets.live[at];
    points.push(point(edges[at + 1], live));
  }
  return points.join(" L");
}

// How fast memory was allocated, bucket by bucket.
function ratePath({ buckets }, scale, bottom) {
  const { edges, first, count, allocated } = buckets;
  const rate = at => allocated[at] / Math.max(scale.span / 2000, edges[at + 1] - edges[at]);
  let most = 0;
  for (let at = first; at < count; at++) most = Math.max(most, rate(at));
  if (!most) return "";
  const bars = [];
  for (let at = first; at < count; at++) {
    // By its root, since a burst would flatten all else.
    const height = Math.sqrt(rate(at) / most) * TIMELINE.rates;
    if (height < 0.3) continue;
    const [left, right] = [scale.x(edges[at]), Math.max(scale.x(edges[at + 1]), scale.x(edges[at]) + 0.7)];
    bars.push(`M${left.toFixed(1)},${bottom}V${(bottom - height).toFixed(1)}H${right.toFixed(1)}V${bottom}Z`);
  }
  return bars.join("");
}

// Moments that were marked. Names that would lie on each other are left to the pointer.
function markLines(model, scale, width, top, bottom) {
  let free = 0;
  return model.facts.marks.map(({ time_ns: ns, name }) => {
    const x = scale.x(ns), room = Math.min(8 * name.length + 8, width);
    const isShown = x >= free && x + room <= width;
    if (isShown) free = x + room;
    return svg("g", { class: "mark" },
      svg("title", { text: `${name} at ${durationText(ns)}` }),
      svg("line", { x1: x, x2: x, y1: top, y2: bottom }),
      isShown && svg("text", { x: x + 3, y: top + 10, text: name }));
  });
}

// Where the highest moment of the shown time is.
function peakMoment(model) {
  const bucket = peakBucket(model, wholeRange());
  const { edges, peak } = model.buckets;
  const { peak_time_ns: told, peak_bytes: bytes } = model.facts.totals;
  const middle = (edges[bucket] + edges[bucket + 1]) / 2;
  const isTold = peak[bucket] === bytes && told >= edges[bucket] && told <= edges[bucket + 1];
  // Times of single events are coarser than edges: where it is drawn may differ from what is said everywhere else.
  return { bucket, ns: isTold ? told : middle, said: peak[bucket] === bytes ? told : middle, bytes: peak[bucket] };
}

const timeline = {
  scale: null,
  width: 0,

  // Draws what doesn't depend on the range.
  draw() {
    const { model } = state, box = byId("timeline");
    const width = box.clientWidth, { top, height, rates, axis } = TIMELINE;
    const bottom = top + height, rateBottom = bottom + 6 + rates;
    if (!width) return;
    this.width = width;
    const scale = this.scale = timeScale(model, width);
    const peak = peakMoment(model);
    const { base } = compare, top0 = Math.max(peak.bytes, base && !closer.before.length ? base.facts.totals.peak_bytes : 0);
    const y = bytes => bottom - (top0 > 0 ? bytes / top0 : 0) * height;
    const line = livePath(model, scale, y);
    const x = scale.x(peak.ns);
    const anchor = x > width * 0.75 ? "end" : x < width * 0.25 ? "start" : "middle";
    const drawing = svg("svg", { width, height: rateBottom + axis, "aria-hidden": "true" },
      byteAxis(top0, width, y),
      svg("path", { class: "area", d: `M${scale.x(scale.start)},${bottom} L${line} L${scale.x(scale.end)},${bottom}Z` }),
      svg("path", { class: "curve", d: `M${line}` }),
      base && svg("path", { class: "curve before", d: `M${livePath(base, timeScale(base, width), y)}` }),
      svg("path", { class: "rate", d: ratePath(model, scale, rateBottom) }),
      timeAxis(scale, width, rateBottom),
      ...markLines(model, scale, width, top, bottom),
      peak.bytes > 0 && svg("g", { class: "peak" },
        svg("line", { x1: x, x2: x, y1: y(peak.bytes), y2: bottom }),
        svg("circle", { cx: x, cy: y(peak.bytes), r: 4 }),
        svg("text", { x: anchor === "end" ? x + 4 : anchor === "start" ? x - 4 : x, y: 11, "text-anchor": anchor,
          text: `peak ${bytesText(peak.bytes)} at ${durationText(peak.said)}` })),
      svg("rect", { class: "shade", id: "shade-left", y: top, height: rateBottom - top }),
      svg("rect", { class: "shade", id: "shade-right", y: top, height: rateBottom - top }),
      svg("line", { class: "hair", id: "hair", y1: top, y2: rateBottom, visibility: "hidden" }));
    byId("drawing").replaceChildren(drawing);
    for (const handle of document.querySelectorAll(".handle")) {
      handle.style.top = `${top}px`;
      handle.style.height = `${rateBottom - top}px`;
    }
    this.mark();
  },

  // Draws the range.
  mark() {
    const { scale } = this, { model, range } = state;
    if (!scale || !byId("shade-left")) return;
    const { edges } = model.buckets;
    const [from, to] = range.map(edge => scale.x(edges[edge]));
    const left = scale.x(scale.start), right = scale.x(scale.end);
    const place = (id, x, width) => {
      byId(id).setAttribute("x", x);
      byId(id).setAttribute("width", Math.max(0, width));
    };
    place("shade-left", left, from - left);
    place("shade-right", to, right - to);
    [["handle-from", from, 0], ["handle-to", to, 1]].forEach(([id, x, at]) => {
      const handle = byId(id);
      handle.style.left = `${x}px`;
      handle.setAttribute("aria-valuemin", model.buckets.first);
      handle.setAttribute("aria-valuemax", model.buckets.count);
      handle.setAttribute("aria-valuenow", range[at]);
      handle.setAttribute("aria-valuetext", durationText(edges[range[at]]));
    });
    const whole = isWhole(), isPart = closer.before.length > 0;
    const span = edges[range[1]] - edges[range[0]];
    byId("range-text").textContent = whole && !isPart ? `Whole recording, ${durationText(edges[range[1]] - edges[range[0]])}`
      : `${durationText(edges[range[0]])} to ${durationText(edges[range[1]])} (${durationText(span)})`;
    byId("range-figures").textContent = [
      `peak ${bytesText(wholeValue(model, "peak", range))}`,
      `live ${bytesText(wholeValue(model, "live", range))} at the end`,
      `${counted(wholeValue(model, "allocations", range), "allocation")} of ${bytesText(wholeValue(model, "allocated", range))}`,
    ].join(" · ");
    byId("range-all").disabled = whole;
    byId("range-all").textContent = isPart ? "Whole part" : "Whole recording";
  },

  listen() {
    const box = byId("timeline");
    const position = event => event.clientX - box.getBoundingClientRect().left;
    const edgeAt = x => nearestEdge(state.model, this.scale.ns(x));
    let drag = null;
    box.addEventListener("pointerdown", event => {
      if (event.button !== 0 || !this.scale) return;
      const x = position(event), handle = event.target.closest(".handle");
      const [from, to] = state.range, { edges } = state.model.buckets;
      const inside = !isWhole() && x > this.scale.x(edges[from]) && x < this.scale.x(edges[to]);
      drag = { x, range: state.range, kind: handle ? handle.id : inside ? "move" : "new" };
      box.setPointerCapture(event.pointerId);
      if (handle) handle.focus();
      event.preventDefault();
    });
    box.addEventListener("pointermove", event => {
      const x = position(event);
      if (!drag) return this.hover(x, event);
      tip.hide();
      const [from, to] = drag.range, edge = edgeAt(x);
      if (drag.kind === "handle-from") chooseRange(Math.min(edge, to - 1), to);
      else if (drag.kind === "handle-to") chooseRange(from, Math.max(edge, from + 1));
      else if (Math.abs(x - drag.x) < 3) return undefined;
      else if (drag.kind === "move") this.move(drag, x);
      else {
        const other = edgeAt(drag.x);
        chooseRange(Math.min(edge, other), Math.max(edge, other));
      }
      return undefined;
    });
    const end = () => { drag = null; };
    box.addEventListener("pointerup", end);
    box.addEventListener("pointercancel", end);
    box.addEventListener("pointerleave", () => this.leave());
    box.addEventListener("dblclick", () => choose({ range: wholeRange() }));
    for (const id of ["handle-from", "handle-to"]) byId(id).addEventListener("keydown", event => this.key(event, id));
    byId("range-all").addEventListener("click", () => choose({ range: wholeRange() }));
    byId("range-before").addEventListener("click", () => chooseRange(state.model.buckets.first, peakBucket(state.model, wholeRange()) + 1));
    byId("range-after").addEventListener("click", () => chooseRange(peakBucket(state.model, wholeRange()), state.model.buckets.count));
    new ResizeObserver(once(() => { if (box.clientWidth !== this.width) this.draw(); })).observe(box);
  },

  // Moves a range along, with the length that it has.
  move(drag, x) {
    const { edges, first, count } = state.model.buckets, [from, to] = drag.range;
    const by = this.scale.ns(x) - this.scale.ns(drag.x);
    let start = nearestEdge(state.model, edges[from] + by);
    start = Math.max(first, Math.min(start, count - 1));
    const end = Math.max(start + 1, nearestEdge(state.model, edges[start] + edges[to] - edges[from]));
    chooseRange(start, end);
  },

  key(event, id) {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -20, PageUp: 20, Home: -1e9, End: 1e9 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const by = steps[event.key] * (event.shiftKey ? 10 : 1), [from, to] = state.range;
    if (id === "handle-from") chooseRange(Math.min(from + by, to - 1), to);
    else chooseRange(from, Math.max(to + by, from + 1));
  },

  hover(x, event) {
    const { scale } = this, hair = byId("hair");
    if (!scale || !hair) return;
    const ns = scale.ns(x), { buckets } = state.model;
    if (ns < scale.start || ns > scale.end) return this.leave();
    let at = nearestEdge(state.model, ns);
    if (at > buckets.first && buckets.edges[at] > ns) at--;
    at = Math.min(at, buckets.count - 1);
    hair.setAttribute("x1", x);
    hair.setAttribute("x2", x);
    hair.setAttribute("visibility", "visible");
    tip.show([durationText(ns), `up to ${bytesText(buckets.peak[at])} live`,
      `${bytesText(buckets.allocated[at])} allocated within ${durationText(buckets.edges[at + 1] - buckets.edges[at])}`], event.clientX, event.clientY);
    return undefined;
  },

  leave() {
    tip.hide();
    const hair = byId("hair");
    if (hair) hair.setAttribute("visibility", "hidden");
  },
};
