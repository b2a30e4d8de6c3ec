// Ranges that the page can't hold, of the server that has the trace.

const isLive = () => "live" in document.documentElement.dataset;

const closer = {
  // What was shown before, to go back to.
  before: [],
  busy: false,

  listen() {
    byId("closer").addEventListener("click", () => this.look());
    byId("range-back").addEventListener("click", () => this.back());
    this.mark();
  },

  mark() {
    byId("closer").hidden = !isLive();
    byId("closer").disabled = this.busy || isWhole();
    byId("closer").textContent = this.busy ? "Reading…" : "Look closer";
    byId("range-back").hidden = !this.before.length;
  },

  async look() {
    const { model, range } = state, { changes } = model.buckets;
    const [from, to] = range.map(edge => changes[edge]);
    if (this.busy || from === to) return;
    this.busy = true;
    this.mark();
    try {
      const answer = await fetch(`data?from=${from}&to=${to}`);
      if (!answer.ok) throw new Error(await answer.text());
      const next = readModel(await inflate(new Uint8Array(await answer.arrayBuffer())));
      this.before.push({ model, range });
      this.change(next);
    } catch (error) {
      byId("range-figures").textContent = `This range can't be read: ${error.message}. Is grapnel view still running?`;
    }
    this.busy = false;
    this.mark();
  },

  back() {
    const { model, range } = this.before.pop();
    this.change(model);
    choose({ range });
    if (!this.before.length) byId("range-all").focus();
  },

  change(model) {
    take(model);
    // Keys and groups are numbered anew.
    choose({ zoom: [] });
    for (const table of [sitesTable, leaksTable]) table.open.clear();
    timeline.draw();
  },
};
