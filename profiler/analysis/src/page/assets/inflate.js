// Decompression. Browsers have it since 2023; for older ones there is a small decoder of RFC 1951.

// The lengths and distances of RFC 1951, section 3.2.5: the base of each code, and how many bits follow.
function extended(count, first, step) {
  const base = [], bits = [];
  for (let at = 0, value = first; at < count; at++) {
    const more = Math.max(0, Math.floor(at / step) - 1);
    base.push(value);
    bits.push(more);
    value += 1 << more;
  }
  return { base, bits };
}

const LENGTHS = extended(28, 3, 4);
LENGTHS.base.push(258);
LENGTHS.bits.push(0);
const DISTANCES = extended(30, 1, 2);
// The order in which the code for lengths of codes is told.
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

// A canonical Huffman code: how many codes there are of each length, and the symbols in the order of their codes.
function huffman(lengths) {
  const counts = new Uint16Array(16), next = new Uint16Array(16);
  for (const length of lengths) counts[length]++;
  counts[0] = 0;
  for (let length = 1; length < 16; length++) next[length] = next[length - 1] + counts[length - 1];
  const symbols = new Uint16Array(lengths.length);
  lengths.forEach((length, symbol) => { if (length) symbols[next[length]++] = symbol; });
  return { counts, symbols };
}

// Decodes a zlib stream without looking at its checksum.
function inflateSlowly(input) {
  let at = 2, held = 0, have = 0, out = new Uint8Array(input.length * 6), size = 0;
  const bits = count => {
    while (have < count) {
      if (at >= input.length) throw new Error("the data ends early");
      held |= input[at++] << have;
      have += 8;
    }
    const value = held & ((1 << count) - 1);
    held >>>= count;
    have -= count;
    return value;
  };
  const symbol = ({ counts, symbols }) => {
    for (let length = 1, code = 0, first = 0, index = 0; length < 16; length++) {
      code |= bits(1);
      const count = counts[length];
      if (code - count < first) return symbols[index + code - first];
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    throw new Error("the data has an unknown code");
  };
  const room = more => {
    if (size + more <= out.length) return;
    const larger = new Uint8Array(Math.max(out.length * 2, size + more));
    larger.set(out);
    out = larger;
  };
  const codes = () => {
    const literals = bits(5) + 257, distances = bits(5) + 1, told = bits(4) + 4;
    const lengths = new Array(19).fill(0);
    for (let i = 0; i < told; i++) lengths[ORDER[i]] = bits(3);
    const code = huffman(lengths), all = [];
    while (all.length < literals + distances) {
      const next = symbol(code);
      if (next < 16) all.push(next);
      else {
        const [value, times] = next === 16 ? [all[all.length - 1], 3 + bits(2)]
          : next === 17 ? [0, 3 + bits(3)] : [0, 11 + bits(7)];
        for (let i = 0; i < times; i++) all.push(value);
      }
    }
    return [huffman(all.slice(0, literals)), huffman(all.slice(literals, literals + distances))];
  };
  const fixed = () => {
    const lengths = Array.from({ length: 288 }, (_, n) => n < 144 ? 8 : n < 256 ? 9 : n < 280 ? 7 : 8);
    return [huffman(lengths), huffman(new Array(30).fill(5))];
  };
  for (let last = 0; !last;) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      have = held = 0;
      const length = input[at] | input[at + 1] << 8;
      at += 4;
      room(length);
      out.set(input.subarray(at, at + length), size);
      size += length;
      at += length;
      continue;
    }
    if (kind === 3) throw new Error("the data has an unknown kind of block");
    const [literals, distances] = kind === 1 ? fixed() : codes();
    for (;;) {
      const code = symbol(literals);
      if (code === 256) break;
      if (code < 256) {
        room(1);
        out[size++] = code;
        continue;
      }
      const length = LENGTHS.base[code - 257] + bits(LENGTHS.bits[code - 257]);
      const which = symbol(distances), distance = DISTANCES.base[which] + bits(DISTANCES.bits[which]);
      room(length);
      for (let i = 0; i < length; i++, size++) out[size] = out[size - distance];
    }
  }
  return out.subarray(0, size);
}

// The bytes behind a zlib stream.
async function inflate(bytes) {
  if (typeof DecompressionStream === "undefined") return inflateSlowly(bytes);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The bytes that a text in base64 stands for.
function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}
