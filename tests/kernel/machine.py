"""What the tests that run in the machine of `./test-kernel` have in common."""

import hashlib, json, os, pathlib, subprocess, sys, time

# The command and the programs of one machine.
FOLDER = pathlib.Path(__file__).parent
GRAPNEL = str(FOLDER / "grapnel")


def run(*command, status=0, **options):
    """Runs a command to its end, which is to have this status or any, and gives what it printed: on standard output, on the other."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    assert status is None or done.returncode == status, f"{command}: status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def report(trace):
    return json.loads(run(GRAPNEL, "report", "--format", "json", trace)[0])


def functions(site):
    return [frame.get("function") for frame in site["frames"]]


def state(pid):
    """What must be afterwards as it was: the mappings, but for the heap and the stack, which grow as they like; all code; how many
    descriptors and threads there are. Of memory without a name only where it begins and ends: malloc has more or less of it be
    written to as it likes."""
    with open(f"/proc/{pid}/maps") as file:
        lines = file.read().splitlines()
    code = hashlib.sha256()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in lines:
            if "r-xp" in line and "/" in line:
                start, end = (int(address, 16) for address in line.split(" ")[0].split("-"))
                memory.seek(start)
                code.update(memory.read(end - start))
    mappings = []
    for line in lines:
        addresses, rights, _, _, _, *name = line.split(maxsplit=5)
        (start, end), name = addresses.split("-"), "".join(name)
        if name in ("[heap]", "[stack]"):
            continue
        what = f"{rights} {name}" if name or "x" in rights else ""
        if not what and mappings and mappings[-1][1:] == (start, ""):
            start = mappings.pop()[0]
        mappings.append((start, end, what))
    return mappings, code.hexdigest(), len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def until(what, test, seconds=60):
    """Waits until `test` gives something."""
    deadline = time.monotonic() + seconds
    while not (found := test()):
        assert time.monotonic() < deadline, f"{what}: not after {seconds} s"
        time.sleep(0.05)
    return found


def main(*tests):
    """Runs all tests, or those that are named, and ends with 1 if one of them fails."""
    failed = False
    for test in tests:
        if sys.argv[1:] and test.__name__ not in sys.argv[1:]:
            continue
        begun = time.monotonic()
        try:
            said = test()
        except Exception as error:  # The others are still to come.
            failed = True
            print(f"{test.__name__}: FAILED: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{test.__name__}: ok, {time.monotonic() - begun:.1f} s{f': {said}' if said else ''}", flush=True)
    sys.exit(failed)
