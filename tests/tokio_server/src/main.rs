//! A server of tokio's that speaks a little HTTP, for `./test-servers` to attach to.
//!
//! ```text
//! grapnel-tokio-server PORT
//! ```
//!
//! Four workers take turns at the tasks of all connections; each request is a task more, whose answer comes through a channel.
//! `/NUMBER` answers with what many small blocks add up to, `/blocking/NUMBER` has a thread do it that ends right
//! afterwards, `/later/NUMBER` does it a few milliseconds later.

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const WORKERS: usize = 4;

/// What a number comes to, by way of blocks of many sizes.
fn answer(number: u64) -> String {
    let kept: Vec<String> = (0..=number % 50)
        .map(|n| {
            let letter = char::from(b'a' + (n % 26) as u8);
            String::from(letter).repeat((16 + number.wrapping_mul(n) % 200) as usize)
        })
        .collect();
    let add = |sum: u64, text: &String| {
        let last = text.bytes().last().unwrap_or_default();
        sum.wrapping_mul(31).wrapping_add(text.len() as u64).wrapping_add(last.into())
    };
    let sum = kept.iter().fold(number, add);
    let mut text = String::new();
    for part in &kept {
        // Writing to a string does not fail.
        let _ = write!(text, "{} ", part.len());
    }
    let _ = writeln!(text, "{sum}");
    text
}

/// The answer to a path; nothing to one that has none.
async fn answer_to(path: &str) -> Option<String> {
    let (way, number) = path.trim_start_matches('/').rsplit_once('/').unwrap_or(("", path.get(1..)?));
    let number = number.parse().ok()?;
    let (send, receive) = oneshot::channel();
    match way {
        "" => drop(tokio::spawn(async move { send.send(answer(number)) })),
        "blocking" => drop(tokio::task::spawn_blocking(move || send.send(answer(number)))),
        "later" => drop(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1 + number % 5)).await;
            send.send(answer(number))
        })),
        _ => return None,
    }
    receive.await.ok()
}

/// One request after the other, until there is none or one that asks for the end.
async fn serve(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (input, mut output) = connection.split();
    let mut input = BufReader::new(input);
    loop {
        let (mut request, mut line, mut keep) = (String::new(), String::new(), None);
        if input.read_line(&mut request).await? == 0 {
            return Ok(());
        }
        while input.read_line(&mut line).await? > 2 {
            let lower = line.trim_end().to_ascii_lowercase();
            if let Some(how) = lower.strip_prefix("connection:") {
                keep = Some(how.trim() == "keep-alive");
            }
            line.clear();
        }
        let mut words = request.split_whitespace().skip(1);
        let (path, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let keep = keep.unwrap_or(version == "HTTP/1.1");
        let (status, body) = match answer_to(path).await {
            Some(body) => ("200 OK", body),
            None => ("404 Not Found", "no such path\n".to_owned()),
        };
        let kept = if keep { "keep-alive" } else { "close" };
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: {kept}\r\n\r\n", body.len());
        output.write_all((head + &body).as_bytes()).await?;
        if !keep {
            return output.shutdown().await;
        }
    }
}

async fn listen(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("up");
    loop {
        let (connection, _) = listener.accept().await?;
        // A client that goes away is no fault of ours.
        tokio::spawn(async move { drop(serve(connection).await) });
    }
}

fn main() -> ExitCode {
    let Some(port) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        eprintln!("usage: grapnel-tokio-server PORT");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_keep_alive(Duration::from_millis(1))
        .enable_all()
        .build();
    let ended = runtime.and_then(|runtime| runtime.block_on(listen(port)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grapnel-tokio-server: {error}");
            ExitCode::FAILURE
        }
    }
}
