// Long function names in little room, as in the report on a terminal. Whole ones are in titles and opened stacks.

const STRING = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

// "…" in place of all that stands between these brackets; null when they don't pair up.
function emptied(name, open, close) {
  let out = "", depth = 0;
  for (let at = 0; at < name.length; at++) {
    const c = name[at];
    if (c === open || c === close) {
      const before = name.slice(0, at), rest = name.slice(at + 1);
      // Some belong to a name: operator<, operator->, operator(), (anonymous namespace).
      const isLiteral = c === "(" ? before.endsWith("operator") || rest.startsWith("anonymous ")
        : c === ")" ? before.endsWith("operator(") || before.endsWith("(anonymous namespace")
          : c === ">" && before.endsWith("-") || /operator[<>=!-]{0,2}$/.test(before);
      if (c === open && !isLiteral) {
        depth++;
        if (depth === 1) out += rest.startsWith(close) ? open : `${open}…`;
      } else if (!isLiteral && --depth < 0) return null;
    }
    if (depth === 0) out += c;
  }
  return depth === 0 ? out : null;
}

// The name in so many characters, if that can be: what tells least goes first.
function shortName(name, room) {
  if (name.length <= room) return name;
  let short = name.replaceAll(STRING, "std::string");
  for (const [open, close] of ["<>", "()"]) {
    if (short.length <= room) break;
    short = emptied(short, open, close) ?? short;
  }
  return short;
}
