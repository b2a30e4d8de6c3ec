//! A bounded number of connections, each with a thread of its own. One that says nothing goes for a new one.

use super::LAST_PATIENCE;
use crate::places::{Place, Places};
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections that may be open at once. A browser keeps some open before it needs them.
pub(crate) const MAX_CONNECTIONS: usize = 32;
/// How long nobody is taken after a connection could not be, as when no descriptors are left.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection on which no whole request has come yet. As long as that is so, it can be closed for a new one.
#[derive(Clone, Debug)]
pub(crate) struct Unheard(Arc<Mutex<Option<TcpStream>>>);

impl Unheard {
    fn new(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Some(stream.try_clone()?)))))
    }

    /// What can be closed, once: `None` if the request came, the connection was closed, or nobody handles it any more.
    pub(super) fn take(&self) -> Option<TcpStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// Forgets a connection when its thread is done with it, also by a panic: a second descriptor would keep it open.
struct Forget(Unheard);

impl Drop for Forget {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// Takes connections until the listener is no more, and handles each in a thread of its own. Where all places are taken, the
/// one goes that has said nothing for the longest time, so that nobody is kept out by idle ones.
pub(crate) fn listen(
    listener: &TcpListener,
    handle: impl Fn(TcpStream, &Unheard) + Clone + Send + 'static,
) -> io::Error {
    let places = Places::new(MAX_CONNECTIONS);
    let mut waiting = VecDeque::new();
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_final(&error) => return error,
            Err(error) => {
                if !is_of_one(&error) {
                    std::thread::sleep(PAUSE);
                }
                continue;
            }
        };
        // One more than can be served is closed at once.
        let Some(place) = places.take().or_else(|| make_room(&places, &mut waiting)) else { continue };
        let Ok(unheard) = Unheard::new(&stream) else { continue };
        waiting.retain(|one: &Unheard| !one.is_over());
        waiting.push_back(unheard.clone());
        let handle = handle.clone();
        let unheard = Forget(unheard);
        let work = move || {
            let _place = place;
            handle(stream, &unheard.0);
        };
        // Without the thread the connection is closed, and its place free.
        drop(std::thread::Builder::new().name("http".into()).spawn(work));
    }
}

/// Closes the oldest connection without a request, and waits for its place.
fn make_room(places: &Places, waiting: &mut VecDeque<Unheard>) -> Option<Place> {
    let oldest = std::iter::from_fn(|| waiting.pop_front()).find_map(|one| one.take())?;
    // It may be closed already.
    drop(oldest.shutdown(Shutdown::Both));
    let end = Instant::now() + LAST_PATIENCE;
    loop {
        if let Some(place) = places.take() {
            return Some(place);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether there will be no connection any more. All others pass: descriptors or memory that are short for a while, and what
/// the network had to say of one connection.
fn is_final(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK))
}

/// Whether the next connection may be there already.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Body, PATIENCE, answer, read};
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_fault_in_an_answer_takes_no_place_away() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let handle = move |mut stream: TcpStream, _: &Unheard| {
            let number = served.fetch_add(1, Ordering::Relaxed);
            assert!(number >= MAX_CONNECTIONS, "a fault");
            drop(answer(&mut stream, "200 OK", "text/plain", (Body::Sent, b"here")));
        };
        std::thread::spawn(move || drop(listen(&listener, handle)));
        let ask = || {
            let mut text = String::new();
            let read = TcpStream::connect(address).unwrap().read_to_string(&mut text);
            read.is_ok() && text.ends_with("here")
        };
        for _ in 0..MAX_CONNECTIONS {
            assert!(!ask());
        }
        // The last of them may still be on its way out.
        assert!((0..3000).any(|_| ask() || {
            std::thread::sleep(Duration::from_millis(20));
            false
        }));
    }

    #[test]
    fn idle_connections_keep_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let handle = |mut stream: TcpStream, unheard: &Unheard| {
            let parse = |head: &[u8]| (head == b"ask").then_some(Ok(()));
            if read(&mut stream, unheard, parse).is_ok() {
                drop(answer(&mut stream, "200 OK", "text/plain", (Body::Sent, b"here")));
            }
        };
        std::thread::spawn(move || drop(listen(&listener, handle)));
        let idle: Vec<_> = (0..2 * MAX_CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let start = Instant::now();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"ask").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("here"), "{text}");
        assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
        drop(idle);
    }
}
