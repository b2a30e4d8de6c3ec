"""The servers: how each is started, loaded and asked."""

import gzip, http.client, itertools, json, os, pathlib, re, shutil, signal, socket, subprocess, threading, time
import urllib.request
from .machine import TARGET, compiled, interruptible

PORT = 7611


class Probe(threading.Thread):
    """Asks once in a while, checks each answer, and notes how long it took: one answer after the other, in milliseconds."""

    def __init__(self, connect, ask):
        super().__init__(daemon=True)
        self.connect, self.ask, self.over, self.wrong = connect, ask, False, []
        self.times = []
        self.start()

    def run(self):
        connection = self.connect()
        while not self.over:
            begun = time.perf_counter()
            try:
                right = self.ask(connection)
            except (OSError, ValueError) as error:
                right = error
            self.times.append((time.perf_counter() - begun) * 1e3)
            if right is not True:
                self.wrong.append(repr(right))
                connection = self.connect()
            time.sleep(0.002)

    def since(self, mark):
        return max(self.times[mark:], default=0.0)


def line_of(stream):
    text = b""
    while not text.endswith(b"\n"):
        part = stream.recv(4096)
        if not part:
            raise OSError("the connection was closed")
        text += part
    return text


def connected(port):
    def connect():
        deadline = time.monotonic() + 30
        while True:
            try:
                stream = socket.create_connection(("127.0.0.1", port), 30)
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return stream
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    return connect


