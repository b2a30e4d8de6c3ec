// Opens a file with Valgrind's own viewer, dh_view.js, and prints what it makes of it as JSON:
//
//     node dh_view.js /usr/libexec/valgrind/dh_view.js dhat.out
//
// The page's elements are stand-ins that keep their children and do nothing else.
"use strict";
const fs = require("fs");
const vm = require("vm");

class Element {
  constructor(tag) {
    this.tag = tag;
    this.childNodes = [];
    this.classList = { add() {}, toggle() {}, contains: () => false };
  }
  appendChild(child) {
    child.parentNode = this;
    this.childNodes.push(child);
    return child;
  }
  replaceChild(added, gone) {
    added.parentNode = this;
    this.childNodes[this.childNodes.indexOf(gone)] = added;
  }
  cloneNode() {
    return new Element(this.tag);
  }
  get selectedIndex() {
    return Math.max(0, this.childNodes.findIndex((option) => option.selected));
  }
  get text() {
    return (this.textContent || "") + this.childNodes.map((child) => child.text).join("");
  }
}

const [viewer, file] = process.argv.slice(2);
const text = (content) => Object.assign(new Element("#text"), { textContent: content });
const document = {
  body: new Element("body"),
  location: { search: "" },
  createElement: (tag) => new Element(tag),
  createTextNode: text,
};
const context = vm.createContext({ document, performance, URLSearchParams, Intl, data: fs.readFileSync(file, "utf8") });
vm.runInContext(fs.readFileSync(viewer, "utf8"), context);
const shown = vm.runInContext(
  `onLoad();
   gData = JSON.parse(data);
   gFilename = "file";
   buildTree();
   displayTree();
   const { _totalBytes, _totalBlocks, _totalLifetimes, _atTGmaxBytes, _atTGmaxBlocks, _atTEndBytes, _atTEndBlocks } = gRoot;
   ({ _totalBytes, _totalBlocks, _totalLifetimes, _atTGmaxBytes, _atTGmaxBlocks, _atTEndBytes, _atTEndBlocks,
      text: gMainDiv.text })`,
  context,
);
console.log(JSON.stringify(shown));
