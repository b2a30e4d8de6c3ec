//! Engines that fail. Whatever they do, the program runs as ever and its trace is whole.

use crate::common::{pushed, script, taken};
use grapnel_tests::engine::{Answer, Engine};
use grapnel_tests::going::{Going, until};
use grapnel_tests::run::{Case, Recorded, finish, temporary_dir};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Runs a short program. What it is to its user and its report are as ever.
fn run(case: &Case) -> Recorded {
    let recorded = case.recorded();
    let bare = Case::ours("temporary").bare();
    assert_eq!(recorded.outcome.out(), bare.out());
    assert_eq!(recorded.outcome.status.code(), bare.status.code(), "{}", recorded.outcome.err());
    assert_eq!(recorded.report().totals.lost_events, 0);
    recorded
}

fn short(kind: &str, engine: &Engine) -> Case {
    at_its_end(pushed(Case::ours("temporary"), kind, engine))
}

/// It is told of at its end only, however long it takes.
fn at_its_end(case: Case) -> Case {
    case.option("--push-every").option("3600")
}

/// What is said of the only profile, which did not get there.
fn complaint(recorded: &Recorded) -> String {
    let text = recorded.outcome.err();
    assert_eq!(text.lines().count(), 1, "{text}");
    let (before, after) =
        text.split_once(" of 1 profile did not get to ").unwrap_or_else(|| panic!("{text}"));
    assert_eq!(before, "grapnel: 1");
    after.trim_end().split_once("; the last: ").unwrap().1.to_owned()
}

#[test]
fn nobody_there() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let case = at_its_end(Case::ours("temporary").option("--push").option(&format!("otlp+http://{address}")));
    let said = complaint(&run(&case));
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn one_that_comes_later() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let engine = Engine::new(|_, _| taken());
    let own = engine.address;
    // The first connection is broken off: there is nobody behind this yet.
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            if number > 0 {
                let mut from = stream.try_clone().unwrap();
                let mut to = std::net::TcpStream::connect(own).unwrap();
                let (mut back, mut answer) = (stream, to.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                std::thread::spawn(move || {
                    let copied = std::io::copy(&mut answer, &mut back);
                    let _ = back.shutdown(std::net::Shutdown::Both);
                    copied
                });
            }
        }
    });
    let case =
        at_its_end(Case::ours("temporary").option("--push").option(&format!("parca+http://{address}")));
    let recorded = run(&case);
    assert_eq!(recorded.outcome.err(), "");
    assert_eq!(engine.requests().len(), 1);
}

#[test]
fn one_that_says_nothing() {
    let engine = Engine::new(|_, _| Answer::Silence);
    let said = complaint(&run(&short("otlp", &engine)));
    assert!(said.contains("timeout"), "{said}");
    assert_eq!(engine.requests().len(), 1);
}

#[test]
fn one_that_never_ends() {
    let engine = Engine::new(|_, _| Answer::Endless);
    let said = complaint(&run(&short("otlp", &engine)));
    assert_eq!(said, "its answer is too long");
}

#[test]
fn one_that_wants_a_token() {
    let engine = Engine::new(|_, request| match request.header("authorization") {
        Some("Bearer 0123456789abcdef") => taken(),
        _ => Answer::Say("401 Unauthorized", String::new(), b"{\"code\":16}\n".to_vec()),
    });
    let said = complaint(&run(&short("pyroscope", &engine)));
    assert_eq!(said, "it answered 401 Unauthorized: {\"code\":16} (--push-token-file gives it a token)");
    assert_eq!(engine.requests().len(), 1, "it is not asked again");
    let dir = temporary_dir();
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let case = short("pyroscope", &engine).option("--push-token-file").option(token.to_str().unwrap());
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = case.recorded().outcome;
    assert_eq!(refused.status.code(), Some(125));
    assert!(refused.err().contains("--push-token-file") && refused.err().contains("others can read it"));
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(run(&case).outcome.err(), "");
    assert_eq!(engine.requests().len(), 2);
}

#[test]
fn one_that_has_too_much_to_do() {
    let wait = |seconds: u32| {
        Answer::Say("429 Too Many Requests", format!("Retry-After: {seconds}\r\n"), Vec::new())
    };
    // It is left alone as long as it asks for, however often there would be something.
    let engine = Engine::new(move |_, _| wait(3000));
    let mut going = Going::new(&script("parca", &engine));
    until("a profile", || engine.requests().first().cloned());
    std::thread::sleep(std::time::Duration::from_secs(3));
    going.end();
    assert_eq!(engine.requests().len(), 1);
    // It is asked again, with the same profile.
    let engine = Engine::new(move |number, _| if number == 0 { wait(0) } else { taken() });
    assert_eq!(run(&short("pyroscope", &engine)).outcome.err(), "");
    let [first, second] = &engine.requests()[..] else { panic!("{}", engine.requests().len()) };
    assert!(first.body == second.body);
}

