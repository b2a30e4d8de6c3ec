//! What is being looked at, and what keys do.

use super::actions::{Action, Heard};
use super::feed::MARK_PREFIX;
use super::view::{Ask, Order, State, View};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::{Duration, Instant};

/// How long a message stands where else it says what growth is counted from.
const PATIENCE: Duration = Duration::from_secs(4);

/// Which page is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    #[default]
    Sites,
    Stack,
    Help,
}

/// What is to be done about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nothing.
    Nothing,
    /// To draw again what is there.
    Draw,
    /// To see what there is now.
    Look,
    /// To draw everything anew.
    DrawAnew,
    /// To count growth from the recording's beginning.
    CountFromStart,
    Act(Action),
    /// To stop for a while.
    Stop,
    Quit,
    /// To end as by Ctrl-C.
    Interrupt,
}

/// The state of the view.
#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) view: View,
    pub(super) ask: Ask,
    pub(super) page: Page,
    /// The page that is under the help.
    before_help: Page,
    /// The site that the cursor is on; it stays there when the order changes. Nothing: the first one, whichever it is.
    pub(super) chosen: Option<u32>,
    /// The frame that is first on the page of a stack.
    pub(super) level: usize,
    /// What is shown stays as it is.
    pub(super) frozen: bool,
    /// The recording is paused.
    pub(super) paused: bool,
    /// Somebody records.
    pub(super) recorded: bool,
    /// For some seconds.
    message: Option<(String, Instant)>,
    pub(super) colors: bool,
    /// The number of the last mark that was asked for.
    marks: u32,
    /// The rows that there was room for last.
    pub(super) room: usize,
}

impl App {
    pub(super) fn new(order: Order, recorded: bool, colors: bool) -> Self {
        Self { ask: Ask { order, stack: None }, recorded, colors, ..Self::default() }
    }

    /// Takes in what there is now.
    pub(super) fn show(&mut self, view: View) {
        if !self.frozen {
            self.view = view;
        }
    }

    /// Takes in what came of an action.
    pub(super) fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Said(text) => self.say(text),
            Heard::Paused(paused) => self.paused = paused,
            Heard::Gone => (self.recorded, self.paused) = (false, false),
        }
    }

    pub(super) fn say(&mut self, text: String) {
        self.message = Some((text, Instant::now()));
    }

    /// What was said just now.
    pub(super) fn message(&self) -> Option<&str> {
        self.message.as_ref().filter(|(_, since)| since.elapsed() < PATIENCE).map(|(text, _)| text.as_str())
    }

    /// The place of the cursor among the rows.
    pub(super) fn cursor(&self) -> usize {
        let of = |stack: u32| self.view.rows.iter().position(|row| row.stack == stack);
        self.chosen.and_then(of).unwrap_or(0)
    }

    /// What is to be done about a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Interrupt,
                KeyCode::Char('z') => Wish::Stop,
                KeyCode::Char('l') => Wish::DrawAnew,
                _ => Wish::Nothing,
            };
        }
        self.message = None;
        match (key.code, self.page) {
            (KeyCode::Char('q'), _) => return Wish::Quit,
            (KeyCode::Char('?' | 'h'), Page::Sites | Page::Stack) => {
                (self.before_help, self.page) = (self.page, Page::Help);
            }
            (_, Page::Help) => self.page = self.before_help,
            (KeyCode::Char(' '), _) => {
                self.frozen = !self.frozen;
                return Wish::Look;
            }
            (KeyCode::Char('m'), _) => {
                // The view may be older than the last mark.
                self.marks = self.view.next_mark.max(self.marks.saturating_add(1));
                return self.act(Action::Mark(format!("{MARK_PREFIX}{}", self.marks)));
            }
            (KeyCode::Char('c'), _) => return Wish::CountFromStart,
            (KeyCode::Char('w'), _) => return self.act(Action::Snapshot),
            (KeyCode::Char('p'), _) => return self.act(Action::Pause(!self.paused)),
            (code, Page::Sites) => return self.key_for_sites(code),
            (code, Page::Stack) => return self.key_for_stack(code),
        }
        Wish::Draw
    }

    fn act(&mut self, action: Action) -> Wish {
        if let State::Over(reason) = &self.view.state
            && !matches!(action, Action::Mark(_))
        {
            self.say(format!("the recording has {reason}"));
            return Wish::Draw;
        }
        Wish::Act(action)
    }

    fn key_for_sites(&mut self, code: KeyCode) -> Wish {
        let (last, page) = (self.view.rows.len().saturating_sub(1), self.room.max(1));
        let to = match code {
            KeyCode::Char('s') => {
                self.ask.order = self.ask.order.next();
                return Wish::Look;
            }
            KeyCode::Enter | KeyCode::Right => return self.open_stack(),
            code => moved(code, self.cursor(), page, last),
        };
        let Some(to) = to else { return Wish::Nothing };
        // On the first row it stays on the first row.
        self.chosen = (to > 0).then(|| self.view.rows.get(to).map(|row| row.stack)).flatten();
        Wish::Draw
    }

    fn open_stack(&mut self) -> Wish {
        let Some(row) = self.view.rows.get(self.cursor()) else { return Wish::Nothing };
        let stack = row.stack;
        (self.page, self.level) = (Page::Stack, 0);
        (self.ask.stack, self.chosen) = (Some(stack), Some(stack));
        // What is shown stays as it is, but for what was not shown before.
        self.frozen = false;
        Wish::Look
    }

    fn key_for_stack(&mut self, code: KeyCode) -> Wish {
        if matches!(code, KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Enter) {
            (self.page, self.ask.stack) = (Page::Sites, None);
            return Wish::Look;
        }
        let levels = self.view.drill.as_ref().map_or(0, |drill| drill.levels.len());
        let page = self.room.max(1);
        let Some(to) = moved(code, self.level, page, levels.saturating_sub(1)) else {
            return Wish::Nothing;
        };
        self.level = to;
        Wish::Draw
    }
}

