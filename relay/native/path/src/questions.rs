//! The WHO-HAS datagrams of one batch: each question to every live transceiver.

use crate::endpoint::Endpoint;
use crate::hop::{self, MAC_AT, OUTER_LENGTH, OVERHEAD, PathKey, RECORD_LENGTH};
use crate::routes::Routes;
use crate::state::Stamp;
use crate::waiting::Ssrc;

const LENGTH: usize = OVERHEAD + size_of::<Ssrc>();

/// What is asked, and the datagrams that ask it.
#[derive(Default)]
pub struct Questions {
    asked: Vec<(PathKey, Ssrc)>,
    datagrams: Vec<(Endpoint, [u8; LENGTH])>,
}

impl Questions {
    /// Begins a batch.
    pub fn clear(&mut self) {
        self.asked.clear();
        self.datagrams.clear();
    }

    /// Asks whose a client's SSRC is, or its address where that is zero.
    pub fn ask(&mut self, path: &PathKey, ssrc: Ssrc) {
        self.asked.push((*path, ssrc));
    }

    /// Builds the datagrams of a batch.
    pub fn build(&mut self, routes: &Routes, stamp: &Stamp) {
        for (path, ssrc) in &self.asked {
            let mut record = [0; RECORD_LENGTH];
            hop::write_record(&mut record, ssrc.len() as u16, 0, path, 0);
            for route in routes.iter() {
                let mut outer = [0; OUTER_LENGTH];
                hop::write_outer(&mut outer, hop::WHO_HAS, 1, &route.key, stamp.key_id, stamp.time_ms, 0);
                let mut mac = stamp.mac.begin();
                mac.write(&outer);
                mac.write(&record);
                mac.write(ssrc);
                outer[MAC_AT..].copy_from_slice(&mac.finish());
                let mut datagram = [0; LENGTH];
                datagram[..OUTER_LENGTH].copy_from_slice(&outer);
                datagram[OUTER_LENGTH..OVERHEAD].copy_from_slice(&record);
                datagram[OVERHEAD..].copy_from_slice(ssrc);
                self.datagrams.push((route.address, datagram));
            }
        }
    }

    /// Where each goes, and its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Endpoint, &[u8])> {
        self.datagrams.iter().map(|(to, datagram)| (*to, &datagram[..]))
    }
}
