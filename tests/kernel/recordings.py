"""`grapnel run` on Linux for arm64, for programs of that and of 32-bit Arm: they do as they do without, and what is said of them is so.
Looks for leaks stop the program by ptrace, and filters for system calls are the kernel's: both are tried nowhere else on this machine."""

import collections, json, os, pathlib, re, subprocess, tempfile, time
from machine import FOLDER, GRAPNEL, functions, main, report, run, until

# The width of the programs' words, as ELF's header has it.
BITS = {1: 32, 2: 64}[(FOLDER / "lost").read_bytes()[4]]


def recorded(directory, program, *options, arguments=(), status=0):
    """Records a program, after it ran without: its trace, and what grapnel said."""
    trace = pathlib.Path(directory) / "t.grapnel"
    command = (FOLDER / program, *arguments)
    bare = run(*command, status=status, cwd=directory)
    out, said = run(GRAPNEL, "run", *options, "-o", trace, "--", *command, status=status, cwd=directory)
    assert out == bare[0], f"{program}: {out} instead of {bare[0]}"
    return trace, said


def totals_are_plausible(program, status=0):
    with tempfile.TemporaryDirectory() as directory:
        trace, _ = recorded(directory, program, status=status)
        totals = report(trace)["totals"]
        assert totals["lost_events"] == 0 and totals["allocations"] > 10, totals
        assert totals["allocations"] - totals["frees"] == totals["live_allocations"], totals
        return f"{totals['allocations']} allocations, {totals['frees']} frees"


def threads():
    return totals_are_plausible("threads")


def every_function():
    return totals_are_plausible("every_function")


def python():
    with tempfile.TemporaryDirectory() as directory:
        trace = pathlib.Path(directory) / "t.grapnel"
        script = "print(sum(len(str(n)) for n in [n * n for n in range(3000)]))"
        python = ("/usr/bin/python3", "-S", "-c", script)
        environment = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}
        environment = os.environ | environment
        bare = run(*python, env=environment)[0]
        out, _ = run(GRAPNEL, "run", "-o", trace, "--", *python, env=environment)
        assert out == bare, out
        totals = report(trace)["totals"]
        assert totals["lost_events"] == 0 and totals["allocations"] > 10000, totals
        return f"{totals['allocations']} allocations"


def marks_of(source):
    """The lines of a source with marks: the kind, and what it is called."""
    marks = {}
    for number, line in enumerate((FOLDER / source).read_text().splitlines(), 1):
        for kind in ("LOST", "HELD"):
            if f"/* {kind} " in line:
                marks[number] = (kind, line.split(f"/* {kind} ")[1].split(" */")[0])
    return marks


def judged(found, source):
    """What is found of the lines with marks: kinds of blocks by mark, and what holds them by its name. All is as the marks say."""
    marks = marks_of(source)
    kinds, roots = collections.defaultdict(set), collections.defaultdict(set)
    for site in found["sites"]:
        innermost = site["frames"][0]
        if (innermost.get("file") or "").endswith(source) and innermost["line"] in marks:
            mark = marks[innermost["line"]]
            kinds[mark].add(site["kind"])
            roots[mark[1]] |= {(path["root"]["kind"], path["root"].get("name")) for path in site.get("paths", [])}
    assert set(kinds) == set(marks.values()), f"{kinds} of {marks}"
    for (mark, name), said in kinds.items():
        # The uppermost byte is no tag where an address has four.
        is_lost = mark == "LOST" or name == "tagged" and BITS == 32
        wanted = {"direct", "indirect"} if is_lost else {"reachable"}
        assert said <= wanted, f"{mark} {name}: {said}"
    return kinds, roots


def looked_through(directory, program, source, *arguments, status=0):
    """What a look at a program's end says of the lines with marks in its source, and all that it says."""
    trace, _ = recorded(directory, program, "--leaks", arguments=arguments, status=status)
    found = json.loads(run(GRAPNEL, "leaks", "--format", "json", "--reachable", trace)[0])
    assert found["scan"]["at_exit"] is True and found["scan"]["notes"] == [], found["scan"]
    kinds, roots = judged(found, source)
    live = sum(found["totals"][kind]["blocks"] for kind in ("direct", "indirect", "possible", "reachable"))
    assert live == report(trace)["totals"]["live_allocations"], found["totals"]
    return kinds, roots, found


# What holds blocks of `lost`: kinds and name of the root. The upper end of a stack may be libc's, which lies between that and the
# thread's variables, and isn't told from them.
HELD = {
    "global": ("global", "global"),
    "table": ("global", "table"),
    "list": ("global", "list"),
    "inside": ("global", "inside"),
    "mapped": ("mapping", None),
    "local": ("thread-local", "lost"),
    "stack": ("stack or thread-local", "lost"),
    "register": ("register", {32: "r8", 64: "x21"}[BITS]),
}


def are_right(roots):
    for name, (kinds, called) in HELD.items():
        wanted = {(kind, called) for kind in kinds.split(" or ")}
        assert roots[name] and roots[name] <= wanted, f"{name}: held by {roots[name]}, not {wanted}"


