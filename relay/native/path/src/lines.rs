//! Flows in order, the oldest first. A flow carries its places itself, so a list of any length is two numbers.

use std::marker::PhantomData;

use crate::flow::{Flow, FlowId, Link, NONE};
use crate::slots::Slots;

/// Says which of a flow's places a list uses.
pub(crate) trait Linked {
    fn link(flow: &mut Flow) -> &mut Link;
    fn of(flow: &Flow) -> Link;
}

/// Declares a list by the field that it uses.
macro_rules! linked {
    ($(#[$about:meta])* $name:ident by $field:ident) => {
        $(#[$about])*
        pub(crate) struct $name;

        impl $crate::lines::Linked for $name {
            fn link(flow: &mut $crate::flow::Flow) -> &mut $crate::flow::Link {
                &mut flow.$field
            }

            fn of(flow: &$crate::flow::Flow) -> $crate::flow::Link {
                flow.$field
            }
        }
    };
}
pub(crate) use linked;

pub(crate) struct Line<L> {
    first: FlowId,
    last: FlowId,
    len: usize,
    by: PhantomData<L>,
}

impl<L: Linked> Line<L> {
    pub fn new() -> Self {
        Self { first: NONE, last: NONE, len: 0, by: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn first(&self) -> Option<FlowId> {
        (self.first != NONE).then_some(self.first)
    }

    /// The flows, the oldest first.
    pub fn iter<'a>(&self, slots: &'a Slots) -> impl Iterator<Item = FlowId> + use<'a, L> {
        let next = |id: FlowId| (id != NONE).then_some(id);
        std::iter::successors(next(self.first), move |&id| next(L::of(&slots[id]).after))
    }

    /// Puts a flow that is in no line at the end.
    pub fn add(&mut self, slots: &mut Slots, id: FlowId) {
        *L::link(&mut slots[id]) = Link { before: self.last, after: NONE };
        if self.last == NONE {
            self.first = id;
        } else {
            L::link(&mut slots[self.last]).after = id;
        }
        self.last = id;
        self.len += 1;
    }

    pub fn remove(&mut self, slots: &mut Slots, id: FlowId) {
        let Link { before, after } = L::of(&slots[id]);
        if before == NONE {
            self.first = after;
        } else {
            L::link(&mut slots[before]).after = after;
        }
        if after == NONE {
            self.last = before;
        } else {
            L::link(&mut slots[after]).before = before;
        }
        self.len -= 1;
    }

    pub fn move_to_end(&mut self, slots: &mut Slots, id: FlowId) {
        if id != self.last {
            self.remove(slots, id);
            self.add(slots, id);
        }
    }
}
