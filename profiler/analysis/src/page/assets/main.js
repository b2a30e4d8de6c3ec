// Brings the page to life.

const VIEWS = ["flame", "icicle", "bottom", "sites", "leaks", "sizes", "others", "compared", "changes"];
const GRAPHS = ["flame", "icicle", "bottom", "compared"];
// Two recordings are compared only if there are two, and not all have memory of other kinds.
const has = view => view === "compared" || view === "changes" ? Boolean(compare.base) : view !== "others" || state.model.facts.others.length > 0;
const views = () => VIEWS.filter(has);
const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
  byId("theme").dataset.choice = theme;
  // A page that was opened as a file may not be allowed to remember.
  try { localStorage.setItem("grapnel-theme", theme); } catch { /* then it doesn't */ }
}

function savedTheme() {
  try {
    const theme = localStorage.getItem("grapnel-theme");
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

function fact(name, value, rest, title, was) {
  return el("div", { class: "fact", title }, el("dt", { text: name }), el("dd", { text: value }), rest ? el("dd", { class: "rest", text: rest }) : null, was);
}

function drawHeader({ facts }) {
  const { totals, sampling } = facts;
  document.title = `${facts.program} · Grapnel`;
  byId("program").textContent = facts.program;
  byId("command").textContent = facts.command;
  byId("process").textContent = [`process ${facts.pid}`, counted(facts.threads, "thread"), facts.exit, durationText(totals.duration_ns),
    `from ${facts.started}`, `recorded by grapnel ${facts.recorder} on ${facts.machine}`].join(" · ");
  const before = compare.base?.facts.totals;
  const given = totals.allocations + totals.reallocations;
  const error = bytes => sampling && bytes ? `± ${bytesText(bytes)}, ` : "";
  byId("facts").replaceChildren(
    fact("Peak", bytesText(totals.peak_bytes), `${error(sampling?.peak_bytes_error)}at ${durationText(totals.peak_time_ns)}`, `${countText(totals.peak_bytes)} bytes`,
      compare.was(totals.peak_bytes, before?.peak_bytes, bytesText)),
    fact("Live at end", bytesText(totals.live_bytes), `${error(sampling?.live_bytes_error)}${counted(totals.live_allocations, "block")}`, `${countText(totals.live_bytes)} bytes`,
      compare.was(totals.live_bytes, before?.live_bytes, bytesText)),
    fact("Allocated", bytesText(totals.allocated_bytes), `${error(sampling?.allocated_bytes_error)}mean ${bytesText(given ? Math.round(totals.allocated_bytes / given) : 0)}`, `${countText(totals.allocated_bytes)} bytes`,
      compare.was(totals.allocated_bytes, before?.allocated_bytes, bytesText)),
    fact("Allocations", countText(totals.allocations), `and ${counted(totals.reallocations, "reallocation")}`, null,
      compare.was(totals.allocations, before?.allocations, countText)),
    sampling ? fact("Sample", countText(sampling.recorded), `recorded, one in ${bytesText(sampling.mean_bytes)}`)
      : fact("Temporary", countText(totals.temporary_allocations), `${shareText(totals.temporary_allocations, given)} of all`, "freed before their thread allocated again"),
    fact("Sites", countText(totals.sites), counted(totals.events, "event")));
}

function drawNotes({ facts }) {
  const notes = [...facts.notes], { folded } = facts;
  if (facts.sampling) notes.unshift("Only a sample of the allocations was recorded: all figures are estimates, and which blocks were temporary isn't known.");
  if (facts.mismatches) notes.push(`${counted(facts.mismatches, "block")} were given back in another way than they were got: grapnel report shows the stacks.`);
  if (folded.stacks) {
    notes.push(`${counted(folded.stacks, "small stack")} ${folded.stacks === 1 ? "is" : "are"} folded into their callers, to keep this page small: none has more than ${(folded.threshold * 100).toPrecision(1)}% of everything, at any time. ${isLive() ? "Choose a range and look closer to see more of them." : "grapnel view shows them."}`);
  }
  byId("notes").replaceChildren(...notes.map(text => el("li", { text })));
  byId("notes-box").hidden = !notes.length;
  byId("notes-box").open = notes.length < 4;
  byId("notes-title").textContent = counted(notes.length, "note");
}

function drawLegend({ colours }) {
  byId("legend").replaceChildren(...colours.legend.map(({ colour, name }) =>
    el("li", {}, el("span", { class: `swatch ${colour}`, "aria-hidden": "true" }), el("span", { text: name }))));
}

function drawView() {
  const { model, view } = state;
  for (const searched of compare.base ? [model, compare.base] : [model]) {
    searched.foundFrames = foundFrames(searched, state.query);
    searched.foundGroups = searched.foundFrames && foundGroups(searched, searched.foundFrames);
  }
  const isGraph = GRAPHS.includes(view), hasMeasure = isGraph || view === "changes";
  for (const name of VIEWS) {
    const tab = byId(`tab-${name}`), current = name === view;
    tab.setAttribute("aria-selected", current ? "true" : "false");
    tab.tabIndex = current ? 0 : -1;
  }
  byId("panel-flame").setAttribute("aria-labelledby", `tab-${isGraph ? view : "flame"}`);
  byId("panel-flame").hidden = !isGraph;
  for (const name of VIEWS.filter(name => !GRAPHS.includes(name))) byId(`panel-${name}`).hidden = view !== name;
  byId("measures").hidden = !hasMeasure;
  byId("search-box").hidden = view === "sizes" || view === "others";
  const { name, long } = MEASURES[state.measure];
  byId("measure-words").textContent = hasMeasure ? `${name}: ${MEASURES[state.measure].unit} ${long}` : "";
  if (view === "compared") byId("legend").replaceChildren(...compare.legend());
  else drawLegend(model);
  if (isGraph) flame.draw();
  else if (view === "sites") drawSites();
  else if (view === "leaks") {
    drawHeld();
    drawLeaks();
  }
  else if (view === "others") drawOthers();
  else if (view === "changes") drawChanges();
  else drawSizes();
}

function listenToTabs() {
  byId("tabs").addEventListener("click", event => {
    const tab = event.target.closest("[role=tab]");
    if (tab) chooseView(tab.id.slice(4));
  });
  byId("tabs").addEventListener("keydown", event => {
    const all = views(), by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], at = all.indexOf(state.view);
    const next = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : by && (at + by + all.length) % all.length;
    if (next === undefined) return;
    event.preventDefault();
    chooseView(all[next]);
    byId(`tab-${all[next]}`).focus();
  });
}

function chooseView(view) {
  // A path from the root is none from the leaves.
  const kind = name => name === "bottom" || name === "compared" ? name : "";
  const turned = kind(view) !== kind(state.view);
  tip.hide();
  choose(turned ? { view, zoom: [] } : { view });
}

function listenToKeys() {
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input[type=search], dialog")) return;
    const number = Number(event.key);
    if (event.key === "/") byId("search").focus();
    else if (event.key === "?") byId("help").showModal();
    else if (number >= 1 && number <= views().length) chooseView(views()[number - 1]);
    else if (event.key === "Escape" && !event.target.closest("#boxes") && (state.zoom.length || state.query)) {
      byId("search").value = "";
      choose({ zoom: [], query: "" });
    } else return;
    event.preventDefault();
  });
  byId("search").addEventListener("input", event => choose({ query: event.target.value.trim() }));
  byId("search").addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    event.target.value = "";
    choose({ query: "" });
    event.target.blur();
  });
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(byId("theme").dataset.choice) + 1) % THEMES.length]));
  byId("measures").addEventListener("change", event => choose({ measure: event.target.value }));
}