def leaks():
    """What `lost` has lost, and what it holds: marks in its source say which."""
    with tempfile.TemporaryDirectory() as directory:
        kinds, roots, found = looked_through(directory, "lost", "lost.c", status=7)
        are_right(roots)
        direct, indirect = (found["totals"][kind] for kind in ("direct", "indirect"))
        # One alone, and what leads a chain, a circle and a tree.
        tagged = 1 if BITS == 32 else 0
        assert (direct["blocks"], indirect["blocks"]) == (4 + tagged, 49 + 1 + 4), found["totals"]
        return f"{len(kinds)} kinds of blocks, {direct['bytes']} bytes lost directly and {indirect['bytes']} indirectly"


def leaks_of_variables():
    """Variables of threads hold, those of the first, of another and of a library, and what libc keeps of one that has ended is not lost."""
    with tempfile.TemporaryDirectory() as directory:
        library = FOLDER / "liblost_locals_library.so"
        kinds, _, found = looked_through(directory, "lost_locals", "lost_locals.c", library)
        assert found["totals"]["direct"] == {"blocks": 1, "bytes": 2001}, found
        return f"{len(kinds)} kinds of blocks"


def leaks_of_stacks():
    """Stacks of the program's own making hold, and what became read-only."""
    with tempfile.TemporaryDirectory() as directory:
        kinds, _, _ = looked_through(directory, "lost_stacks", "lost_stacks.c")
        return f"{len(kinds)} kinds of blocks"


def leaks_of_objects():
    """Objects of C++ that nothing leads to but what the compiler makes of pointers: to a second base, behind the count of an array."""
    with tempfile.TemporaryDirectory() as directory:
        trace, _ = recorded(directory, "lost_objects", "--leaks", "--interior", "known")
        found = json.loads(run(GRAPNEL, "leaks", "--format", "json", "--reachable", trace)[0])
        sites = collections.Counter()
        for site in found["sites"]:
            names = " ".join(name or "" for name in functions(site))
            for function, kinds in (("lose()", {"direct", "indirect"}), ("hold()", {"reachable"})):
                if function in names:
                    assert site["kind"] in kinds, f"{site['kind']}: {names}"
                    sites[function] += 1
        assert sites["lose()"] > 10 and sites["hold()"] > 8, sites
        return f"{sites['lose()']} sites lost, {sites['hold()']} held"


class Recorded:
    """A program that is recorded, and goes on."""

    def __init__(self, directory, program, *arguments):
        trace = pathlib.Path(directory) / "t.grapnel"
        self.process = subprocess.Popen([GRAPNEL, "run", "-q", "-o", trace, "--", FOLDER / program, *arguments],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory)
        self.pid = until(f"{program} runs", lambda: self.child(program))

    def child(self, program):
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                # `PID (NAME) STATE PARENT ...`
                pid, name, rest = re.fullmatch(r"(\d+) \((.*)\) (.*)", stat.read_text().strip()).groups()
            except OSError:
                continue
            if name == program and int(rest.split()[1]) == self.process.pid:
                return int(pid)
        return None

    def leaks(self):
        def looked():
            out, said = run(GRAPNEL, "leaks", "--format", "json", "--reachable", str(self.pid), status=None)
            # So it is until the agent is at work.
            assert out or "is not recorded" in said, said
            return out

        return json.loads(until("it is recorded", looked))


def leaks_of_a_process():
    """The same of a program that goes on, twice, and it ends as it does without."""
    with tempfile.TemporaryDirectory() as directory:
        lost = Recorded(directory, "lost", "wait")
        assert lost.process.stdout.readline() == "done\n"
        for _ in range(2):
            found = lost.leaks()
            assert found["scan"]["at_exit"] is False and found["scan"]["notes"] == [], found["scan"]
            kinds, roots = judged(found, "lost.c")
            are_right(roots)
        lost.process.stdin.close()
        assert lost.process.wait(timeout=120) == 7
        return f"{len(kinds)} kinds of blocks"


def waits_end_as_if_nobody_had_looked():
    """Looks stop threads in waits of every kind: none of them is told."""
    with tempfile.TemporaryDirectory() as directory:
        milliseconds = "60000"
        bare = subprocess.Popen([FOLDER / "waits", milliseconds], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        looked, looks, last = Recorded(directory, "waits", milliseconds), 0, time.monotonic() + 25
        while time.monotonic() < last:
            looked.leaks()
            looks += 1
        assert looked.process.poll() is None and bare.poll() is None, "it has ended"
        bare, out = (sorted(process.communicate(timeout=300)[0].splitlines()) for process in (bare, looked.process))
        assert out == bare, f"{set(out) ^ set(bare)}"
        return f"{len(bare)} waits, {looks} looks"


tests = [threads, every_function, leaks, leaks_of_variables, leaks_of_stacks, leaks_of_objects, leaks_of_a_process,
         waits_end_as_if_nobody_had_looked]
if BITS == 64:
    # That of the machine itself.
    tests.append(python)
main(*tests)