class Server:
    """One that is started, loaded, attached to. `lists`: which of the kernel's lists of it stay as they are."""

    lists = ["fd", "task"]
    # How many workers those have that have a number of them.
    workers = 2

    def __init__(self, directory, *launcher):
        """`launcher` is a command that becomes the server."""
        self.directory, self.running, self.launcher = pathlib.Path(directory), [], launcher

    def start(self):
        """Starts it, without a load."""

    def begin(self):
        """Starts it under its load, with somebody who asks beside it."""
        self.start()
        return self.load()

    def spawn(self, *command, **options):
        child = subprocess.Popen([str(part) for part in command], **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
                                                                    "stdin": subprocess.DEVNULL,
                                                                    "preexec_fn": interruptible, **options})
        self.running.append(child)
        return child

    def serve(self, *command, **options):
        self.server = self.spawn(*self.launcher, *command, **options)

    def pids(self):
        return [self.server.pid]

    def stop(self):
        for child in reversed(self.running):
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()

    def loaded(self):
        """How many requests there were, and which went wrong, once the load has ended."""
        return 0, []

    def http(self, port, path, expected):
        def ask(_):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return answer.read() == expected or "another answer"
        connected(port)().close()
        return Probe(lambda: None, ask)

    def ab(self, port, path, *options):
        url = f"http://127.0.0.1:{port}{path}"
        return self.spawn("ab", "-q", "-l", "-s", "60", "-c", "4", "-t", "36000", "-n", "100000000", *options, url,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ab_said(self, ab):
        ab.send_signal(signal.SIGINT)
        text = ab.communicate()[0]
        number = lambda name: int((re.search(rf"{name}:\s+(\d+)", text) or [0, 0])[1])
        wrong = [text] if not number("Complete requests") else []
        if number("Failed requests") or number("Non-2xx responses"):
            wrong.append(text)
        return number("Complete requests"), wrong


class Python(Server):
    """python3 -m http.server, under ab"""

    # A thread for each request.
    lists = []

    def start(self):
        (self.directory / "page").write_bytes(b"a page\n" * 1000)
        self.serve("/usr/bin/python3", "-m", "http.server", PORT, "--bind", "127.0.0.1", "-d", self.directory)
        connected(PORT)().close()

    def load(self):
        probe = self.http(PORT, "/page", b"a page\n" * 1000)
        self.clients = self.ab(PORT, "/page")
        return probe

    def work(self, _):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/page", timeout=30) as answer:
            return answer.read() == b"a page\n" * 1000 or "another answer"

    def loaded(self):
        return self.ab_said(self.clients)


class Sqlite(Server):
    """sqlite3, asked in a loop"""

    # It has a file for what it sorts now and then.
    lists = ["task"]

    def start(self):
        self.serve("sqlite3", "-batch", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.server.stdin.write(b"create table t(n, text);\n")
        self.count = 0

    def work(self, _=None):
        say, hear = self.server.stdin, self.server.stdout
        self.count += 200
        count = self.count
        say.write(f"insert into t select value, printf('%0*d', 2 * (value % 500), value * 7919 % 9973) from generate_series({count - 199}, {count}); "
                  "select count(*), sum(length(a.text) > 0) from t a where n % 3 = 0; "
                  f"select {count}, max(n) from (select n, text from t order by text limit -1);\n".encode())
        say.flush()
        hear.readline()
        right = hear.readline() == f"{count}|{count}\n".encode()
        if count == 4000:
            say.write(b"delete from t; vacuum;\n")
            self.count = 0
        return right or "another answer"

    def load(self):
        return Probe(lambda: None, self.work)


class Threads(Server):
    """a C++ server with 64 threads, and 64 clients"""

    def start(self):
        self.program = compiled("programs/threads_server.cc")
        self.serve(self.program, PORT)
        connected(PORT)().close()
        self.connections = []

    def load(self):
        probe = Probe(connected(PORT), self.ask)
        self.clients = self.spawn(self.program, PORT, 63, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return probe

    @staticmethod
    def ask(stream):
        stream.sendall(b"0\n")
        return line_of(stream) == b"113\n" or "another answer"

    def work(self, number):
        """All 64 are asked at once."""
        while len(self.connections) < 64:
            self.connections.append(connected(PORT)())
        for stream in self.connections:
            stream.sendall(f"{number}\n".encode())
        answers = {line_of(stream) for stream in self.connections}
        return len(answers) == 1 or "different answers"

    def loaded(self):
        said = json.loads(self.clients.communicate(timeout=60)[0])
        return said["requests"], [said] if said["wrong"] else []


class Tokio(Server):
    """a Rust program with tokio, under ab"""

    # A thread for what blocks, now and then, and a descriptor for each connection.
    lists = []

    def start(self):
        self.serve(TARGET / "release" / "grapnel-tokio-server", PORT)
        connected(PORT)().close()
        self.connections, self.first = [], {}

    def load(self):
        numbers = itertools.cycle((way, number) for number in range(50) for way in ["", "blocking/", "later/"])

        def ask(_):
            way, number = next(numbers)
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{way}{number}", timeout=30) as answer:
                text = answer.read()
            return self.first.setdefault(number, text) == text or "another answer"
        self.clients = self.ab(PORT, "/49", "-k", "-c", "16")
        return Probe(lambda: None, ask)

    def work(self, number):
        """Sixteen connections at once, half of whose answers come later."""
        while len(self.connections) < 16:
            self.connections.append(connected(PORT)())
        for n, stream in enumerate(self.connections):
            stream.sendall(f"GET /{'later/' * (n % 2)}{number} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        answers = set()
        for stream in self.connections:
            text = b""
            while b"\r\n\r\n" not in text or not text.endswith(b"\n"):
                text += line_of(stream)
            answers.add(text)
        return len(answers) == 1 or "different answers"

    def loaded(self):
        return self.ab_said(self.clients)


class Redis(Server):
    """redis-server, under redis-benchmark"""

    # It frees in threads of its own, and serves as many clients as there are.
    lists = ["task"]

    def start(self):
        self.serve("redis-server", "--port", PORT, "--save", "", "--dir", self.directory)
        connected(PORT)().close()

    def load(self):
        probe = Probe(connected(PORT), self.ask)
        self.clients = self.spawn("redis-benchmark", "-p", PORT, "-l", "-q", "-c", 20, "-n", 20000, "-d", 300, "-r", 100000, "-t",
                               "set,get,incr,lpush,rpop,sadd,hset,spop,zadd,mset", stderr=subprocess.PIPE)
        return probe

    @staticmethod
    def ask(stream):
        stream.sendall(b"SET probe value\r\nGET probe\r\n")
        text = b""
        while len(text) < len(b"+OK\r\n$5\r\nvalue\r\n"):
            text += line_of(stream)
        return text == b"+OK\r\n$5\r\nvalue\r\n" or text

    def loaded(self):
        ended = self.clients.poll()
        with connected(PORT)() as stream:
            stream.sendall(b"INFO stats\r\n")
            time.sleep(0.2)
            text = stream.recv(65536).decode()
        requests = int(re.search(r"total_commands_processed:(\d+)", text)[1])
        return requests, [f"redis-benchmark ended with {ended}"] if ended is not None else []


class Nginx(Server):
    """nginx's two workers, under ab"""

    lists = []

    def start(self):
        (self.directory / "page").write_bytes(b"a page\n" * 1000)
        self.directory.chmod(0o755)
        settings = self.directory / "nginx.conf"
        settings.write_text(f"""daemon off; worker_processes {self.workers}; pid {self.directory}/pid; error_log {self.directory}/errors;
            events {{ worker_connections 512; }}
            http {{ access_log off; client_body_temp_path {self.directory}/b; proxy_temp_path {self.directory}/p;
            fastcgi_temp_path {self.directory}/f; uwsgi_temp_path {self.directory}/u; scgi_temp_path {self.directory}/s;
            gzip on; gzip_types *; gzip_min_length 1;
            server {{ listen 127.0.0.1:{PORT}; location / {{ root {self.directory}; }} }} }}""")
        self.serve("nginx", "-c", settings, "-p", self.directory)
        connected(PORT)().close()
        self.connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)

    def load(self):
        probe = self.http(PORT, "/page", b"a page\n" * 1000)
        self.clients = self.ab(PORT, "/page", "-H", "Accept-Encoding: gzip")
        return probe

    def work(self, _):
        """By one connection, which stays."""
        self.connection.request("GET", "/page", headers={"Accept-Encoding": "gzip"})
        return gzip.decompress(self.connection.getresponse().read()) == b"a page\n" * 1000 or "another answer"

    def pids(self):
        return children(self.server.pid)

    def loaded(self):
        return self.ab_said(self.clients)


class Postgres(Server):
    """postgres' backends and its first process, under pgbench"""

    lists = ["task"]

    def start(self):
        self.tools = tools = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        data = self.directory / "data"
        self.user = []
        if os.geteuid() == 0:
            shutil.chown(self.directory, "postgres")
            self.user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True, "cwd": self.directory}
        subprocess.run([*self.user, tools / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync"], **quiet)
        self.at = at = ["-h", "127.0.0.1", "-p", str(PORT), "-U", "postgres"]
        self.server = self.spawn(*self.user, *self.launcher, tools / "postgres", "-D", data, "-p", PORT, "-k", self.directory, "-F",
                                 cwd=self.directory)
        connected(PORT)().close()
        while subprocess.run([tools / "pg_isready", *at], stdout=subprocess.DEVNULL).returncode:
            time.sleep(0.1)
        subprocess.run([tools / "pgbench", "-i", "-s", "2", *at, "postgres"], **quiet)
        # One that is asked alone, by a line of SQL.
        self.asking = self.spawn(tools / "psql", "-XAtq", *at, "postgres", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.work()

    def load(self):
        self.clients = self.spawn(self.tools / "pgbench", "-c", 4, "-T", 36000, "-P", 1, *self.at, "postgres",
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(1)
        return Probe(lambda: None, self.work)

    def work(self, _=None):
        self.asking.stdin.write(
            b"select count(*), max(length(repeat(aid::text, 50))) from pgbench_accounts where aid < 300;\n")
        self.asking.stdin.flush()
        return self.asking.stdout.readline() == b"299|150\n" or "another answer"

    def pids(self):
        backends = [pid for pid in children(self.server.pid)
                    if b"127.0.0.1" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        return [*backends, self.server.pid]

    def loaded(self):
        ended = self.clients.poll()
        self.clients.send_signal(signal.SIGINT)
        text = self.clients.communicate()[0]
        rates = [float(rate) for rate in re.findall(r"progress: .*? ([\d.]+) tps", text)]
        failed = [line for line in re.findall(r"(?:ERROR|FATAL|aborted|[1-9]\d* failed).*", text)]
        return int(sum(rates)), failed + ([f"pgbench ended with {ended}"] if ended is not None else [])


def children(pid):
    return sorted(int(text) for text in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


KINDS = {"python": Python, "sqlite3": Sqlite, "threads": Threads, "tokio": Tokio, "redis": Redis, "nginx": Nginx,
         "postgres": Postgres}
