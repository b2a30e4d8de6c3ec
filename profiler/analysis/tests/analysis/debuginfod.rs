//! Debug files from servers: a small one here that does all that a server shouldn't, and elfutils' own.

use crate::programs::{C, C_FRAMES, Program, look_up, run, search};
use grapnel_analysis::symbols::{Debuginfod, Limits, SearchPath};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How a server answers.
#[derive(Clone, Debug)]
enum Answer {
    File(Vec<u8>),
    /// The file, with another length in the header.
    Claims(Vec<u8>, u64),
    Endless,
    Status(&'static str),
    Silence,
    RedirectsToItself,
}

/// Answers every request alike, and tells of the paths.
fn serve(answer: Answer) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (sender, answer) = (sender.clone(), answer.clone());
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut lines = reader.by_ref().lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                lines.find(String::is_empty);
                let _ = sender.send(request.split(' ').nth(1).unwrap_or_default().to_owned());
                // The client may have had enough.
                let _ = reply(&mut stream, answer);
            });
        }
    });
    (url, requests)
}

fn reply(stream: &mut TcpStream, answer: Answer) -> std::io::Result<()> {
    match answer {
        Answer::File(bytes) => {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                bytes.len()
            )?;
            stream.write_all(&bytes)
        }
        Answer::Claims(bytes, len) => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n")?;
            stream.write_all(&bytes)
        }
        Answer::Endless => {
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            loop {
                stream.write_all(&[0; 4096])?;
            }
        }
        Answer::Status(status) => {
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        }
        Answer::Silence => {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        Answer::RedirectsToItself => {
            write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        }
    }
}

/// Asks these servers, and has nothing else.
fn asking(urls: &str, cache: &Path) -> SearchPath {
    asking_for(urls, cache, Duration::from_secs(20))
}

/// The same, and waits no longer than `pause` for one that says nothing.
fn asking_for(urls: &str, cache: &Path, pause: Duration) -> SearchPath {
    let mut limits = Limits::default();
    limits.pause = pause;
    limits.whole = Duration::from_secs(60);
    limits.size = 16 << 20;
    let mut search = search(Path::new("/nonexistent"));
    search.debuginfod = Some(Debuginfod::new(urls, cache.to_owned(), limits, |_| {}).unwrap());
    search
}

/// A stripped program, and its debug file.
fn stripped() -> (Program, Vec<u8>) {
    let program = Program::build(C, "c", &["-O2", "-g"]);
    let debug = program.dir.path().join("files/program.debug");
    std::fs::create_dir(debug.parent().unwrap()).unwrap();
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&program.path).arg(&debug));
    run(Command::new("strip").arg(&program.path));
    (program, std::fs::read(debug).unwrap())
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_debug_file_is_fetched_once_and_kept() {
    let (program, debug) = stripped();
    let id = program.build_id();
    let trace = program.trace(&id);
    let cache = program.dir.path().join("cache");
    let (url, requests) = serve(Answer::File(debug));
    assert_eq!(look_up(&trace, search(&cache)).0, ["- -:0", "- -:0"]);
    assert!(requests.try_recv().is_err(), "servers are asked on request only");
    for _ in 0..2 {
        // The address may end in a slash or not.
        let (frames, notes) = look_up(&trace, asking(&format!("{url}/"), &cache));
        assert_eq!((&frames[..], notes), (&C_FRAMES.map(str::to_owned)[..], vec![]));
    }
    assert_eq!(requests.try_iter().collect::<Vec<_>>(), [format!("/buildid/{}/debuginfo", hex(&id))]);
    assert_eq!(look_up(&trace, search(&cache)).0, C_FRAMES, "what was kept can be searched");
}