/// Where a key that moves leads to from `at`; nothing for another key.
fn moved(code: KeyCode, at: usize, page: usize, last: usize) -> Option<usize> {
    let to = match code {
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
        KeyCode::PageUp => at.saturating_sub(page),
        KeyCode::PageDown => at.saturating_add(page),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => last,
        _ => return None,
    };
    Some(to.min(last))
}

#[cfg(test)]
mod tests {
    use super::super::view::Row;
    use super::*;

    fn key(app: &mut App, code: KeyCode) -> Wish {
        app.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn view(stacks: &[u32]) -> View {
        let rows = stacks.iter().map(|&stack| Row { stack, ..Row::default() }).collect();
        View { rows, state: State::Recording, next_mark: 4, ..View::default() }
    }

    #[test]
    fn the_cursor_follows_its_site() {
        let mut app = App::new(Order::Growth, true, false);
        app.show(view(&[10, 20, 30]));
        key(&mut app, KeyCode::Down);
        assert_eq!(app.cursor(), 1);
        app.show(view(&[30, 10, 5, 20]));
        assert_eq!(app.cursor(), 3);
        // Its site is gone: the first.
        app.show(view(&[30, 10]));
        assert_eq!(app.cursor(), 0);
        // On the first row it stays with the row.
        key(&mut app, KeyCode::Home);
        app.show(view(&[7, 30]));
        assert_eq!(app.cursor(), 0);
        key(&mut app, KeyCode::End);
        key(&mut app, KeyCode::PageDown);
        assert_eq!(app.cursor(), 1);
        key(&mut app, KeyCode::Char('k'));
        key(&mut app, KeyCode::PageUp);
        assert_eq!(app.cursor(), 0);
    }

    #[test]
    fn a_stack_is_opened_and_left() {
        let mut app = App::new(Order::Growth, true, false);
        assert_eq!(key(&mut app, KeyCode::Enter), Wish::Nothing);
        app.show(view(&[10, 20]));
        key(&mut app, KeyCode::Down);
        assert_eq!(key(&mut app, KeyCode::Enter), Wish::Look);
        assert_eq!((app.page, app.ask.stack), (Page::Stack, Some(20)));
        assert_eq!(key(&mut app, KeyCode::Char('?')), Wish::Draw);
        assert_eq!(app.page, Page::Help);
        key(&mut app, KeyCode::Char('x'));
        assert_eq!(app.page, Page::Stack);
        assert_eq!(key(&mut app, KeyCode::Esc), Wish::Look);
        assert_eq!((app.page, app.ask.stack, app.cursor()), (Page::Sites, None, 1));
    }

    #[test]
    fn what_is_frozen_stays_and_what_is_asked_for_comes() {
        let mut app = App::new(Order::Live, true, false);
        app.show(view(&[10]));
        key(&mut app, KeyCode::Char(' '));
        app.show(view(&[20]));
        assert_eq!(app.view.rows[0].stack, 10);
        assert_eq!(key(&mut app, KeyCode::Char(' ')), Wish::Look);
        app.show(view(&[20]));
        assert_eq!(app.view.rows[0].stack, 20);
        for name in ["top-4", "top-5"] {
            assert_eq!(key(&mut app, KeyCode::Char('m')), Wish::Act(Action::Mark(name.into())));
        }
        assert_eq!(key(&mut app, KeyCode::Char('p')), Wish::Act(Action::Pause(true)));
        app.hear(Heard::Paused(true));
        assert_eq!(key(&mut app, KeyCode::Char('p')), Wish::Act(Action::Pause(false)));
        assert_eq!(key(&mut app, KeyCode::Char('w')), Wish::Act(Action::Snapshot));
        app.show(View { state: State::Over("ended".into()), ..view(&[20]) });
        assert_eq!(key(&mut app, KeyCode::Char('w')), Wish::Draw);
        assert_eq!(app.message(), Some("the recording has ended"));
        let control = |app: &mut App, c| app.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL));
        assert_eq!((control(&mut app, 'c'), control(&mut app, 'z')), (Wish::Interrupt, Wish::Stop));
        assert_eq!(key(&mut app, KeyCode::Char('q')), Wish::Quit);
    }

    #[test]
    fn the_order_goes_round() {
        let mut app = App::new(Order::Growth, true, false);
        for order in [Order::Live, Order::Blocks, Order::Bytes, Order::Calls, Order::Growth] {
            assert_eq!(key(&mut app, KeyCode::Char('s')), Wish::Look);
            assert_eq!(app.ask.order, order);
        }
    }
}
