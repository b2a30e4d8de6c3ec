"""`grapnel attach` and `grapnel detach` on Linux for arm64: into programs that run and out again, also when grapnel is killed; nobody
notices, and what is recorded is what the program counts itself."""

import os, pathlib, random, signal, subprocess, tempfile, time
from machine import FOLDER, GRAPNEL, functions, main, report, run, state, until

# How often; half as often killed.
ROUNDS = int(os.environ.get("GRAPNEL_ROUNDS") or 20)


class Counted:
    """`counted`, which counts what it does with its heap."""

    def __init__(self):
        self.process = subprocess.Popen([FOLDER / "counted"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        self.so_far = self.read()

    def read(self):
        return [int(word) for word in self.process.stdout.readline().split()]

    def work(self):
        """Has it do its work once more: blocks got, given back and changed, bytes, and what is live then."""
        self.process.stdin.write(b"g")
        self.process.stdin.flush()
        before, self.so_far = self.so_far, self.read()
        return [after - before for after, before in zip(self.so_far[:4], before[:4])] + self.so_far[4:]

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


class Sixteen:
    """`sixteen` with a few threads, which look after themselves; the first fault ends it."""

    def __enter__(self):
        self.process = subprocess.Popen([FOLDER / "sixteen", "100000", "4"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        self.process.stdout.readline()
        # It fills the pipe otherwise.
        os.set_blocking(self.process.stdout.fileno(), False)
        return self

    def lines(self):
        return len((self.process.stdout.read() or b"").splitlines())

    def goes_on(self):
        self.lines()
        until("sixteen goes on", lambda: self.process.poll() is not None or self.lines())
        assert self.process.poll() is None, f"it ended with {self.process.returncode}"

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def attach(directory, pid, *options):
    trace = pathlib.Path(directory) / "t.grapnel"
    return trace, run(GRAPNEL, "attach", "-o", trace, *options, str(pid), cwd=directory)[1]


class Recording:
    """One that goes on."""

    def __init__(self, directory, pid, *options):
        self.trace = pathlib.Path(directory) / "t.grapnel"
        self.process = subprocess.Popen([GRAPNEL, "attach", *options, "-o", self.trace, str(pid)], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, cwd=directory)
        self.said = ""
        while "attached to" not in self.said:
            line = self.process.stderr.readline()
            assert line, f"not attached: {self.said}"
            self.said += line

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.said += self.process.communicate(timeout=120)[1]
        assert self.process.returncode == 0, self.said
        return report(self.trace)


def of_its_own(found):
    """What a report says of the program's own calls: libc makes some for threads."""
    got = changed = amount = live = live_bytes = 0
    for site in found["sites"]:
        names = functions(site)
        if "make" in names:
            got += site["allocations"]
        elif "change" in names:
            changed += site["allocations"]
        else:
            continue
        amount += site["allocated_bytes"]
        live += site["live_allocations"]
        live_bytes += site["live_bytes"]
    return [got, changed, amount, live, live_bytes]


def counted_as_the_program_counts():
    with tempfile.TemporaryDirectory() as directory:
        counted = Counted()
        before = state(counted.pid)
        said = []
        # With the arenas that the recording's own blocks have them make.
        for number in range(3):
            recording = Recording(directory, counted.pid, "--before", "never")
            # The first bout gives back what was there before.
            bouts = [counted.work() for _ in range(3)]
            found = recording.end()
            assert "nothing of the agent is left" in recording.said, recording.said
            totals = found["totals"]
            assert totals["lost_events"] == 0, totals
            got, gave, changed, amount = (sum(bout[figure] for bout in bouts) for figure in range(4))
            wanted = [got, changed, amount, *bouts[-1][4:]]
            assert of_its_own(found) == wanted, f"{of_its_own(found)} instead of {wanted}"
            # What is from before is nobody's figure, and what libc gives back for threads is its own.
            assert totals["frees"] >= gave - bouts[0][1], totals
            assert counted.process.poll() is None
            counted.work()
            said = wanted
            if number == 0:
                # Arenas, and stacks that libc keeps, are the program's.
                before = state(counted.pid)
        assert state(counted.pid)[1:] == before[1:]
        counted.end()
        return f"{said[0]} blocks got, {said[1]} changed, {said[2]} bytes"


def what_was_there_before():
    with tempfile.TemporaryDirectory() as directory:
        counted = Counted()
        for _ in range(2):
            counted.work()
        recording = Recording(directory, counted.pid)
        assert "of before" in recording.said, recording.said
        counted.work()
        found = recording.end()
        assert found["totals"]["lost_events"] == 0
        counted.end()
        return recording.said.splitlines()[0]


def again_and_again():
    with tempfile.TemporaryDirectory() as directory, Sixteen() as sixteen:
        attach(directory, sixteen.pid, "-q", "--for", "0.3")
        sixteen.goes_on()
        before = state(sixteen.pid)
        for number in range(ROUNDS):
            _, said = attach(directory, sixteen.pid, "-q", "--for", "0.1")
            assert said == "", f"round {number}: {said}"
            after = state(sixteen.pid)
            assert after[1:] == before[1:], f"round {number}: {after[1:]} instead of {before[1:]}"
            assert after[0] == before[0], f"round {number}: {set(after[0]) ^ set(before[0])}"
            sixteen.goes_on()
        return f"{ROUNDS} times"


def detached_by_another():
    with tempfile.TemporaryDirectory() as directory, Sixteen() as sixteen:
        attach(directory, sixteen.pid, "-q", "--for", "0.3")
        before = state(sixteen.pid)
        recording = Recording(directory, sixteen.pid)
        run(GRAPNEL, "detach", str(sixteen.pid))
        assert recording.process.wait(timeout=120) == 0
        assert state(sixteen.pid) == before
        sixteen.goes_on()


def waits_end_as_if_nobody_had_come():
    def start():
        return subprocess.Popen([FOLDER / "waits", "12000"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    with tempfile.TemporaryDirectory() as directory:
        bare, attached = start(), start()
        time.sleep(2)
        for _ in range(3):
            _, said = attach(directory, attached.pid, "-q", "--for", "0.1")
            assert said == "", said
        bare, attached = (sorted(process.communicate(timeout=300)[0].splitlines()) for process in (bare, attached))
        assert attached == bare, f"{set(attached) ^ set(bare)}"
        return f"{len(bare)} waits"


def left(pid):
    """What must be as it was after one that was killed: mappings may have come together differently."""
    mappings, *rest = state(pid)
    size = sum(int(end, 16) - int(start, 16) for start, end, _ in mappings)
    odd = [what for *_, what in mappings if "grapnel" in what or "x" in what.split(" ")[0] and what.endswith(" ")]
    return size, odd, rest


def killed_at_any_moment():
    seed = int(os.environ.get("GRAPNEL_KILL_SEED") or random.randrange(1 << 30))
    chance = random.Random(seed)
    killed_at = lambda moment, pid, directory: int(run(FOLDER / "killed_at", str(moment), GRAPNEL, "attach", "-q", "--for", "0.01", "-o",
                                                       f"{directory}/t.grapnel", str(pid), status=None)[0].strip() or 0)
    with tempfile.TemporaryDirectory() as directory, Sixteen() as sixteen:
        moments = max(killed_at(1 << 40, sixteen.pid, directory) for _ in range(2))
        before = left(sixteen.pid)
        assert before[1] == [], before
        killed = 0
        for _ in range(ROUNDS // 2):
            moment = chance.randrange(1, moments + 1)
            killed += killed_at(moment, sixteen.pid, directory) == moment
            text = f"seed {seed}: killed at moment {moment} of {moments}"

            def is_as_before():
                assert sixteen.process.poll() is None, f"{text}: it ended with {sixteen.process.returncode}"
                return left(sixteen.pid) == before

            try:
                until(text, is_as_before)
            except AssertionError as error:
                raise AssertionError(f"{error}: {left(sixteen.pid)} instead of {before}")
            sixteen.goes_on()
        attach(directory, sixteen.pid, "-q", "--for", "0.1")
        sixteen.goes_on()
        return f"seed {seed}: {killed} of {ROUNDS // 2}, at {moments} moments"


main(
    counted_as_the_program_counts,
    what_was_there_before,
    again_and_again,
    detached_by_another,
    waits_end_as_if_nobody_had_come,
    killed_at_any_moment,
)