#[test]
fn one_that_fails() {
    let engine =
        Engine::new(|_, _| Answer::Say("500 Internal Server Error", String::new(), b"\x1b[2Jfull".to_vec()));
    let said = complaint(&run(&short("otlp", &engine)));
    assert_eq!(said, "it answered 500 Internal Server Error: \\u{1b}[2Jfull");
    let engine =
        Engine::new(|_, _| Answer::Say("200 OK", String::new(), b"\x0a\x06\x08\x02\x12\x02no".to_vec()));
    let said = complaint(&run(&short("otlp", &engine)));
    assert_eq!(said, "it did not take 2 of the profiles: no");
}

#[test]
fn one_that_leads_elsewhere() {
    let other = Engine::new(|_, _| taken());
    let location = format!("Location: http://{}/api/profiles/writeraw\r\n", other.address);
    for status in ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let location = location.clone();
        let engine = Engine::new(move |_, _| Answer::Say(status, location.clone(), Vec::new()));
        let said = complaint(&run(&short("parca", &engine)));
        assert!(said.starts_with(&format!("it answered {status} (redirects aren't followed")), "{said}");
    }
    assert_eq!(other.requests().len(), 0);
}

#[test]
fn what_is_no_engine_is_refused_before_the_program_starts() {
    for (options, why) in [
        (&["--push", "http://127.0.0.1:1"][..], "it is otlp, pyroscope or parca"),
        (&["--push", "otlp+http://me:word@127.0.0.1:1"], "--push-token-file"),
        (&["--push-every", "5"], "--push"),
        (&["--push", "otlp+http://127.0.0.1:1", "--push-label", "a=1", "--push-label", "a=2"], "twice"),
    ] {
        let case = options.iter().fold(Case::ours("temporary"), |case, option| case.option(option));
        let outcome = case.recorded().outcome;
        assert!(!outcome.status.success() && outcome.err().contains(why), "{options:?}: {}", outcome.err());
        assert_eq!(outcome.out(), "", "the program did not run");
    }
}

/// A server that speaks TLS before the engine, and ends with the test.
struct Secure {
    child: Child,
    address: String,
}

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Certificates of an authority of its own: for 127.0.0.1, and the authority's.
fn certificates(dir: &Path) -> [PathBuf; 3] {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let openssl = |arguments: &[&str]| {
        let outcome = finish(Command::new("openssl").args(arguments).current_dir(dir), b"");
        assert!(outcome.status.success(), "{}", outcome.err());
    };
    let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let root = ["req", "-x509", "-subj", "/CN=test", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(&[&root[..], &new_key].concat());
    let wish = ["req", "-subj", "/CN=127.0.0.1", "-keyout", "key.pem", "-out", "wish.pem"];
    openssl(&[&wish[..], &new_key].concat());
    std::fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    let sign = ["x509", "-req", "-in", "wish.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
    openssl(&[&sign[..], &["-days", "2", "-extfile", "names", "-out", "own.pem"]].concat());
    ["own.pem", "key.pem", "ca.pem"].map(|name| path(name).into())
}

/// Takes TLS off requests, one connection after the other.
const TLS: &str = r"
import re, socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
host, port = sys.argv[3].split(':')
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)

def is_whole(request):
    head, end, body = request.partition(b'\r\n\r\n')
    return end and len(body) >= int(re.search(rb'content-length: *(\d+)', head.lower())[1])

while True:
    plain, _ = listener.accept()
    try:
        stream = context.wrap_socket(plain, server_side=True)
    except OSError:
        continue
    request = b''
    while not is_whole(request):
        request += stream.recv(1 << 16)
    engine = socket.create_connection((host, int(port)))
    engine.sendall(request)
    while piece := engine.recv(1 << 16):
        stream.sendall(piece)
    stream.close()
";

#[test]
fn one_is_trusted_if_somebody_vouches_for_it() {
    use std::io::BufRead;
    let dir = temporary_dir();
    let [own, key, root] = certificates(dir.path());
    let engine = Engine::new(|_, _| taken());
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", TLS]).args([&own, &key]).arg(engine.address.to_string()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut port = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let secure = Secure { child, address: format!("127.0.0.1:{}", port.trim()) };
    let case = Case::ours("temporary").option("--push").option(&format!("parca+https://{}", secure.address));
    let case = at_its_end(case);
    let said = complaint(&run(&case));
    assert!(said.contains("certificate"), "{said}");
    assert_eq!(engine.requests().len(), 0);
    assert_eq!(run(&case.env("SSL_CERT_FILE", &root)).outcome.err(), "");
    assert_eq!(engine.requests().len(), 1);
}
