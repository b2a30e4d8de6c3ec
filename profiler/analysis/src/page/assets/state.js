// What the reader has chosen, and who wants to know.

const state = {
  model: null,
  range: [0, 0],
  measure: "peak",
  view: "flame",
  query: "",
  // Keys of functions from the root of the view to the one that fills it.
  zoom: [],
  listeners: [],
};

const isWhole = () => state.range[0] === state.model.buckets.first && state.range[1] === state.model.buckets.count;
const wholeRange = () => [state.model.buckets.first, state.model.buckets.count];

const tell = once(() => state.listeners.forEach(listener => listener()));

function choose(changes) {
  Object.assign(state, changes);
  tell();
}

// A range that lies within the recording and is at least one bucket long.
function chooseRange(from, to) {
  const { first, count } = state.model.buckets;
  if (count <= first) return;
  from = Math.max(first, Math.min(from, count - 1));
  to = Math.max(from + 1, Math.min(to, count));
  if (from !== state.range[0] || to !== state.range[1]) choose({ range: [from, to] });
}

// What a search finds: a regular expression between slashes, else the letters whatever their case.
function matcher(query) {
  if (!query) return null;
  const pattern = /^\/(.+)\/$/.exec(query);
  if (pattern) {
    try {
      const expression = new RegExp(pattern[1], "i");
      return text => expression.test(text);
    } catch {
      return () => false;
    }
  }
  const small = query.toLowerCase();
  return text => text.toLowerCase().includes(small);
}

// For each frame whether its function, file or module is found; null when nothing is searched for.
function foundFrames(model, query) {
  const matches = matcher(query);
  if (!matches) return null;
  const texts = model.texts.map(text => matches(text) ? 1 : 0);
  const { frames } = model;
  const found = new Uint8Array(frames.count);
  for (let at = 0; at < frames.count; at++) {
    found[at] = texts[frames.func[at]] || texts[frames.file[at]] || matches(moduleText(model, at))
      || (!frames.func[at] && matches(functionText(model, at))) ? 1 : 0;
  }
  return found;
}

// For each group whether any frame of its stack is found.
function foundGroups(model, found) {
  const { nodes, groups } = model;
  const through = new Uint8Array(nodes.count);
  for (let node = 1; node < nodes.count; node++) {
    through[node] = found[nodes.frame[node]] | through[nodes.parent[node]];
  }
  return groups.node.map(node => through[node]);
}
