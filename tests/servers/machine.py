"""What is here: tools, the machine, grapnel, and recordings by it."""

import os, pathlib, re, shutil, signal, subprocess, sys, threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
GRAPNEL = TARGET / "release" / "grapnel"
PACKAGES = {"redis-server": "redis-server", "redis-benchmark": "redis-tools", "nginx": "nginx", "ab": "apache2-utils",
            "sqlite3": "sqlite3", "gcc": "gcc", "g++": "g++", "setpriv": "util-linux"}


def install(more):
    packages = [package for tool, package in {**PACKAGES, **more}.items() if not shutil.which(tool)]
    if not list(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        packages.append("postgresql")
    if packages and not os.environ.get("GRAPNEL_NO_INSTALL"):
        print("installing:", *packages, file=sys.stderr)
        # Without a run level that would start the servers.
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        sudo = [] if os.geteuid() == 0 else ["sudo", "-E"]
        subprocess.run([*sudo, "apt-get", "update", "-q"], env=env, check=True, stdout=sys.stderr)
        command = [*sudo, "apt-get", "install", "-qy", "--no-install-recommends", *packages]
        subprocess.run(command, env=env, check=True, stdout=sys.stderr)


def build():
    packages = ["-p", "grapnel", "-p", "grapnel-tokio-server"]
    subprocess.run(["cargo", "build", "--release", "-q", *packages], cwd=ROOT, check=True)


def compiled(source, *flags):
    """An executable, or a library, of a source below tests/."""
    source = ROOT / "tests" / source
    program = TARGET / f"servers-{source.stem}"
    compiler = "g++" if source.suffix == ".cc" else "gcc"
    subprocess.run([compiler, "-O2", "-g", "-fno-omit-frame-pointer", "-fno-builtin-malloc", "-pthread", *flags, "-o", program,
                    source], check=True)
    return program


def describe_machine():
    processor = re.search(r"model name\s+: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    libc = subprocess.run(["ldd", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    print(f"- Processor: {processor[1] if processor else 'unknown'}, {os.cpu_count()} cores")
    print(f"- Kernel: {os.uname().release}\n- libc: {libc}")
    print(f"- Load of the last minute before the runs: {os.getloadavg()[0]:.1f}\n")


def interruptible():
    """Who runs in the background may have been told to ignore this."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def quantile(numbers, part):
    return sorted(numbers)[min(len(numbers) - 1, int(len(numbers) * part))]


def attach_for(seconds, pid, trace):
    """Attaches for so long: what was said, and for how many milliseconds the threads stood still, in and out."""
    command = [GRAPNEL, "attach", "--for", str(seconds), "-o", trace, str(pid)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300).stderr
    entered = re.search(r"stood still for ([\d.]+) ms", said)
    left = re.search(r"detached from process \d+: its threads stood still for ([\d.]+) ms, nothing", said)
    return said, (float(entered[1]), float(left[1])) if entered and left else None


class Recording:
    """One that goes on until it is told to end."""

    def __init__(self, pid, trace):
        self.child = subprocess.Popen([GRAPNEL, "attach", "-o", trace, str(pid)], stderr=subprocess.PIPE, text=True,
                                      preexec_fn=interruptible)
        self.said = ""
        while "attached to" not in self.said:
            line = self.child.stderr.readline()
            if not line:
                raise RuntimeError(f"not attached: {self.said}")
            self.said += line
        self.listening = threading.Thread(target=self.listen)
        self.listening.start()

    def listen(self):
        for line in self.child.stderr:
            self.said += line

    def end(self):
        self.child.send_signal(signal.SIGINT)
        self.listening.join(120)
        if self.child.wait(120) != 0 or "nothing of the agent is left" not in self.said:
            raise RuntimeError(self.said)
