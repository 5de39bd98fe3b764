//! Binding requests as relays judge them: whose ufrag it is, and whether its password made the integrity.

use crate::counters::Drop;
use crate::keys::{Keys, Opened};
use crate::stun::Message;
use crate::ufrag::{self, Ufrag};

/// What the ufrag of a Binding request with USERNAME says, or why the request is dropped.
///
/// Where there is no password key for it, its integrity is not tried and the password is None.
pub fn open(keys: &Keys, check: &Message<'_>) -> Result<(Ufrag, Opened), Drop> {
    let text = check.server_ufrag().ok_or(Drop::UfragShape)?;
    let ufrag = ufrag::split(text).map_err(|_| Drop::UfragShape)?;
    let opened = keys.open(&ufrag).ok_or(Drop::UfragUnknown)?;
    if opened.password.is_some_and(|password| !check.verify_integrity(&password)) {
        return Err(Drop::Integrity);
    }
    Ok((ufrag, opened))
}
