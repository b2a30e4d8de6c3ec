// Memory that no other view has in it: what the program mapped, and what its pools and other allocators gave out.

const OTHER_KINDS = {
  mappings: { title: () => "Mappings", count: "mapping", live: "range", got: "Mapped" },
  pool: { title: name => `Pool ${name}`, count: "allocation", live: "block", got: "Allocated" },
  allocator: { title: name => `Allocator ${name}`, count: "allocation", live: "block", got: "Allocated" },
};

function otherStack(stack) {
  if (!stack.length) return el("p", { class: "faint", text: "No frame of this stack is known." });
  return el("ol", { class: "stack" }, ...stack.map(([name, place]) =>
    el("li", {}, el("span", { class: "function", text: name }), el("span", { class: "place", text: place }))));
}

// A site's row, which opens to its stack.
function otherRow({ what, count, bytes, peak, live, stack }, most) {
  const name = stack.length ? stack[0][0] : "no stack";
  const callers = stack.slice(1, 4).map(([text]) => text);
  const toggle = event => {
    const opener = event.currentTarget, line = opener.closest("tr"), isOpen = opener.getAttribute("aria-expanded") === "true";
    if (isOpen) line.nextElementSibling.remove();
    else line.after(el("tr", { class: "opened" }, el("td", { colspan: 5 }, otherStack(stack))));
    opener.setAttribute("aria-expanded", isOpen ? "false" : "true");
  };
  return el("tr", {},
    el("td", { class: "site" },
      el("button", { type: "button", class: "opener", "aria-expanded": "false", onclick: toggle },
        el("span", { class: "function", text: shortName(name, NAME_ROOM), title: name }), what ? el("span", { class: "place", text: what }) : null),
      callersLine(callers)),
    numberCell(bytesText(peak), most ? peak / most : 0), numberCell(bytesText(live)), numberCell(bytesText(bytes)), numberCell(countText(count)));
}

function otherSection({ kind, name, count, bytes, peak_bytes, peak_time_ns, live, live_bytes, sites, more }) {
  const words = OTHER_KINDS[kind];
  const most = sites.reduce((best, site) => Math.max(best, site.peak), 0);
  const names = ["Peak", "Live at end", words.got, kind === "mappings" ? "Mappings" : "Allocations"];
  const head = el("tr", {}, el("th", { scope: "col", class: "site", text: "Site" }), ...names.map(text => el("th", { scope: "col", class: "number", text })));
  return el("div", { class: "other" },
    el("h3", { text: words.title(name) }),
    el("p", { class: "faint", text: `${bytesText(peak_bytes)} at the peak, first at ${durationText(peak_time_ns)}; ${bytesText(bytes)} in ${counted(count, words.count)}; ${bytesText(live_bytes)} live at the end in ${counted(live, words.live)}.` }),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...sites.map(site => otherRow(site, most))))),
    more ? el("p", { class: "faint", text: `And ${counted(more, "more site")}, which held less at the peak: grapnel report --top 0 shows them.` }) : null);
}

function drawOthers() {
  byId("others").replaceChildren(...state.model.facts.others.map(otherSection));
}