// Shows a model in place of the one before, whole.
function take(model) {
  const before = state.model;
  Object.assign(state, { model, range: [model.buckets.first, model.buckets.count] });
  model.colours ||= moduleColours(model, before?.colours);
  drawNotes(model);
  drawLegend(model);
}

function show(model) {
  take(model);
  drawHeader(model);
  byId("measure-temporary").closest("label").hidden = Boolean(model.facts.sampling);
  if (model.facts.sampling) sitesTable.columns = sitesTable.columns.filter(column => column.key !== "temporary");
  for (const name of VIEWS) byId(`tab-${name}`).hidden = !has(name);
  if (compare.base) compare.base.colours = moduleColours(compare.base, model.colours);
  byId("base").hidden = !compare.base;
  if (compare.base) byId("base").textContent = `Compared with a recording of ${compare.base.facts.command}, process ${compare.base.facts.pid}, from ${compare.base.facts.started} (dashed, stretched to the same length)`;
  byId("loading").hidden = true;
  byId("page").hidden = false;
  timeline.listen();
  listenToTabs();
  flame.listen();
  closer.listen();
  listenToKeys();
  state.listeners.push(() => timeline.mark(), () => closer.mark(), drawView);
  timeline.draw();
  drawView();
}

async function start() {
  setTheme(savedTheme());
  const read = async data => {
    const bytes = fromBase64(data.textContent.trim());
    data.remove();
    return readModel(await inflate(bytes));
  };
  const [now, before] = document.querySelectorAll("script.recording");
  if (before) compare.base = await read(before);
  show(await read(now));
  document.documentElement.dataset.ready = Math.max(1, Math.round(performance.now()));
}

start().catch(error => {
  byId("loading").textContent = `This page can't be shown: ${error.message}. Make it again with grapnel report --html.`;
  document.documentElement.dataset.failed = error.message;
});
