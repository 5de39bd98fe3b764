//! What the data path and a store of mappings hand each other (docs/wire.md sections 4 and 9).
//!
//! Rules:
//! * The data thread asks for addresses and names flows to keep; the control thread takes both, and answers.
//! * Everything is bounded: what finds no room is not asked for, or is named again with its flow's next refresh.
//! * Only confirmed flows are kept, never one on probation; and only the transceiver's *alive* refreshes them.
//! * Mappings loaded at the start answer without a question, each once, and for a minute only.

use std::collections::VecDeque;

use ahash::RandomState;
use hashbrown::HashMap;

use crate::counters::Counters;
use crate::hop::{PathKey, RouteKey};

/// Seconds between two times that a living flow is named.
pub const REFRESH: f64 = 30.0;
/// Questions that wait to be taken.
pub const QUESTIONS: usize = 1_024;
/// Named flows that wait to be taken.
pub const NAMED: usize = 65_536;
/// Seconds for which loaded mappings count.
pub const LOADED_FOR: f64 = 60.0;

/// The flows to keep, the newest last.
#[derive(Default)]
pub struct Named {
    queue: VecDeque<(PathKey, RouteKey)>,
}

impl Named {
    /// Has a confirmed flow kept.
    pub fn name(&mut self, key: &PathKey, route: RouteKey, counters: &mut Counters) {
        if self.queue.len() >= NAMED {
            counters.store_unnamed += 1;
        } else {
            self.queue.push_back((*key, route));
        }
    }

    /// Takes all of them.
    pub fn take(&mut self) -> Vec<(PathKey, RouteKey)> {
        self.queue.drain(..).collect()
    }
}

/// Tells whether a flow that was alive at `before` and is so now is to be named again.
///
/// Time is cut into pieces of [`REFRESH`], for each client port at other moments, so that flows need not note when they
/// were named, and those that were made together are not named together for ever.
pub fn refresh_is_due(key: &PathKey, before: f64, now: f64) -> bool {
    let phase = f64::from(key[3]) % REFRESH;
    let piece = |time: f64| ((time + phase) / REFRESH).floor() as i64;
    piece(before) != piece(now)
}

/// One data thread's side, but for the named flows.
pub struct Exchange {
    capacity: usize,
    questions: VecDeque<PathKey>,
    loaded: HashMap<PathKey, RouteKey, RandomState>,
    loaded_until: f64,
    has_news: bool,
}

impl Exchange {
    /// Makes one into which at most `capacity` mappings may be loaded.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            questions: VecDeque::new(),
            loaded: HashMap::with_hasher(RandomState::new()),
            loaded_until: 0.0,
            has_news: false,
        }
    }

    /// Asks the store whose an address is; false when too many questions wait.
    pub fn ask(&mut self, path: &PathKey, counters: &mut Counters) -> bool {
        if self.questions.len() >= QUESTIONS {
            counters.store_skipped += 1;
            return false;
        }
        self.questions.push_back(*path);
        counters.store_asked += 1;
        self.has_news = true;
        true
    }

    /// Whether there were questions since this was last called.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Takes the addresses that are asked for.
    pub fn take_questions(&mut self) -> Vec<PathKey> {
        self.questions.drain(..).collect()
    }

    /// Takes mappings that count until they are used, for a while.
    pub fn load(&mut self, mappings: impl Iterator<Item = (PathKey, RouteKey)>, now: f64) {
        self.loaded_until = now + LOADED_FOR;
        if self.loaded.capacity() == 0 {
            // All at once, and touched as it is used: a table that grows would hold up packets.
            self.loaded.reserve(self.capacity);
        }
        for (path, route) in mappings {
            if self.loaded.len() >= self.capacity {
                return;
            }
            self.loaded.insert(path, route);
        }
    }

    /// The route that was loaded for an address, which is then forgotten.
    pub fn loaded(&mut self, path: &PathKey) -> Option<RouteKey> {
        if self.loaded.is_empty() { None } else { self.loaded.remove(path) }
    }

    /// Forgets what was loaded long ago.
    pub fn expire(&mut self, now: f64) {
        if !self.loaded.is_empty() && now >= self.loaded_until {
            self.loaded = HashMap::with_hasher(RandomState::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_flow_is_due_once_in_each_piece_of_time_whenever_it_is_alive() {
        for port in [0, 7, 29, 30, 255] {
            let mut key = [0; 20];
            key[3] = port;
            let due = (0..6_000).filter(|&tenth| {
                let now = 1_000.0 + 0.1 * f64::from(tenth);
                refresh_is_due(&key, now - 0.1, now)
            });
            assert_eq!(due.count(), 20);
        }
    }

    #[test]
    fn queues_are_bounded() {
        let (mut counters, mut exchange, mut named) = (Counters::default(), Exchange::new(3), Named::default());
        let taken = (0..QUESTIONS + 5).filter(|_| exchange.ask(&[1; 20], &mut counters)).count();
        assert_eq!((taken, counters.store_skipped, exchange.take_questions().len()), (QUESTIONS, 5, QUESTIONS));
        for _ in 0..NAMED + 5 {
            named.name(&[1; 20], [1; 7], &mut counters);
        }
        assert_eq!((named.take().len(), counters.store_unnamed), (NAMED, 5));
        exchange.load((0..9).map(|port| ([port; 20], [1; 7])), 10.0);
        assert_eq!((exchange.loaded(&[2; 20]), exchange.loaded(&[3; 20])), (Some([1; 7]), None));
        exchange.expire(10.0 + LOADED_FOR);
        assert_eq!(exchange.loaded(&[1; 20]), None);
    }

    #[test]
    fn the_table_of_what_is_loaded_never_grows_while_it_is_filled() {
        let mut exchange = Exchange::new(100_000);
        let path = |number: u32| {
            let mut path = [0; 20];
            path[16..].copy_from_slice(&number.to_be_bytes());
            path
        };
        exchange.load(std::iter::once((path(0), [1; 7])), 10.0);
        let before = exchange.loaded.allocation_size();
        exchange.load((1..200_000).map(|number| (path(number), [1; 7])), 10.0);
        assert_eq!((exchange.loaded.len(), exchange.loaded.allocation_size()), (100_000, before));
    }
}
