//! `grapnel top`: what a process holds, while it is recorded, in a terminal.
//!
//! One thread reads the trace as it grows and makes views of it (`feed`), one looks up names of what is shown (`names`), one
//! talks to the recording (`actions`), one each waits for keys and for signals (`signals`). All they have to say comes as a
//! message to the one that draws, which never waits for anything else. The recording notices nothing: the trace is read from
//! the file that is written anyway, by threads that stand back for others.

mod actions;
mod app;
mod bases;
mod draw;
mod feed;
mod figures;
mod guard;
mod names;
mod once;
mod screen;
mod signals;
mod target;
mod trend;
mod view;

use crate::symbols::{SymbolArgs, SymbolArgsError};
use actions::Heard;
use app::{App, Wish};
use clap::Args;
use feed::{Feed, Told};
use names::{Found, Lookup, Names};
use ratatui::crossterm::event::{self, Event};
use screen::{Screen, ScreenError};
use signals::Signal;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use target::{Target, TargetError};
use view::{Order, View};

/// Options of `grapnel top`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    /// A process that is recorded, or the grapnel that records it; or a trace, which may still be written
    #[arg(value_name = "PID|TRACE")]
    target: PathBuf,
    /// Print one view of what there is now as text, and end
    #[arg(long)]
    once: bool,
    /// Sites that --once prints
    #[arg(long, value_name = "N", default_value_t = 20, requires = "once")]
    top: usize,
    /// What sites are sorted by
    #[arg(long, value_enum, value_name = "BY", default_value_t)]
    sort: Order,
    /// How often the view changes, at most
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0.5")]
    every: Duration,
    #[command(flatten)]
    symbols: SymbolArgs,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Ok(_) => Err("it is not between 0.1 and 3600 seconds".into()),
        Err(_) => Err("there is no number".into()),
    }
}

