"""Attaching and detaching again and again, under load, with a look at what must be as it was."""

import hashlib, json, os, pathlib, re, statistics, subprocess, tempfile, time
from .machine import GRAPNEL, attach_for, quantile


class State:
    """What must be as it was: code, descriptors, threads, and that nothing of the agent is mapped."""

    def __init__(self, pid, lists):
        proc = pathlib.Path(f"/proc/{pid}")
        digest, agent = hashlib.blake2b(), False
        with open(proc / "mem", "rb", 0) as memory:
            for line in (proc / "maps").read_text().splitlines():
                fields = line.split(maxsplit=5)
                agent |= "memfd:grapnel" in line or "[anon:grapnel" in line
                if fields[1] == "r-xp" and len(fields) == 6 and fields[5].startswith("/"):
                    start, end = (int(text, 16) for text in fields[0].split("-"))
                    memory.seek(start)
                    left = end - start
                    while left and (part := memory.read(left)):
                        digest.update(part)
                        left -= len(part)
        self.code, self.agent = digest.hexdigest(), agent
        # Only where the server itself keeps them as they are.
        self.counts = [len(os.listdir(proc / what)) for what in lists]
        self.traced = re.search(r"TracerPid:\s+(\d+)", (proc / "status").read_text())[1]

    def __eq__(self, other):
        return vars(self) == vars(other)

HEAD = ["server", "rounds", "requests", "faults", "stood still going in: median, most, ms", "going out",
        "an answer before: median, most, ms", "longest in a round: median, 95 of 100, most", "an answer afterwards",
        "allocations in the last trace"]


def attached(kind, rounds):
    """Attaches and detaches: the row of the table, and what is not as it should be."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        server = kind(directory)
        faults, stood_in, stood_out, hiccups, events = [], [], [], [], 0
        try:
            probe = server.begin()
            time.sleep(1)
            mark = len(probe.times)
            time.sleep(5)
            alone = probe.times[mark:]
            pids = server.pids()
            before = {pid: State(pid, server.lists) for pid in pids}
            for n in range(rounds):
                pid, trace = pids[n % len(pids)], pathlib.Path(directory) / "trace.grapnel"
                mark = len(probe.times)
                said, stood = attach_for(0.2, pid, trace)
                time.sleep(0.05)
                hiccups.append(probe.since(mark))
                if stood:
                    stood_in.append(stood[0])
                    stood_out.append(stood[1])
                else:
                    faults.append(f"round {n}, process {pid}: {said}")
                now = State(pid, server.lists)
                if now != before[pid]:
                    faults.append(f"round {n}: process {pid} is not as it was: {vars(before[pid])}, {vars(now)}")
                    before[pid] = now
            report = subprocess.run([GRAPNEL, "report", "--format", "json", trace], capture_output=True, text=True).stdout
            events = json.loads(report)["totals"]["allocations"] if report else 0
            mark = len(probe.times)
            time.sleep(5)
            after = probe.times[mark:]
            probe.over = True
            probe.join(60)
            requests, wrong = server.loaded()
            faults += wrong + probe.wrong
            if server.server.poll() is not None:
                faults.append(f"the server ended with {server.server.returncode}")
        finally:
            server.stop()
    row = [kind.__doc__, rounds, f"{requests + len(probe.times):,}", len(faults),
           f"{statistics.median(stood_in):.1f}, {max(stood_in):.1f}", f"{statistics.median(stood_out):.1f}, {max(stood_out):.1f}",
           f"{statistics.median(alone):.2f}, {max(alone):.1f}",
           f"{statistics.median(hiccups):.1f}, {quantile(hiccups, 0.95):.1f}, {max(hiccups):.1f}",
           f"{statistics.median(after):.2f}, {max(after):.1f}", f"{events:,}"] if stood_in else [kind.__doc__, "failed"]
    return row, faults
