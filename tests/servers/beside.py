"""`heaptrack -p` beside grapnel, each on processes of its own, in turn."""

import contextlib, json, os, pathlib, shutil, signal, statistics, subprocess, sys, tempfile, time
from .crowd import Crowd
from .kinds import Threads
from .machine import GRAPNEL, interruptible

WHO = ["nobody", "grapnel", "heaptrack"]
SECONDS = 5


@contextlib.contextmanager
def recorded_by(who, pid):
    """Has somebody record it: from here on when it is being recorded, and no more behind."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
                   "start_new_session": True, "preexec_fn": interruptible}
        commands = {"grapnel": [GRAPNEL, "attach", "-q", "-o", f"{directory}/trace", str(pid)],
                    # By its own sh, where that is dash, it would end at the signal without taking itself out.
                    "heaptrack": ["bash", shutil.which("heaptrack"), "-r", "-o", f"{directory}/trace", "-p", str(pid)]}
        marks = {"grapnel": "memfd:grapnel", "heaptrack": "libheaptrack"}
        child = subprocess.Popen(commands[who], **options) if who in commands else None
        maps, deadline = pathlib.Path(f"/proc/{pid}/maps"), time.monotonic() + 60
        while child and marks[who] not in maps.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        # Until all is in.
        time.sleep(1)
        yield
        if child:
            os.killpg(child.pid, signal.SIGINT)
            child.wait(60)


def of_server(times):
    """The longest answer of the C++ server while somebody attaches, records and leaves."""
    found, failed = {who: [] for who in WHO}, {who: 0 for who in WHO}
    for _ in range(times):
        for who in WHO:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                server = Threads(directory)
                try:
                    probe = server.begin()
                    time.sleep(2)
                    mark = len(probe.times)
                    with recorded_by(who, server.server.pid):
                        time.sleep(SECONDS)
                    time.sleep(0.5)
                    found[who].append(probe.since(mark))
                    probe.over = True
                    probe.join(60)
                    failed[who] += len(server.loaded()[1]) + len(probe.wrong)
                finally:
                    server.stop()
    print("\n| who attaches to the C++ server | longest answer: median and range, ms | requests that failed |\n|---|---|---|")
    for who, hiccups in found.items():
        print(f"| {who} | {spread(hiccups, 0)} | {failed[who]} |", flush=True)


def of_crowd(times):
    """How long a thread of the crowd is kept from running, and what its allocations cost before, meanwhile and afterwards. Returns
    how many processes ended that heaptrack had nothing to do with."""
    rows, ended = {who: [] for who in WHO}, {who: 0 for who in WHO}
    for _ in range(times):
        for who in WHO:
            crowd = Crowd()
            try:
                before, mappings = crowd.pace(), crowd.facts()[0]
                crowd.ask()
                with recorded_by(who, crowd.child.pid):
                    entering = crowd.ask()["longest_ms"]
                    meanwhile = crowd.pace()
                    crowd.ask()
                time.sleep(1)
                leaving = crowd.ask()["longest_ms"]
                rows[who].append([entering, leaving, before, meanwhile, crowd.pace(), crowd.facts()[0] - mappings])
                if not crowd.end():
                    print(f"{who}: not all is well in the crowd", flush=True)
            # The process is gone in the midst of it: nothing comes back from it, and nothing is there.
            except (BrokenPipeError, FileNotFoundError, json.JSONDecodeError) as error:
                ended[who] += 1
                print(f"{who}: the crowd ended by {crowd.child.wait(10)}: {error!r}", file=sys.stderr, flush=True)
            finally:
                crowd.kill()
    print("\n| who attaches to the crowd | a thread was kept from running going in: median and range, ms | going out | a block got and "
          "given back before, ns of processor time | meanwhile | afterwards | mappings more afterwards | processes that ended |\n"
          "|---|---|---|---|---|---|---|---|")
    for who, values in rows.items():
        columns = [spread(column, places) for column, places in zip(zip(*values), [0, 0, 1, 1, 1, 0])]
        print(f"| {who} |", " | ".join(columns or ["-"] * 6), f"| {ended[who]} |", flush=True)
    return ended["nobody"] + ended["grapnel"]


def spread(values, places):
    return f"{statistics.median(values):.{places}f} ({min(values):.{places}f} to {max(values):.{places}f})"
