//! The memory of the flow map: one slot for each flow, given out again when its flow is gone.
//!
//! Room for all is reserved once and touched as flows come: what was never used costs no memory, and no packet waits for
//! a growing table. Slot 0 is nobody's.

use std::ops::{Index, IndexMut};

use crate::flow::{Flow, FlowId, NONE, State};

pub(crate) struct Slots {
    slots: Vec<Flow>,
    /// The free ones are linked by `in_line.after`; the last one that became free is the first to be used.
    free: FlowId,
}

impl Slots {
    pub fn new(capacity: u32) -> Self {
        let mut slots = Vec::with_capacity(capacity as usize + 1);
        slots.push(Flow::new([0; 20], [0; 7], 0, State::Ended, 0.0));
        Self { slots, free: NONE }
    }

    /// Takes in a flow.
    pub fn put(&mut self, flow: Flow) -> FlowId {
        let id = self.free;
        if id == NONE {
            self.slots.push(flow);
            return (self.slots.len() - 1) as FlowId;
        }
        self.free = self[id].in_line.after;
        self[id] = flow;
        id
    }

    /// Frees the slot of a flow that is in no list any more.
    pub fn free(&mut self, id: FlowId) {
        self[id].in_line.after = self.free;
        self.free = id;
    }
}

impl Index<FlowId> for Slots {
    type Output = Flow;

    fn index(&self, id: FlowId) -> &Flow {
        &self.slots[id as usize]
    }
}

impl IndexMut<FlowId> for Slots {
    fn index_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.slots[id as usize]
    }
}
