//! Local addresses that clients sent to, and the small numbers that stand for them in flows.
//!
//! Rules:
//! * A host has few addresses; at most [`MAX_LOCALS`] are told apart. A packet for a further one is answered from the
//!   listener's own address (0).
//! * A number means the same at every worker, since flows may go from one to the other. Each worker keeps what it has
//!   seen, so that the common list is locked only for an address that is new to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ahash::RandomState;
use usher_relay_path::flows::LocalId;

use crate::sys::Local;

/// Most local addresses that are told apart.
pub const MAX_LOCALS: usize = 1_024;

/// One worker's view of the list.
#[derive(Default)]
pub struct Locals {
    common: Arc<Mutex<Vec<Local>>>,
    ids: HashMap<Local, LocalId, RandomState>,
    addresses: Vec<Local>,
}

impl Locals {
    /// A view of the same list for another worker.
    pub fn another(&self) -> Self {
        Self { common: Arc::clone(&self.common), ..Self::default() }
    }

    /// The number of a local address; 0 when there are too many.
    pub fn id(&mut self, local: Local) -> LocalId {
        if let Some(&id) = self.ids.get(&local) {
            return id;
        }
        if self.ids.len() >= MAX_LOCALS {
            return 0;
        }
        let mut common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
        let known = common.iter().position(|&known| known == local);
        let at = match known {
            Some(at) => at,
            None if common.len() < MAX_LOCALS => {
                common.push(local);
                common.len() - 1
            }
            None => return 0,
        };
        let id = at as LocalId + 1;
        self.ids.insert(local, id);
        id
    }

    /// The local address that a number stands for; None for 0.
    pub fn address(&mut self, id: LocalId) -> Option<Local> {
        let at = usize::from(id.checked_sub(1)?);
        if at >= self.addresses.len() {
            let common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
            self.addresses.extend_from_slice(&common[self.addresses.len()..]);
        }
        self.addresses.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(last: u16) -> Local {
        let mut address = [0; 16];
        address[14..].copy_from_slice(&last.to_be_bytes());
        Local { address, interface: 0 }
    }

    #[test]
    fn a_number_means_the_same_at_every_worker() {
        let mut one = Locals::default();
        let mut other = one.another();
        assert_eq!((one.id(local(7)), other.id(local(8)), one.id(local(8)), other.id(local(7))), (1, 2, 2, 1));
        assert_eq!((one.address(2), other.address(1), other.address(0)), (Some(local(8)), Some(local(7)), None));
    }

    #[test]
    fn one_address_too_many_is_nobodys() {
        let mut locals = Locals::default();
        for last in 0..MAX_LOCALS as u16 {
            assert_eq!(locals.id(local(last)), last + 1);
        }
        assert_eq!((locals.id(local(5_000)), locals.id(local(3))), (0, 4));
    }
}
