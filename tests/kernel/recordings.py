"""`grapnel run` on Linux for arm64: programs do as they do without, and what is said of them is so. Looks for leaks stop the program by
ptrace, and filters for system calls are the kernel's: both are tried nowhere else on this machine."""

import collections, json, os, pathlib, tempfile
from machine import FOLDER, GRAPNEL, main, report, run


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


def looked_through(directory, program, source, *arguments, status=0):
    """What a look at a program's end says of the lines with marks in its source, by mark: kinds of blocks. And all that it says."""
    marks = {}
    for number, line in enumerate((FOLDER / source).read_text().splitlines(), 1):
        for kind in ("LOST", "HELD"):
            if f"/* {kind} " in line:
                marks[number] = (kind, line.split(f"/* {kind} ")[1].split(" */")[0])
    trace, _ = recorded(directory, program, "--leaks", arguments=arguments, status=status)
    found = json.loads(run(GRAPNEL, "leaks", "--format", "json", "--reachable", trace)[0])
    assert found["scan"]["at_exit"] is True and found["scan"]["notes"] == [], found["scan"]
    kinds = collections.defaultdict(set)
    for site in found["sites"]:
        innermost = site["frames"][0]
        if (innermost.get("file") or "").endswith(source) and innermost["line"] in marks:
            kinds[marks[innermost["line"]]].add(site["kind"])
    assert set(kinds) == set(marks.values()), f"{kinds} of {marks}"
    for (mark, name), said in kinds.items():
        wanted = {"direct", "indirect"} if mark == "LOST" else {"reachable"}
        assert said <= wanted, f"{mark} {name}: {said}"
    live = sum(found["totals"][kind]["blocks"] for kind in ("direct", "indirect", "possible", "reachable"))
    assert live == report(trace)["totals"]["live_allocations"], found["totals"]
    return kinds, found


def leaks():
    """What `lost` has lost, and what it holds: marks in its source say which."""
    with tempfile.TemporaryDirectory() as directory:
        kinds, _ = looked_through(directory, "lost", "lost.c", status=7)
        return f"{len(kinds)} kinds of blocks"


def leaks_of_variables():
    """Variables of threads hold, those of the first, of another and of a library, and what libc keeps of one that has ended is not lost."""
    with tempfile.TemporaryDirectory() as directory:
        library = FOLDER / "liblost_locals_library.so"
        kinds, found = looked_through(directory, "lost_locals", "lost_locals.c", library)
        assert found["totals"]["direct"] == {"blocks": 1, "bytes": 2001}, found
        return f"{len(kinds)} kinds of blocks"


main(threads, every_function, python, leaks, leaks_of_variables)
