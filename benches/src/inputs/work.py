"""Parses, counts and serialises generated data: dictionaries, lists, strings, closures, a small class."""
import collections
import json
import re


class Node:
    __slots__ = ("key", "left", "right")

    def __init__(self, key):
        self.key, self.left, self.right = key, None, None

    def add(self, key):
        side = "left" if key < self.key else "right"
        child = getattr(self, side)
        if child is None:
            setattr(self, side, Node(key))
        else:
            child.add(key)


rows = [{"n": i, "text": str(i * 7919 % 10007) * (i % 5), "list": list(range(i % 12))} for i in range(25000)]
text = json.dumps(rows)
assert json.loads(text) == rows
words = collections.Counter(re.findall(r"[0-9]{2,4}", text))
tree = Node(5000)
for row in rows:
    tree.add(row["n"] * 7919 % 10007)
joined = ",".join(sorted(f"{word}:{count}" for word, count in words.items()))
print(len(text), len(words), len(joined))
