//! `grapnel view`: the page with its trace behind it, and who is not answered.

use grapnel_tests::browser::Browser;
use grapnel_tests::programs;
use grapnel_tests::run::{Case, Recorded, grapnel};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A server that ends with the test.
struct Served {
    child: Child,
    address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn new(recorded: &Recorded) -> Self {
        let mut child = Command::new(programs::grapnel())
            .arg("view")
            .arg(recorded.trace())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, address: line.trim_end().to_owned() }
    }

    /// The host with its port, and the secret.
    fn parts(&self) -> (&str, &str) {
        let rest = self.address.strip_prefix("http://").unwrap();
        rest.trim_end_matches('/').split_once('/').unwrap()
    }

    /// The first line and the whole of what is answered to these bytes.
    fn asked(&self, request: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.parts().0).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        (String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned(), answer)
    }

    fn get(&self, path: &str, host: &str) -> (String, Vec<u8>) {
        self.asked(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }
}

/// Fills a list, empties it, and does much else in between.
fn recorded() -> Recorded {
    const SCRIPT: &str = "
for round in range(30):
    rows = [str(n) * 10 for n in range(3000)]
    del rows
";
    Case::new("/usr/bin/python3").args(["-c", SCRIPT]).env("PYTHONMALLOC", "malloc").recorded()
}

#[test]
fn a_range_is_read_again_in_more_detail() {
    let recorded = recorded();
    let served = Served::new(&recorded);
    let browser = Browser::new(1300, 1000);
    browser.go(&served.address);
    let text = |id: &str| browser.text(&format!("return document.getElementById({id:?}).textContent"));
    let edges =
        || browser.script("return Number(document.getElementById('handle-to').ariaValueMax)").as_u64();
    let whole = (text("range-text"), text("range-figures"), edges());
    assert_eq!(browser.script("return document.getElementById('closer').disabled"), true);
    browser.drag("#timeline", (0.3, 0.4), (0.5, 0.4));
    let part = (text("range-text"), text("range-figures"));
    let steps = || {
        browser
            .script("const value = id => Number(document.getElementById(id).ariaValueNow); return value('handle-to') - value('handle-from')")
            .as_u64()
    };
    let coarse = steps();
    browser.click("#closer");
    browser.until("return !document.getElementById('range-back').hidden");
    browser.settle();
    // The same range by the same figures, in more steps.
    assert_eq!(text("range-figures"), part.1);
    assert!(steps() > coarse, "{:?} after {coarse:?}", steps());
    for view in ["icicle", "bottom", "sites", "leaks", "sizes", "flame"] {
        browser.click(&format!("#tab-{view}"));
    }
    browser.click("#range-back");
    assert_eq!((text("range-text"), text("range-figures")), part);
    browser.click("#range-all");
    assert_eq!((text("range-text"), text("range-figures"), edges()), whole);
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn only_who_has_the_address_is_answered() {
    let recorded = recorded();
    let served = Served::new(&recorded);
    let (host, token) = served.parts();
    assert!(host.starts_with("127.0.0.1:") && token.len() == 32, "{}", served.address);
    let page = format!("/{token}/");
    let (status, body) = served.get(&page, host);
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(body.ends_with(b"</html>\n"));
    for (path, host, expected) in [
        ("/", host, "404 Not Found"),
        ("/00000000000000000000000000000000/", host, "404 Not Found"),
        (&format!("{page}data?from=5&to=5"), host, "404 Not Found"),
        (&format!("{page}../../etc/passwd"), host, "404 Not Found"),
        (&page, "evil.example", "421 Misdirected Request"),
        (&page, "", "421 Misdirected Request"),
    ] {
        let (status, body) = served.get(path, host);
        assert_eq!(status, format!("HTTP/1.1 {expected}"), "{path} of {host}");
        assert!(body.len() < 1000);
    }
    let head = served.asked(&format!("HEAD {page} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert_eq!(head.0, "HTTP/1.1 200 OK");
    assert!(head.1.ends_with(b"\r\n\r\n"), "a body where none was asked for");
    let post = served.asked(&format!("POST {page} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert_eq!(post.0, "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(served.asked("\0\0 nonsense\r\n\r\n").0, "HTTP/1.1 400 Bad Request");
    let endless = format!("GET {page} HTTP/1.1\r\nX: {}", "y".repeat(30_000));
    // It may be answered while the rest is still on its way.
    let mut stream = TcpStream::connect(host).unwrap();
    let _ = stream.write_all(endless.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    // Those who say nothing keep nobody from being answered, however many they are.
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(host).unwrap()).collect();
    assert_eq!(served.get(&page, host).0, "HTTP/1.1 200 OK");
    drop(silent);
    // A window behind the end is empty, and no error.
    let (status, _) = served.get(&format!("{page}data?from=4000000000&to=5000000000"), host);
    assert_eq!(status, "HTTP/1.1 200 OK");
}

#[test]
fn what_cannot_be_served_is_said() {
    let missing = grapnel(["view", "/nonexistent/t.grapnel"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(missing.err().contains("/nonexistent/t.grapnel: "), "{}", missing.err());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let outcome = grapnel(["view", "--port", &port, "/nonexistent/t.grapnel"]);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains(&format!("port {port} of 127.0.0.1: ")), "{}", outcome.err());
}
