//! Where requests wait for the drain.

use super::protocol::{Refusal, Request, Status};
use super::snapshot::SnapshotSource;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

/// Requests that may wait at once.
const MOST: usize = 64;

/// What the drain gives.
#[derive(Debug)]
pub(crate) enum Reply {
    /// How the recording stands.
    Status(Status),
    /// The time of the moment that was marked.
    Marked(u64),
    /// It is done.
    Done,
    /// Where the trace up to now is.
    Snapshot(SnapshotSource),
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) request: Request,
    reply: SyncSender<Result<Reply, Refusal>>,
}

impl Order {
    /// Answers. Whoever asked may have gone.
    pub(crate) fn answer(self, reply: Result<Reply, Refusal>) {
        drop(self.reply.try_send(reply));
    }
}

/// The requests that wait.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// All that the drain looks at when nobody asks.
    waiting: AtomicBool,
    orders: Mutex<Option<Vec<Order>>>,
}

impl Desk {
    /// From here on requests are taken.
    pub(crate) fn open(&self) {
        if let Ok(mut orders) = self.orders.lock() {
            let _ = orders.get_or_insert_default();
        }
    }

    /// Nothing more is taken; who waits hears that it is over.
    pub(crate) fn close(&self) {
        if let Ok(mut orders) = self.orders.lock() {
            *orders = None;
        }
    }

    /// Those that wait: the drain's question.
    #[inline]
    pub(crate) fn take(&self) -> Vec<Order> {
        if !self.waiting.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.waiting.store(false, Ordering::Relaxed);
        // Set before the lock is let go of: what comes from here on says so anew.
        self.orders
            .lock()
            .ok()
            .and_then(|mut orders| Some(std::mem::take(orders.as_mut()?)))
            .unwrap_or_default()
    }

    /// Asks the drain, and waits for what it says.
    ///
    /// # Errors
    /// When there is no drain, or it does not answer.
    pub(crate) fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        let patience = request.patience();
        self.leave(request)?.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => Refusal::Busy,
            RecvTimeoutError::Disconnected => Refusal::Over,
        })?
    }

    fn leave(&self, request: Request) -> Result<Receiver<Result<Reply, Refusal>>, Refusal> {
        let (reply, receive) = sync_channel(1);
        let mut orders = self.orders.lock().map_err(|_| Refusal::Over)?;
        let orders = orders.as_mut().ok_or(Refusal::Over)?;
        if orders.len() >= MOST {
            return Err(Refusal::Busy);
        }
        orders.push(Order { request, reply });
        self.waiting.store(true, Ordering::Relaxed);
        Ok(receive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_answered_or_told_that_it_is_over() {
        let desk = Desk::default();
        assert_eq!(desk.ask(Request::Status {}).unwrap_err(), Refusal::Over);
        desk.open();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| desk.ask(Request::Status {}));
            let order = loop {
                if let Some(order) = desk.take().pop() {
                    break order;
                }
            };
            order.answer(Ok(Reply::Status(Status { grapnel: 7, ..Status::default() })));
            let Ok(Reply::Status(status)) = asked.join().unwrap() else { panic!("no status") };
            assert_eq!(status.grapnel, 7);
        });
        let waiting: Vec<_> = (0..MOST).map(|_| desk.leave(Request::Status {}).unwrap()).collect();
        assert_eq!(desk.leave(Request::Status {}).unwrap_err(), Refusal::Busy);
        desk.close();
        assert!(waiting.iter().all(|waiting| waiting.recv().is_err()));
        assert!(desk.take().is_empty());
    }
}
