"""A process with 100 threads and 1,000 mappings: how long it stands still, what a thousand attaches leave, and its speed afterwards."""

import json, os, pathlib, re, statistics, subprocess, tempfile, time
from .machine import attach_for, compiled, interruptible, quantile
from .rounds import State

THREADS, MAPPINGS = 100, 1000
# More would be growth: pages are counted that come and go with the threads' work.
GROWTH = 256 << 10


class Crowd:
    """tests/programs/crowd.c"""

    def __init__(self):
        self.pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        program = compiled("programs/crowd.c")
        self.child = subprocess.Popen([program, str(THREADS), str(MAPPINGS)], preexec_fn=interruptible, **self.pipes)
        self.child.stdout.readline()
        # Until each thread has what it keeps.
        time.sleep(2)
        self.ask()

    def ask(self):
        """What an allocation costs, and the longest that it was kept from running since it was asked last."""
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def pace(self):
        return statistics.median(self.ask()["pair_ns"] for _ in range(5))

    def facts(self):
        """Mappings, descriptors, threads, and bytes in memory."""
        proc = pathlib.Path(f"/proc/{self.child.pid}")
        rss = int(re.search(r"Rss:\s+(\d+)", (proc / "smaps_rollup").read_text())[1]) << 10
        return [len((proc / "maps").read_text().splitlines()), len(os.listdir(proc / "fd")), len(os.listdir(proc / "task")), rss]

    def end(self):
        """Whether all was well."""
        return self.child.communicate(timeout=60)[0].endswith("well\n") and self.child.returncode == 0

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def endured(rounds):
    """Attaches so many times to one process: lines of a table, and what is wrong."""
    crowd, faults, stood_in, stood_out, longest = Crowd(), [], [], [], []
    try:
        alone = []
        for _ in range(20):
            time.sleep(0.2)
            alone.append(crowd.ask()["longest_ms"])
        pace, state = crowd.pace(), State(crowd.child.pid, ["fd", "task"])
        facts = [crowd.facts()]
        with tempfile.TemporaryDirectory() as directory:
            for n in range(rounds):
                crowd.ask()
                said, stood = attach_for(0.02, crowd.child.pid, f"{directory}/trace.grapnel")
                longest.append(crowd.ask()["longest_ms"])
                if stood:
                    stood_in.append(stood[0])
                    stood_out.append(stood[1])
                else:
                    faults.append(f"round {n}: {said}")
                if n in (0, rounds - 1):
                    facts.append(crowd.facts())
        if State(crowd.child.pid, ["fd", "task"]) != state:
            faults.append("code, descriptors or threads are not as they were")
        before, first, last = facts
        if not before[:3] == first[:3] == last[:3] or last[3] > first[3] + GROWTH:
            faults.append(f"it grew: {facts}")
        if statistics.median(stood_in) >= 50:
            faults.append(f"it stood still for {statistics.median(stood_in)} ms")
        after = crowd.pace()
        if not crowd.end():
            faults.append("not all is well in it")
    finally:
        crowd.kill()
    most = lambda times: f"{statistics.median(times):.1f}, {quantile(times, 0.95):.1f}, {max(times):.1f}"
    shown = lambda facts: ", ".join(f"{fact:,}" for fact in [*facts[:3], facts[3] >> 10])
    lines = [("attached to, and detached from", f"{rounds:,} times, {len(faults)} faults"),
             ("stood still going in: median, 95 of 100, most, ms", most(stood_in)),
             ("stood still going out", most(stood_out)),
             ("a thread was kept from running, as it saw itself, in a round", most(longest)),
             ("the same in 0.2 s without anybody", most(alone)),
             ("mappings, descriptors, threads, KiB in memory before", shown(before)),
             ("after the first time", shown(first)), ("after the last", shown(last)),
             ("processor time for a block got and given back, before and afterwards, ns", f"{pace:.1f}, {after:.1f}")]
    return lines, faults
