// What a look for leaks found: lost blocks, and what holds the others.

const HELD_WORDS = {
  direct: { holds: "lost with them", about: "Nothing leads to these blocks." },
  indirect: { holds: "held by them", about: "Only lost blocks lead to these." },
  possible: { holds: "held by them", about: "Only pointers lead to these that the policy doesn't count." },
  reachable: { holds: "held by them", about: "The program could still reach these." },
};

// A way from a root to the blocks: each step is a list's item, indented below the one that holds it.
function heldPath({ root, steps, blocks, bytes }) {
  const item = step => el("li", { text: step ? `${step[0]}, at +${countText(step[1])}` : "…" });
  return el("div", { class: "path" },
    el("div", {}, el("span", { class: "faint", text: "held by " }), el("span", { class: "root", text: root }),
      el("span", { class: "faint", text: ` · ${bytesText(bytes)} in ${counted(blocks, "block")}` })),
    steps.length ? el("ol", {}, ...steps.map(item)) : null);
}

function heldRow({ blocks, bytes, holds, stack, paths, more }, { kind, most }) {
  const name = stack.length ? stack[0][0] : "no stack", callers = stack.slice(1, 4).map(([text]) => text);
  const toggle = event => {
    const opener = event.currentTarget, line = opener.closest("tr"), isOpen = opener.getAttribute("aria-expanded") === "true";
    if (isOpen) line.nextElementSibling.remove();
    else line.after(el("tr", { class: "opened" }, el("td", { colspan: 4 }, otherStack(stack), ...paths.map(heldPath),
      more ? el("p", { class: "faint", text: `And in ${counted(more, "more way")}.` }) : null)));
    opener.setAttribute("aria-expanded", isOpen ? "false" : "true");
  };
  return el("tr", { "data-kind": kind },
    el("td", { class: "site" },
      el("button", { type: "button", class: "opener", "aria-expanded": "false", onclick: toggle },
        el("span", { class: "function", text: shortName(name, NAME_ROOM), title: name }), stack.length ? el("span", { class: "place", text: stack[0][1] }) : null),
      callersLine(callers)),
    numberCell(bytesText(bytes), most ? bytes / most : 0), numberCell(countText(blocks)), numberCell(holds.blocks ? bytesText(holds.bytes) : "–"));
}

function heldSection({ kind, name, blocks, bytes, sites, more }) {
  if (!sites.length) return null;
  const words = HELD_WORDS[kind], most = sites.reduce((best, site) => Math.max(best, site.bytes), 0);
  const matches = matcher(state.query);
  const texts = ({ stack, paths }) => [...stack.flat(), ...paths.flatMap(({ root, steps }) => [root, ...steps.map(step => step ? step[0] : "")])];
  const isFound = site => !matches || texts(site).some(matches);
  const found = sites.filter(isFound);
  const names = ["Bytes", "Blocks", words.holds[0].toUpperCase() + words.holds.slice(1)];
  const head = el("tr", {}, el("th", { scope: "col", class: "site", text: "Site" }), ...names.map(text => el("th", { scope: "col", class: "number", text })));
  return el("div", { class: "other", id: `held-${kind}` },
    el("h3", { text: name[0].toUpperCase() + name.slice(1) }),
    el("p", { class: "faint", text: `${words.about} ${bytesText(bytes)} in ${counted(blocks, "block")}.` }),
    found.length ? el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...found.map(site => heldRow(site, { kind, most })))))
      : el("p", { class: "faint", text: `No site is found by “${state.query}”.` }),
    more ? el("p", { class: "faint", text: `And ${counted(more, "more site")}, with fewer bytes: grapnel leaks${kind === "reachable" ? " --reachable" : ""} --top 0 shows them.` }) : null);
}

function drawHeld() {
  const { leaks } = state.model.facts;
  byId("held").hidden = !leaks;
  byId("leaks-reach").hidden = Boolean(leaks);
  if (!leaks) return;
  const moment = leaks.at_exit ? "at the process's end" : `at ${durationText(leaks.time_ns)}, while the process ran`;
  const empty = leaks.kinds.slice(0, 3).every(({ sites }) => !sites.length);
  byId("held").replaceChildren(...[
    el("p", { class: "faint", text: `Leaks were looked for ${moment}; it stood still for ${durationText(leaks.stopped_ns)}.` }),
    ...leaks.notes.map(text => el("p", { class: "faint", text: `Note: ${text}.` })),
    empty ? el("p", { class: "faint", text: "Nothing was lost." }) : null,
    ...leaks.kinds.map(heldSection),
    el("h3", { text: "All that was not freed" }),
  ].filter(Boolean));
}
