//! What `--serve` offers, read by those that it is for: `go tool pprof`, Prometheus.

use grapnel_tests::going::{Going, until};
use grapnel_tests::run::{Case, finish, temporary_dir};
use grapnel_tests::{is_root, skipped};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

/// A recording that is served.
struct Served {
    going: Going,
    /// Host and port.
    host: String,
}

/// Keeps 1000 blocks of 54,321 bytes, and allocates one more for each line that it reads.
const SCRIPT: &str = "
import ctypes, sys
libc = ctypes.CDLL(None)
kept = [libc.malloc(54321) for n in range(1000)]
for line in sys.stdin: kept.append(libc.malloc(1 << 20))
";

impl Served {
    fn new(options: &[&str]) -> Self {
        Self::of(Case::new("/usr/bin/python3").args(["-c", SCRIPT]), options)
    }

    fn of(case: Case, options: &[&str]) -> Self {
        let case = case.option("--serve").option("0");
        let mut going = Going::new(&options.iter().fold(case, |case, option| case.option(option)));
        let mut line = String::new();
        BufReader::new(going.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let host = line.trim_end().strip_prefix("grapnel: serving at http://").unwrap();
        let served = Self { host: host.trim_end_matches('/').to_owned(), going };
        until("its blocks", || {
            let status = served.going.status()?;
            let live = |of: &Value| of["totals"]["live_bytes"].as_u64().is_some_and(|live| live > 54_321_000);
            status["processes"].as_array()?.iter().any(live).then_some(())
        });
        served
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host)
    }

    /// The status and the body.
    fn get(&self, path: &str, headers: &str) -> (String, Vec<u8>) {
        asked(&self.host, &format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", self.host))
    }
}

/// What a profile says, all of it.
fn raw(profile: &[u8]) -> String {
    let dir = temporary_dir();
    let path = dir.path().join("profile");
    std::fs::write(&path, profile).unwrap();
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-raw"]).arg(path).env("HOME", dir.path()).env("TZ", "UTC");
    let outcome = finish(command.env("GOTOOLCHAIN", "local"), b"");
    assert!(outcome.status.success(), "{}", outcome.err());
    outcome.out()
}

fn asked(host: &str, request: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let body = answer.windows(4).position(|at| at == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
    let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
    (line, answer[body..].to_vec())
}

/// What `go tool pprof` says of an address.
fn pprof(url: &str, options: &[&str]) -> String {
    let home = temporary_dir();
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-top"]).args(options).arg(url).env("HOME", home.path());
    command.env("PPROF_TMPDIR", home.path()).env("GOTOOLCHAIN", "local");
    let outcome = finish(&mut command, b"");
    assert!(outcome.status.success(), "{}", outcome.err());
    outcome.out()
}

#[test]
fn go_reads_profiles_as_its_own() {
    let mut served = Served::new(&[]);
    let heap = pprof(&served.url("/debug/pprof/heap"), &["-unit=MB"]);
    assert!(heap.contains("Type: inuse_space") && heap.contains("python3"), "{heap}");
    // 1000 times 54,321 bytes are 51.80 MB, and something besides.
    let total = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("Showing nodes")).unwrap();
        let total = line.split(" of ").nth(1).unwrap().split(' ').next().unwrap();
        total.trim_end_matches("MB").parse::<f64>().unwrap_or_else(|_| panic!("{text}"))
    };
    let megabytes = total(&heap);
    assert!((51.8..58.0).contains(&megabytes), "{heap}");
    let allocs = pprof(&served.url("/debug/pprof/allocs"), &[]);
    assert!(allocs.contains("Type: alloc_space"), "{allocs}");
    let objects = pprof(&served.url("/debug/pprof/heap?gc=1"), &["-sample_index=inuse_objects"]);
    assert!(objects.contains("Type: inuse_objects"), "{objects}");
    // As text it says the same.
    let (status, text) = served.get("/debug/pprof/heap?debug=1", "");
    let text = String::from_utf8(text).unwrap();
    assert!(status.ends_with("200 OK") && text.starts_with("heap profile: "), "{text}");
    assert!(text.contains("\n1000: 54321000 [1000: 54321000] @ 0x") && text.contains("\tffi_call"), "{text}");
    let file = temporary_dir();
    let path = file.path().join("heap.txt");
    std::fs::write(&path, &text).unwrap();
    let read = pprof(path.to_str().unwrap(), &["-unit=MB"]);
    assert!(read.contains("Type: inuse_space"), "{read}");
    assert!((total(&read) - megabytes).abs() < 0.5, "{read}");
    // The difference has what came in between, and nothing else.
    let host = served.host.clone();
    // Asked directly: Go would need a while on a busy machine before it asks.
    let request = format!("GET /debug/pprof/heap?seconds=6 HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let asking = std::thread::spawn(move || asked(&host, &request).1);
    std::thread::sleep(std::time::Duration::from_secs(2));
    served.going.child.stdin.as_mut().unwrap().write_all(b"\n\n\n\n").unwrap();
    let path = file.path().join("difference");
    std::fs::write(&path, asking.join().unwrap()).unwrap();
    let difference = pprof(path.to_str().unwrap(), &["-unit=MB"]);
    let megabytes = total(&difference);
    assert!((4.0..4.5).contains(&megabytes), "{difference}");
}

#[test]
fn a_profile_is_of_its_moment() {
    let served = Served::new(&[]);
    let now = || finish(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M:%S"]), b"").out().trim().to_owned();
    // Whoever collects profiles takes this for the time of the figures, not the beginning of the process.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let before = now();
    let heap = raw(&served.get("/debug/pprof/heap", "").1);
    let said = |text: &str, word: &str| {
        text.lines().find_map(|line| line.strip_prefix(word)).map(|rest| rest.trim().to_owned())
    };
    let time = said(&heap, "Time: ").unwrap();
    assert!(*before <= time[..19] && time[..19] <= *now(), "{before} {time}");
    // By these, collectors name its types: it counts bytes, and over no time.
    assert_eq!(said(&heap, "PeriodType: ").as_deref(), Some("space bytes"));
    assert_eq!(said(&heap, "Duration: "), None, "{heap}");
    let difference = raw(&served.get("/debug/pprof/allocs?seconds=1", "").1);
    assert!(said(&difference, "Duration: ").is_some(), "{difference}");
}

#[test]
fn a_child_has_its_own_names() {
    let shell = format!("/usr/bin/python3 -c '{SCRIPT}'; exit 0");
    let served = Served::of(Case::new("/bin/sh").args(["-c", &shell]), &[]);
    // The shell's are looked up first.
    let of_shell = raw(&served.get("/debug/pprof/heap", "").1);
    assert!(!of_shell.contains("Py_"), "{of_shell}");
    let status = served.going.status().unwrap();
    let processes = status["processes"].as_array().unwrap();
    let python = processes.iter().find(|of| of["command"][0] == "/usr/bin/python3").unwrap();
    let of_python = raw(&served.get(&format!("/debug/pprof/heap?pid={}", python["pid"]), "").1);
    assert!(of_python.contains("Py_BytesMain"), "{of_python}");
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prometheus_scrapes_the_figures() {
    let served = Served::new(&[]);
    let (status, metrics) = served.get("/metrics", "");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let checked = finish(Command::new("promtool").args(["check", "metrics"]), &metrics);
    assert!(checked.status.success(), "{}{}", checked.out(), checked.err());
    assert_eq!(checked.err(), "");
    let dir = temporary_dir();
    let config = format!(
        "scrape_configs:\n- job_name: grapnel\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{}']\n",
        served.host
    );
    let file = dir.path().join("prometheus.yml");
    std::fs::write(&file, config).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()));
    command.arg(format!("--web.listen-address={address}"));
    let _prometheus = Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let query =
        "GET /api/v1/query?query=grapnel_heap_live_bytes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let live: f64 = until("a scrape", || {
        TcpStream::connect(&address).ok()?;
        let (_, body) = asked(&address, query);
        let answer: Value = serde_json::from_slice(&body).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    });
    assert!((54_321_000.0..60_000_000.0).contains(&live), "{live}");
}

