// Numbers as people read them; the same words as in the report as text.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function bytesText(bytes) {
  if (bytes < 0) return "−" + bytesText(-bytes);
  if (bytes < 1024) return `${bytes} B`;
  let value = bytes / 1024, unit = 0;
  while (value >= 1023.95 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit++;
  }
  return `${value.toFixed(1)} ${UNITS[unit]}`;
}

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

function countText(count) {
  return count < 0 ? "−" + GROUPED.format(-count) : GROUPED.format(count);
}

function counted(count, thing) {
  return `${countText(count)} ${thing}${count === 1 ? "" : "s"}`;
}

function durationText(ns) {
  if (ns === 0) return "0 s";
  const seconds = Math.floor(ns / 1e9);
  if (seconds === 0) return ns < 1e6 ? `${(ns / 1e3).toFixed(0)} µs` : `${(ns / 1e6).toFixed(ns < 1e7 ? 2 : 1)} ms`;
  if (seconds < 60) return `${(ns / 1e9).toFixed(2)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
}

function shareText(part, whole) {
  if (!whole) return "0.0%";
  const percent = 100 * part / whole;
  return percent !== 0 && Math.abs(percent) < 0.05 ? "<0.1%" : `${percent.toFixed(1)}%`;
}

// The last part of a path.
function baseName(path) {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}
