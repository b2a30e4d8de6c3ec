//! A server that takes requests as engines for profiles do: it keeps each, and answers as a test says.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method, path and version.
    pub line: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// All of it.
    pub body: Vec<u8>,
}

impl Request {
    /// The value of a header that comes once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter().filter(|(known, _)| known == name);
        let (_, value) = all.next()?;
        assert!(all.next().is_none(), "{name} comes twice: {:?}", self.headers);
        Some(value)
    }
}

/// What is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A status with its reason, headers as they are written, and a body.
    Say(&'static str, String, Vec<u8>),
    /// Nothing, as long as somebody waits for it.
    Silence,
    /// A body without an end.
    Endless,
}

impl Answer {
    /// A status and nothing else.
    pub fn status(line: &'static str) -> Self {
        Self::Say(line, String::new(), Vec::new())
    }

    fn write(self, stream: &mut TcpStream) -> std::io::Result<()> {
        match self {
            Self::Say(status, headers, body) => {
                let len = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\n{headers}Content-Length: {len}\r\nConnection: close\r\n\r\n"
                )?;
                stream.write_all(&body)
            }
            Self::Silence => stream.read(&mut [0]).map(drop),
            Self::Endless => {
                write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
                loop {
                    stream.write_all(&[b'x'; 1 << 16])?;
                }
            }
        }
    }
}

/// The server. It goes with the test's process.
#[derive(Debug)]
pub struct Engine {
    /// Where it is.
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Engine {
    /// Answers each request, of which `answer` is told the number too, from 0.
    pub fn new(answer: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (kept, answer) = (Arc::clone(&requests), Arc::new(answer));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                // Who goes away in the middle isn't answered.
                std::thread::spawn(move || -> Option<()> {
                    let request = read(&mut stream)?;
                    let number = {
                        let mut kept = kept.lock().ok()?;
                        kept.push(request.clone());
                        kept.len() - 1
                    };
                    answer(number, &request).write(&mut stream).ok()
                });
            }
        });
        Self { address, requests }
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no answer panics").clone()
    }
}

fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut all = Vec::new();
    let mut buffer = [0; 1 << 16];
    loop {
        let head = all.windows(4).position(|at| at == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8(all[..head].to_vec()).ok()?;
            let mut lines = text.split("\r\n");
            let line = lines.next()?.to_owned();
            let pair = |line: &str| {
                let (name, value) = line.split_once(':')?;
                Some((name.to_ascii_lowercase(), value.trim().to_owned()))
            };
            let headers: Vec<(String, String)> = lines.map(pair).collect::<Option<_>>()?;
            let mut request = Request { line, headers, body: Vec::new() };
            let len: usize = request.header("content-length")?.parse().ok()?;
            let body = &all[head + 4..];
            if body.len() >= len {
                request.body = body[..len].to_vec();
                return Some(request);
            }
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            len => all.extend_from_slice(&buffer[..len]),
        }
    }
}