#[test]
fn the_program_itself_is_fetched_where_there_is_nothing_else() {
    let program = Program::build(C, "c", &["-O2"]);
    let id = program.build_id();
    let trace = crate::programs::trace("/gone/program".as_ref(), &id, &program.offsets);
    let (url, requests) = serve(Answer::Status("404 Not Found"));
    let cache = program.dir.path().join("cache");
    let (frames, notes) = look_up(&trace, asking(&url, &cache));
    assert_eq!(frames, ["- -:0", "- -:0"]);
    assert!(matches!(&notes[..], [note] if note.contains("no symbols from /gone/program")), "{notes:?}");
    let asked: Vec<String> = requests.try_iter().collect();
    assert_eq!(asked, ["debuginfo", "executable"].map(|kind| format!("/buildid/{}/{kind}", hex(&id))));
    let (second, _) = serve(Answer::File(std::fs::read(&program.path).unwrap()));
    let urls = format!("{url} {second}");
    assert_eq!(look_up(&trace, asking(&urls, &cache)).0, ["outer -:0", "main -:0"], "the next one is asked");
}

#[test]
fn servers_that_misbehave_cost_little_and_are_said() {
    let (program, debug) = stripped();
    let trace = program.trace(&program.build_id());
    let other = Program::build(C, "c", &["-O2", "-g", "-Wl,--build-id=0x1234"]);
    let other = std::fs::read(&other.path).unwrap();
    let long = debug.len() as u64 + 1;
    for (answer, said) in [
        (Answer::File(other), "it is of another build (1234)"),
        (Answer::File(b"no object".to_vec()), "not a readable ELF file"),
        (Answer::Claims(debug.clone(), long), "gave no debug file"),
        (Answer::Claims(debug, 1 << 40), "the file is larger than 16777216 bytes"),
        (Answer::Endless, "the file is larger than 16777216 bytes"),
        (Answer::Status("500 Internal Server Error"), "it answered with status 500"),
        (Answer::Silence, "gave no debug file: timeout"),
        (Answer::RedirectsToItself, "gave no debug file"),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let text = format!("{answer:.30?}");
        let pause = if matches!(answer, Answer::Silence) {
            Duration::from_millis(300)
        } else {
            Duration::from_secs(20)
        };
        let (url, requests) = serve(answer);
        let (frames, notes) = look_up(&trace, asking_for(&url, cache.path(), pause));
        assert_eq!(frames, ["- -:0", "- -:0"], "{text}");
        assert!(notes.iter().any(|note| note.contains(said)), "{text}: {notes:?}");
        assert!(requests.try_iter().count() <= 7, "{text}");
        let kept: Vec<_> = std::fs::read_dir(cache.path().join(hex(&program.build_id())))
            .map(|entries| entries.flatten().collect())
            .unwrap_or_default();
        assert!(kept.is_empty(), "{text}: {kept:?}");
    }
    let (frames, notes) = look_up(&trace, asking("http://127.0.0.1:1", program.dir.path()));
    assert_eq!(frames, ["- -:0", "- -:0"]);
    assert!(notes[0].contains("http://127.0.0.1:1 gave no debug file"), "{notes:?}");
}

#[test]
fn addresses_of_servers_are_checked() {
    let new = |urls: &str| Debuginfod::new(urls, "/nonexistent".into(), Limits::default(), |_| {});
    for (urls, said) in [
        ("", "no debuginfod server is named"),
        ("ftp://host", "ftp://host is no address"),
        ("https://good.example nonsense", "nonsense is no address"),
        ("file:///etc", "file:///etc is no address"),
    ] {
        let error = new(urls).unwrap_err().to_string();
        assert!(error.contains(said), "{urls}: {error}");
    }
    assert!(new(&"http://host ".repeat(17)).unwrap_err().to_string().contains("at most 16"));
    assert!(new("https://debuginfod.example/path http://127.0.0.1:8002").is_ok());
}

/// Ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn elfutils_server_gives_debug_files_and_programs() {
    let (program, _) = stripped();
    let files = program.dir.path().join("files");
    std::fs::copy(&program.path, files.join("program")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _server = Server(
        Command::new("debuginfod")
            .args(["-F", "-d", ":memory:", "-p", &port.to_string()])
            .arg(&files)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("debuginfod is installed by the test script"),
    );
    let trace = program.trace(&program.build_id());
    let cache = program.dir.path().join("cache");
    let url = format!("http://127.0.0.1:{port}");
    // It begins with reading what it has.
    let mut found = Vec::new();
    for _ in 0..600 {
        found = look_up(&trace, asking(&url, &cache)).0;
        if found == C_FRAMES {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(found, C_FRAMES);
}