#[test]
fn who_may_not_ask_is_refused() {
    let served = Served::new(&[]);
    assert_eq!(served.get("/debug/pprof/heap?pid=1", "").0, "HTTP/1.1 503 Service Unavailable");
    let evil = "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    assert_eq!(asked(&served.host, evil).0, "HTTP/1.1 421 Misdirected Request");
    let post = format!("POST /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", served.host);
    assert_eq!(asked(&served.host, &post).0, "HTTP/1.1 405 Method Not Allowed");
    // HEAD gets what GET does, but for the body.
    for (path, status) in
        [("/", "200 OK"), ("/metrics", "200 OK"), ("/debug/pprof/heap", "200 OK"), ("/x", "404 Not Found")]
    {
        let head = format!("HEAD {path} HTTP/1.1\r\nHost: {}\r\n\r\n", served.host);
        assert_eq!(asked(&served.host, &head), (format!("HTTP/1.1 {status}"), Vec::new()), "{path}");
    }
    // Those who say nothing keep nobody from being answered.
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&served.host).unwrap()).collect();
    assert_eq!(served.get("/metrics", "").0, "HTTP/1.1 200 OK");
    drop(silent);
    if is_root() {
        let script = "import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1]).status)
except urllib.error.HTTPError as error:
    print(error.code)";
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", script]);
        let answer = finish(other.arg(served.url("/metrics")), b"");
        assert_eq!(answer.out(), "401\n", "{}", answer.err());
    } else {
        skipped("another user of the loopback device", "needs root");
    }
    drop(served);
    // Where others can connect, nothing is served without a token.
    let open = Case::new("/bin/true").option("--serve").option("0.0.0.0:0").recorded();
    assert_eq!(open.outcome.status.code(), Some(125));
    assert!(open.outcome.err().contains("give the token"), "{}", open.outcome.err());
    let dir = temporary_dir();
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123\n").unwrap();
    let path = token.to_str().unwrap();
    let with_token =
        Case::new("/bin/true").option("--serve").option("0.0.0.0:0").option("--serve-token").option(path);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(with_token.recorded().outcome.err().contains("others can read it"));
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(with_token.recorded().outcome.status.success());
    let served = Served::new(&["--serve-token", path]);
    assert_eq!(served.get("/metrics", "").0, "HTTP/1.1 401 Unauthorized");
    assert_eq!(served.get("/metrics?token=0123456789abcdef0124", "").0, "HTTP/1.1 401 Unauthorized");
    assert_eq!(served.get("/metrics", "Authorization: Bearer 0123456789abcdef0123\r\n").0, "HTTP/1.1 200 OK");
    assert_eq!(served.get("/metrics?token=0123456789abcdef0123", "").0, "HTTP/1.1 200 OK");
}
