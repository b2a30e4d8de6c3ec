// Elements. What comes from a recording gets onto the page here, and only ever as text.

const byId = id => document.getElementById(id);

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

// An element with attributes, listeners ("onclick") and children.
function el(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

// The same for drawings.
function svg(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

// Calls a function once before the next frame is drawn, however often it is asked for.
function once(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; work(); });
  };
}

const tip = {
  // Shows lines beside a point or below an element; the first line is the title.
  show(lines, x, y) {
    const box = byId("tip");
    box.replaceChildren(...lines.filter(Boolean).map((line, at) => el("div", { class: at ? "" : "tip-title", text: line })));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = Math.min(x + 14, innerWidth - width - 8);
    const top = y + 18 + height > innerHeight ? y - height - 12 : y + 18;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${Math.max(8, top)}px`;
  },
  hide() { byId("tip").hidden = true; },
};
