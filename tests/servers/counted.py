"""The same requests, counted by a library that shares nothing with grapnel, and recorded by grapnel in a process that ran already."""

import json, pathlib, struct, subprocess, tempfile, time
from .machine import GRAPNEL, Recording, compiled

# So many first: until then each thread and each connection makes what it keeps.
FIRST, REQUESTS = 100, 500
FIGURES = ["allocations", "frees", "reallocations", "allocated_bytes"]
# How often they are counted: what differs from one run to the next is the server's own.
TIMES = 3

HEAD = ["server", "requests", "counted: allocations, frees, reallocations, bytes", "recorded", "agree"]


def work(server, numbers):
    for number in numbers:
        if (right := server.work(number % 50)) is not True:
            raise RuntimeError(f"request {number}: {right}")
    # What it does behind its answer.
    time.sleep(0.5)


def counts_of(directory, pid):
    """The fields of `struct truth` in tests/truth/truth.c, of the last program that the process became."""
    path = max(directory.glob(f"{pid}.*.truth"), key=lambda path: int(path.name.split(".")[1]))
    with open(path, "rb") as file:
        fields = struct.unpack("<8s10Q", file.read(88))
    assert fields[0] == b"TRUTH 1\0" and fields[-1] == 0, fields
    return fields[2:6]


def started(kind, directory, *launcher):
    server = kind(directory, *launcher)
    server.workers = 1
    return server


def counted(kind):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        figures = pathlib.Path(directory) / "truth"
        figures.mkdir()
        # The server may be another user.
        figures.chmod(0o777)
        library = compiled("truth/truth.c", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-builtin")
        server = started(kind, directory, "env", f"LD_PRELOAD={library}", f"TRUTH_DIR={figures}")
        try:
            server.start()
            work(server, range(FIRST))
            pid = server.pids()[0]
            before = counts_of(figures, pid)
            work(server, range(FIRST, FIRST + REQUESTS))
            return tuple(after - before for after, before in zip(counts_of(figures, pid), before))
        finally:
            server.stop()


def recorded(kind):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        server = started(kind, directory)
        try:
            server.start()
            work(server, range(FIRST))
            trace = pathlib.Path(directory) / "trace.grapnel"
            recording = Recording(server.pids()[0], trace)
            work(server, range(FIRST, FIRST + REQUESTS))
            recording.end()
            report = subprocess.run([GRAPNEL, "report", "--format", "json", trace], capture_output=True, text=True, check=True)
            totals = json.loads(report.stdout)["totals"]
            if totals["lost_events"]:
                raise RuntimeError(f"{totals['lost_events']} events were lost")
            return tuple(totals[figure] for figure in FIGURES)
        finally:
            server.stop()


def compared(kind):
    """The row of the table, and what is wrong."""
    truth = [counted(kind) for _ in range(TIMES)]
    seen = recorded(kind)
    shown = lambda values: ", ".join(f"{value:,}" for value in values)
    if len(set(truth)) == 1:
        text, right, how = shown(truth[0]), seen == truth[0], "to the last byte"
    else:
        # One that doesn't do the same each time: not farther from what was counted than that is from one time to the next.
        least, most = ([pick(values) for values in zip(*truth)] for pick in (min, max))
        text = ", ".join(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in zip(least, most))
        right = all(2 * low - high <= value <= 2 * high - low for value, low, high in zip(seen, least, most))
        how = "as counts do among themselves"
    faults = [] if right else [f"counted {truth}, recorded {seen}"]
    return [kind.__doc__, REQUESTS, text, shown(seen), how if right else "NO"], faults