/// Why there is nothing to see.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TopError {
    #[error(transparent)]
    Target(#[from] TargetError),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    #[error(transparent)]
    Screen(#[from] ScreenError),
    /// What goes on beside the drawing can't.
    #[error("a thread can't be started: {0}")]
    Thread(io::Error),
    /// The text can't be written.
    #[error("the view can't be written: {0}")]
    Write(io::Error),
    /// A thread of this process came to an end.
    #[error("the view ended early, by a fault in grapnel itself; the recording goes on")]
    Fault,
}

/// What comes to the one that draws.
#[derive(Debug)]
enum Message {
    View(Box<View>),
    Names(Found),
    Heard(Heard),
    Input(Event),
    /// No keys will come any more.
    Deaf,
    /// A thread ended by a fault.
    Fault,
    Signal(Signal),
}

/// Shows what a process holds until it is told to end.
///
/// # Errors
/// When there is nothing to show, or nowhere to show it.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, TopError> {
    // What is fetched is not worth a line across the picture.
    let search = args.symbols.search_saying(if args.once { crate::opened::say } else { |_| () })?;
    let target = Target::find(&args.target)?;
    let recorded = target.recorded;
    let mut feed = Feed::new(target.reader, target.file, recorded.is_some());
    if args.once {
        feed.read_all();
        return once::print(&mut feed, args.sort, args.top, search).map_err(TopError::Write);
    }
    // Before there are threads.
    guard::start();
    let (send, received) = channel();
    // Before the terminal is taken: from then on no signal ends this process without giving it back.
    signals::start(send.clone()).map_err(TopError::Thread)?;
    let screen = Screen::new()?;
    let (to_feed, orders) = channel();
    let (to_names, lookups) = channel();
    let (to_actions, actions) = channel();
    let also = to_feed.clone();
    work("trace", &send, move |to| feed.run(&orders, to))?;
    work("names", &send, move |to| names::look_up(search, &lookups, to))?;
    work("actions", &send, move |to| match recorded {
        Some(pid) => actions::run(pid, &actions, to, &also),
        None => actions::alone(&actions, to, &also),
    })?;
    work("keys", &send, read_keys)?;
    let colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let app = App::new(args.sort, recorded.is_some(), colors);
    let threads = Threads { received, to_feed, to_names, to_actions };
    let (names, every) = (Names::default(), args.every);
    let ended = Top { app, names, screen, threads, every, asked: false, ask_again: false }.run()?;
    if let Some(number) = ended {
        signals::end_by(number);
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a thread that stands back for others, and says so if it ends by a fault.
fn work(
    name: &str,
    send: &Sender<Message>,
    work: impl FnOnce(&Sender<Message>) + Send + 'static,
) -> Result<(), TopError> {
    /// Behind the program, and behind what records it.
    const NICE: i32 = 10;
    let send = send.clone();
    let work = move || {
        // Of this thread alone, on Linux. Where it may not be changed it goes without.
        let _ = rustix::process::nice(NICE);
        // The hook for panics has given the terminal back by then.
        if catch_unwind(AssertUnwindSafe(|| work(&send))).is_err() {
            drop(send.send(Message::Fault));
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop).map_err(TopError::Thread)
}

fn read_keys(send: &Sender<Message>) {
    loop {
        let message = event::read().map_or(Message::Deaf, Message::Input);
        let is_deaf = matches!(message, Message::Deaf);
        if send.send(message).is_err() || is_deaf {
            return;
        }
    }
}

/// The other threads.
struct Threads {
    received: Receiver<Message>,
    to_feed: Sender<Told>,
    to_names: Sender<Lookup>,
    to_actions: Sender<actions::Action>,
}

/// The one that draws.
struct Top {
    app: App,
    names: Names,
    screen: Screen,
    threads: Threads,
    every: Duration,
    /// A view is on its way.
    asked: bool,
    /// It isn't what is wanted any more.
    ask_again: bool,
}

/// What follows on a message.
enum Next {
    Wait,
    Draw,
    Look,
    /// By a signal, if there is a number.
    End(Option<i32>),
}

impl Top {
    /// Goes on until it is told to end; by a signal, if there is a number.
    fn run(mut self) -> Result<Option<i32>, TopError> {
        let mut next_look = Instant::now();
        loop {
            let now = Instant::now();
            // There is one view on its way at most: making one takes as long as there are sites.
            if !self.asked && now >= next_look {
                self.threads.to_feed.send(Told::Look(self.app.ask)).map_err(|_| TopError::Fault)?;
                self.asked = true;
                // No more than a tenth of a processor.
                next_look = now + self.every.max(self.app.view.cost * 10);
            }
            let patience = if self.asked { self.every } else { next_look.saturating_duration_since(now) };
            let mut message = match self.threads.received.recv_timeout(patience) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Err(TopError::Fault),
            };
            let mut draw = false;
            // All that has come is one picture.
            while let Some(one) = message {
                match self.take(one)? {
                    Next::Wait => {}
                    Next::Draw => draw = true,
                    Next::Look => {
                        (draw, next_look) = (true, Instant::now());
                        self.ask_again |= self.asked;
                    }
                    Next::End(number) => return Ok(number),
                }
                message = self.threads.received.try_recv().ok();
            }
            if draw {
                self.draw()?;
            }
        }
    }

    fn draw(&mut self) -> Result<(), TopError> {
        let Self { app, names, screen, threads, .. } = self;
        screen.draw(|buffer| draw::draw(buffer, app, names))?;
        if let Some(lookup) = names.take_wanted(&app.view.modules) {
            // Without that thread frames keep their addresses.
            drop(threads.to_names.send(lookup));
        }
        Ok(())
    }

    fn take(&mut self, message: Message) -> Result<Next, TopError> {
        Ok(match message {
            Message::View(view) => {
                self.app.show(*view);
                self.asked = false;
                if std::mem::take(&mut self.ask_again) { Next::Look } else { Next::Draw }
            }
            Message::Names(found) => {
                self.names.learn(found);
                Next::Draw
            }
            Message::Heard(heard) => {
                // How the recording stands is heard every second, which is no reason for a view that takes longer.
                let is_asked_for = matches!(heard, Heard::Said(_));
                self.app.hear(heard);
                if is_asked_for { Next::Look } else { Next::Draw }
            }
            Message::Fault => return Err(TopError::Fault),
            Message::Input(Event::Key(key)) => match self.app.key(key) {
                Wish::Nothing => Next::Wait,
                Wish::Draw => Next::Draw,
                Wish::Look => Next::Look,
                Wish::DrawAnew => {
                    self.screen.forget()?;
                    Next::Look
                }
                Wish::CountFromStart => {
                    drop(self.threads.to_feed.send(Told::CountFromStart));
                    Next::Look
                }
                Wish::Act(action) => {
                    drop(self.threads.to_actions.send(action));
                    Next::Draw
                }
                Wish::Stop => {
                    signals::stop_all();
                    Next::Wait
                }
                Wish::Quit => Next::End(None),
                Wish::Interrupt => Next::End(Some(signal_hook::consts::SIGINT)),
            },
            Message::Input(_) => Next::Draw,
            // The terminal is gone, or says nothing that can be understood.
            Message::Deaf => Next::End(None),
            Message::Signal(Signal::End(number)) => Next::End(Some(number)),
            Message::Signal(Signal::Stop) => {
                screen::give_back();
                signals::stop();
                Next::Wait
            }
            Message::Signal(Signal::Continue) => {
                self.screen.take_again()?;
                Next::Look
            }
        })
    }
}
