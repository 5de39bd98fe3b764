//! Finds flows by their key, and groups of flows by what they share.
//!
//! Both are hash tables of chains. The chains run through the flows themselves, so an index is no more than an array of
//! first flows: it is as bounded as the flow map, never grows, and what was never used costs no memory. The hash is keyed,
//! because senders choose their addresses, ufrags and SSRCs.

use std::hash::Hash;
use std::marker::PhantomData;

use ahash::RandomState;

use crate::flow::{Flow, FlowId, Link, NONE};
use crate::hop::PathKey;
use crate::lines::Linked;
use crate::slots::Slots;

/// The first flow of each chain.
struct Chains {
    firsts: Vec<FlowId>,
    hasher: RandomState,
}

impl Chains {
    fn new(capacity: u32) -> Self {
        // At most one flow a chain on average.
        let firsts = vec![NONE; (capacity.max(1) as usize).next_power_of_two()];
        Self { firsts, hasher: RandomState::new() }
    }

    fn place(&self, key: &impl Hash) -> usize {
        self.hasher.hash_one(key) as usize & (self.firsts.len() - 1)
    }
}

/// The flow of each path key.
pub(crate) struct KeyIndex {
    chains: Chains,
}

impl KeyIndex {
    pub fn new(capacity: u32) -> Self {
        Self { chains: Chains::new(capacity) }
    }

    pub fn find(&self, slots: &Slots, key: &PathKey) -> Option<FlowId> {
        let mut id = self.chains.firsts[self.chains.place(key)];
        while id != NONE {
            let flow = &slots[id];
            if flow.key == *key {
                return Some(id);
            }
            id = flow.next_in_bucket;
        }
        None
    }

    /// Takes in a flow whose key has none.
    pub fn add(&mut self, slots: &mut Slots, id: FlowId) {
        let place = self.chains.place(&slots[id].key);
        slots[id].next_in_bucket = self.chains.firsts[place];
        self.chains.firsts[place] = id;
    }

    pub fn remove(&mut self, slots: &mut Slots, id: FlowId) {
        let place = self.chains.place(&slots[id].key);
        let next = slots[id].next_in_bucket;
        let mut before = self.chains.firsts[place];
        if before == id {
            self.chains.firsts[place] = next;
            return;
        }
        while slots[before].next_in_bucket != id {
            before = slots[before].next_in_bucket;
        }
        slots[before].next_in_bucket = next;
    }
}

/// Says what the flows of a group share.
pub(crate) trait Grouped: Linked {
    type Key: Hash + PartialEq;

    fn key(flow: &Flow) -> Self::Key;
}

/// Groups of flows with the same key, in each the latest first.
///
/// Only the latest of a group stands in a chain. It has none before it in its group, so there its link names the latest
/// of the next group in the chain instead.
pub(crate) struct Groups<G> {
    chains: Chains,
    by: PhantomData<G>,
}

/// Where a group stands: its latest flow (or `NONE`), and the latest of the group before it in the chain (or `NONE`).
struct Found {
    place: usize,
    before: FlowId,
    latest: FlowId,
}

impl<G: Grouped> Groups<G> {
    pub fn new(capacity: u32) -> Self {
        Self { chains: Chains::new(capacity), by: PhantomData }
    }

    /// The flows of a group, the latest first.
    pub fn iter<'a>(&self, slots: &'a Slots, key: &G::Key) -> impl Iterator<Item = FlowId> + use<'a, G> {
        let next = |id: FlowId| (id != NONE).then_some(id);
        std::iter::successors(next(self.find(slots, key).latest), move |&id| next(G::of(&slots[id]).after))
    }

    /// Makes a flow that is in no group the latest of its group.
    pub fn add(&mut self, slots: &mut Slots, id: FlowId) {
        let found = self.find(slots, &G::key(&slots[id]));
        let next_group = if found.latest == NONE {
            NONE
        } else {
            let head = G::link(&mut slots[found.latest]);
            std::mem::replace(&mut head.before, id)
        };
        *G::link(&mut slots[id]) = Link { before: next_group, after: found.latest };
        self.chain(slots, &found, id);
    }

    pub fn remove(&mut self, slots: &mut Slots, id: FlowId) {
        let found = self.find(slots, &G::key(&slots[id]));
        let Link { before, after } = G::of(&slots[id]);
        if after != NONE {
            G::link(&mut slots[after]).before = before;
        }
        if found.latest == id {
            self.chain(slots, &found, if after == NONE { before } else { after });
        } else {
            G::link(&mut slots[before]).after = after;
        }
    }

    fn find(&self, slots: &Slots, key: &G::Key) -> Found {
        let place = self.chains.place(key);
        let (mut before, mut latest) = (NONE, self.chains.firsts[place]);
        while latest != NONE && G::key(&slots[latest]) != *key {
            (before, latest) = (latest, G::of(&slots[latest]).before);
        }
        Found { place, before, latest }
    }

    /// Lets the chain go on with `id` after what was found before.
    fn chain(&mut self, slots: &mut Slots, found: &Found, id: FlowId) {
        if found.before == NONE {
            self.chains.firsts[found.place] = id;
        } else {
            G::link(&mut slots[found.before]).before = id;
        }
    }

    /// How many groups there are.
    #[cfg(test)]
    pub fn len(&self, slots: &Slots) -> usize {
        let next = |id: FlowId| (id != NONE).then_some(id);
        let chain = |&first: &FlowId| std::iter::successors(next(first), |&id| next(G::of(&slots[id]).before)).count();
        self.chains.firsts.iter().map(chain).sum()
    }
}
