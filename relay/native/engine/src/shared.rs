//! What others may look at and change while a worker runs: the forwarder behind its lock, and a few flags.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use usher_relay_path::forwarder::Forwarder;
use usher_relay_path::hop::{PathKey, RouteKey};
use usher_relay_path::routes::Routes;

/// Answers of the store that a worker has not read: more than can be asked for in two seconds.
const MOST_ANSWERS: usize = 32_768;

/// What others may look at while a worker runs.
pub struct Shared {
    forwarder: Mutex<Forwarder>,
    heartbeat: AtomicU64,
    stopping: AtomicBool,
    has_routes: AtomicBool,
    epoch: Instant,
    /// What the store has said of the clients that this worker asked for.
    answers: Mutex<Vec<Answer>>,
}

/// Whose a client path is; None where the store does not know.
pub type Answer = (PathKey, Option<RouteKey>);

impl Shared {
    /// Makes it; `epoch` is the zero of all monotonic times.
    pub fn new(forwarder: Forwarder, epoch: Instant) -> Self {
        let shared = Self {
            forwarder: Mutex::new(forwarder),
            heartbeat: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            has_routes: AtomicBool::new(false),
            epoch,
            answers: Mutex::default(),
        };
        shared.beat(shared.now());
        shared
    }

    /// The forwarder, locked. A thread that panicked left counters and flows as they were.
    pub fn lock(&self) -> MutexGuard<'_, Forwarder> {
        self.forwarder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over what the store has said; the worker is to be woken then. One that stands still hears no more than
    /// [`MOST_ANSWERS`]: later, nothing would wait for them any more.
    pub fn answer(&self, answers: &[Answer]) {
        let mut unread = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_ANSWERS.saturating_sub(unread.len());
        unread.extend_from_slice(&answers[..room.min(answers.len())]);
    }

    /// What the store has said since the last call.
    pub fn take_answers(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Swaps the route table.
    pub fn set_routes(&self, routes: Routes) {
        self.lock().set_routes(routes);
        self.has_routes.store(true, Ordering::Release);
    }

    /// Monotonic seconds, never 0.
    pub fn now(&self) -> f64 {
        1.0 + self.epoch.elapsed().as_secs_f64()
    }

    /// Seconds since the worker last began a round.
    pub fn heartbeat_age(&self) -> f64 {
        self.now() - f64::from_bits(self.heartbeat.load(Ordering::Relaxed))
    }

    /// Tells the worker to end with its next round.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether it has had a route table.
    pub fn has_routes(&self) -> bool {
        self.has_routes.load(Ordering::Acquire)
    }

    /// Notes that a round begins.
    pub fn beat(&self, now: f64) {
        self.heartbeat.store(now.to_bits(), Ordering::Relaxed);
    }
}
