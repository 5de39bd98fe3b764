//! The keys of a relay, ready for use (docs/wire.md section 1).
//!
//! * States: *active* makes and opens, *accepted* only opens (before it becomes active, and after), *retired* does
//!   neither and is left out.
//! * Up to 8 ICE keys share a letter: each of them costs a try per packet. They are tried in the order of the file; the
//!   first that opens the ufrag and is a key of its cluster counts.
//! * Live hop keys have an id each. Of several active ones the one with the latest `not_before` that has passed makes
//!   MACs; where none is active yet, the first of the file: transceivers open what an accepted key made, and that is
//!   better than to forward nothing.
//!
//! Key bytes never show in debug output.

use std::collections::BTreeSet;

use crate::hop::{HopMac, RouteKey};
use crate::peers::Cluster;
use crate::ufrag::{self, PasswordKey, Ufrag, UfragKey};
use core::fmt;

/// How many ICE keys may share a letter.
pub const MAX_KEYS_PER_LETTER: usize = 8;
const LETTERS: usize = 128;
const HOP_IDS: usize = 256;
const MAX_NAMED: usize = 255;

/// Life of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyState {
    /// Makes and opens.
    Active,
    /// Only opens.
    Accepted,
    /// Does neither.
    Retired,
}

/// Opens ufrags and derives ICE passwords, as the key file has it.
#[derive(Clone)]
pub struct IceKey {
    /// A-Z or a-z.
    pub letter: u8,
    /// The clusters whose sessions it names.
    pub clusters: Vec<u16>,
    /// Of AES-128.
    pub ufrag_key: [u8; 16],
    /// None at an ingress-only relay: the home relay verifies.
    pub password_key: Option<[u8; 32]>,
    /// Its state.
    pub state: KeyState,
    /// Unix seconds before which it makes nothing new.
    pub not_before: i64,
}

impl fmt::Debug for IceKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = char::from(self.letter);
        let mut out = formatter.debug_struct("IceKey");
        out.field("letter", &letter).field("clusters", &self.clusters).field("state", &self.state);
        out.field("not_before", &self.not_before).finish_non_exhaustive()
    }
}

/// Authenticates hop datagrams of the local scope, as the key file has it.
#[derive(Clone)]
pub struct HopKey {
    /// Stands in the datagram.
    pub id: u8,
    /// Of the hop MAC.
    pub key: [u8; 16],
    /// Its state.
    pub state: KeyState,
    /// Unix seconds before which it makes nothing new.
    pub not_before: i64,
}

impl fmt::Debug for HopKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = formatter.debug_struct("HopKey");
        out.field("id", &self.id).field("state", &self.state).field("not_before", &self.not_before);
        out.finish_non_exhaustive()
    }
}

/// A key of the trunk to another cluster that makes MACs now.
#[derive(Clone)]
pub struct TrunkKey {
    /// At the other end.
    pub cluster: Cluster,
    /// Stands in the datagram.
    pub id: u8,
    /// Makes MACs.
    pub mac: HopMac,
}

/// Why keys are of no use to a relay. All are faults of the key file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysFault {
    /// There is no ICE key.
    NoIce,
    /// There is no live hop key of the local scope.
    NoHop,
    /// More than 8 live ICE keys have this letter.
    TooManyUnderLetter(u8),
    /// Two live hop keys have this id.
    TwoHopKeys(u8),
    /// This is no key letter: A-Z or a-z.
    Letter(u8),
}

impl fmt::Display for KeysFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoIce | Self::NoHop => {
                formatter.write_str("a relay needs at least one ice key and one local hop key")
            }
            Self::TooManyUnderLetter(letter) => {
                let letter = char::from(*letter);
                write!(formatter, "more than {MAX_KEYS_PER_LETTER} ice keys have the letter {letter:?}")
            }
            Self::TwoHopKeys(id) => write!(formatter, "two keys have the id {id}"),
            Self::Letter(letter) => write!(formatter, "{:?} is no key letter", char::from(*letter)),
        }
    }
}

impl core::error::Error for KeysFault {}

/// A ufrag that one of our keys made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The worker that owns the session.
    pub route: RouteKey,
    /// None at a relay that has no password key for it.
    pub password: Option<[u8; 32]>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Opened").field("route", &self.route).finish_non_exhaustive()
    }
}

/// The keys of a relay.
pub struct Keys {
    /// By letter, those of one letter in the order of the file.
    ice: Vec<Vec<Ice>>,
    /// In the order of the file, at least one.
    hop: Vec<Hop>,
    /// Where the key of an id stands in `hop`.
    hop_at: [Option<u8>; HOP_IDS],
    /// Of each trunk, by the cluster at its other end, in the order of the file.
    trunks: Vec<(Cluster, Vec<Hop>)>,
    /// The same by the id of the key, as a datagram names only that.
    trunk_at: Vec<Vec<(Cluster, HopMac)>>,
}

struct Ice {
    clusters: Vec<u16>,
    ufrag_key: UfragKey,
    password_key: Option<PasswordKey>,
}

struct Hop {
    id: u8,
    mac: HopMac,
    state: KeyState,
    not_before: i64,
}

impl Keys {
    /// Take what a relay needs of a key file, in the order of the file.
    pub fn new(ice: &[IceKey], hop: &[HopKey]) -> Result<Self, KeysFault> {
        let (hop, hop_at) = index_hop(hop)?;
        if ice.is_empty() {
            return Err(KeysFault::NoIce);
        }
        if hop.is_empty() {
            return Err(KeysFault::NoHop);
        }
        Ok(Self { ice: index_ice(ice)?, hop, hop_at, trunks: Vec::new(), trunk_at: Vec::new() })
    }

    /// Adds the live keys of trunks, each with the cluster at the other end.
    pub fn add_trunks(&mut self, keys: &[(u16, HopKey)]) {
        for (cluster, key) in keys.iter().filter(|(_, key)| key.state != KeyState::Retired) {
            let cluster = cluster.to_be_bytes();
            let made = Hop { id: key.id, mac: HopMac::new(&key.key), state: key.state, not_before: key.not_before };
            match self.trunks.iter_mut().find(|(known, _)| *known == cluster) {
                Some((_, held)) => held.push(made),
                None => self.trunks.push((cluster, vec![made])),
            }
        }
        self.trunk_at = vec![Vec::new(); HOP_IDS];
        for (cluster, key) in self.trunks.iter().flat_map(|(cluster, held)| held.iter().map(move |key| (cluster, key)))
        {
            self.trunk_at[usize::from(key.id)].push((*cluster, key.mac.clone()));
        }
    }

    /// Each trunk that has a live key of an id, and that key.
    pub fn trunk_candidates(&self, id: u8) -> impl Iterator<Item = (Cluster, &HopMac)> {
        let held = self.trunk_at.get(usize::from(id)).map_or(&[][..], Vec::as_slice);
        held.iter().map(|(cluster, mac)| (*cluster, mac))
    }

    /// The live key of an id of the trunk to a cluster.
    pub fn trunk(&self, cluster: Cluster, id: u8) -> Option<&HopMac> {
        self.trunk_candidates(id).find(|(known, _)| *known == cluster).map(|(_, mac)| mac)
    }

    /// The key of each trunk to make MACs with at `unix`, Unix seconds.
    pub fn choose_trunks(&self, unix: f64) -> Vec<TrunkKey> {
        let choose = |(cluster, held): &(Cluster, Vec<Hop>)| {
            let key = newest(held, unix)?;
            Some(TrunkKey { cluster: *cluster, id: key.id, mac: key.mac.clone() })
        };
        self.trunks.iter().filter_map(choose).collect()
    }

    /// What the answer to a PROBE names: n and n ICE keys (cluster, letter) of either end, m and m ids of the hop keys of
    /// this trunk. `cluster` is at its other end, `probed` the one that was asked for.
    pub fn held_ids(&self, cluster: Cluster, probed: Cluster) -> Vec<u8> {
        let mut held = vec![0];
        for end in BTreeSet::from([cluster, probed]) {
            for letter in (0..LETTERS).filter(|letter| self.ice[*letter].iter().any(|ice| ice.serves(end))) {
                held.extend([end[0], end[1], letter as u8]);
                held[0] += 1;
            }
        }
        let trunk = self.trunks.iter().find(|(known, _)| *known == cluster);
        let ids: BTreeSet<u8> = trunk.into_iter().flat_map(|(_, held)| held).map(|key| key.id).collect();
        held.push(ids.len().min(MAX_NAMED) as u8);
        held.extend(ids.iter().take(MAX_NAMED));
        held
    }

    /// Return route and password of a ufrag, or None when no key has its letter or none of them made it.
    pub fn open(&self, ufrag: &Ufrag) -> Option<Opened> {
        let candidates = self.ice.get(usize::from(ufrag.letter))?;
        let (ice, route) = candidates.iter().find_map(|ice| Some((ice, ice.open(ufrag)?)))?;
        let password = ice.password_key.as_ref().map(|key| key.password(&ufrag::text(ufrag)));
        Some(Opened { route, password })
    }

    /// Return the live hop key of an id.
    pub fn hop(&self, id: u8) -> Option<&HopMac> {
        let at = self.hop_at[usize::from(id)]?;
        self.hop.get(usize::from(at)).map(|hop| &hop.mac)
    }

    /// Return id and key to make MACs with at `unix`, Unix seconds: keys become active as time passes.
    pub fn choose_hop(&self, unix: f64) -> (u8, &HopMac) {
        let chosen = newest(&self.hop, unix).unwrap_or(&self.hop[0]);
        (chosen.id, &chosen.mac)
    }
}

/// The newest active key at `unix`, Unix seconds, or the first where none is active yet.
fn newest(keys: &[Hop], unix: f64) -> Option<&Hop> {
    let now = unix.floor() as i64;
    let usable = keys.iter().filter(|hop| hop.state == KeyState::Active && hop.not_before <= now);
    // Of two equally new ones the first counts; `max_by_key` returns the last it meets.
    usable.rev().max_by_key(|hop| hop.not_before).or(keys.first())
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<u8> = self.hop.iter().map(|hop| hop.id).collect();
        formatter.debug_struct("Keys").field("hop", &ids).finish_non_exhaustive()
    }
}

impl Ice {
    fn of(key: &IceKey) -> Self {
        let mut clusters = key.clusters.clone();
        clusters.sort_unstable();
        Self {
            clusters,
            ufrag_key: UfragKey::new(&key.ufrag_key),
            password_key: key.password_key.as_ref().map(PasswordKey::new),
        }
    }

    fn open(&self, ufrag: &Ufrag) -> Option<RouteKey> {
        let route = self.ufrag_key.open(&ufrag.block)?;
        self.serves([route[0], route[1]]).then_some(route)
    }

    fn serves(&self, cluster: Cluster) -> bool {
        self.clusters.binary_search(&u16::from_be_bytes(cluster)).is_ok()
    }
}

fn index_ice(keys: &[IceKey]) -> Result<Vec<Vec<Ice>>, KeysFault> {
    let mut by_letter: Vec<Vec<Ice>> = Vec::new();
    by_letter.resize_with(LETTERS, Vec::new);
    for key in keys.iter().filter(|key| key.state != KeyState::Retired) {
        if !key.letter.is_ascii_alphabetic() {
            return Err(KeysFault::Letter(key.letter));
        }
        let under = &mut by_letter[usize::from(key.letter)];
        if under.len() == MAX_KEYS_PER_LETTER {
            return Err(KeysFault::TooManyUnderLetter(key.letter));
        }
        under.push(Ice::of(key));
    }
    Ok(by_letter)
}

fn index_hop(keys: &[HopKey]) -> Result<(Vec<Hop>, [Option<u8>; HOP_IDS]), KeysFault> {
    let mut live = Vec::new();
    let mut at = [None; HOP_IDS];
    for key in keys.iter().filter(|key| key.state != KeyState::Retired) {
        // An id stands at most once, so that there are at most 256 and the last index is 255.
        if at[usize::from(key.id)].replace(live.len() as u8).is_some() {
            return Err(KeysFault::TwoHopKeys(key.id));
        }
        live.push(Hop { id: key.id, mac: HopMac::new(&key.key), state: key.state, not_before: key.not_before });
    }
    Ok((live, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes::Aes128Enc;
    use aes::cipher::{BlockCipherEncrypt, KeyInit};
    use proptest::prelude::*;

    const UFRAG_KEY: [u8; 16] = [7; 16];
    const PASSWORD_KEY: [u8; 32] = [9; 32];

    fn ice(letter: u8, clusters: &[u16], ufrag_key: [u8; 16]) -> IceKey {
        let password_key = Some(PASSWORD_KEY);
        IceKey { letter, clusters: clusters.to_vec(), ufrag_key, password_key, state: KeyState::Active, not_before: 0 }
    }

    fn hop(id: u8, state: KeyState, not_before: i64) -> HopKey {
        HopKey { id, key: [id; 16], state, not_before }
    }

    fn keys(ice: &[IceKey]) -> Keys {
        Keys::new(ice, &[hop(3, KeyState::Active, 0)]).unwrap()
    }

    fn with_hop(hop: &[HopKey]) -> Result<Keys, KeysFault> {
        Keys::new(&[ice(b'a', &[1], UFRAG_KEY)], hop)
    }

    fn made(letter: u8, route: RouteKey, ufrag_key: [u8; 16]) -> Ufrag {
        let mut clear = [0; 16];
        clear[..7].copy_from_slice(&route);
        clear[7..12].copy_from_slice(b"12345");
        let mut block = clear.into();
        Aes128Enc::new(&ufrag_key.into()).encrypt_block(&mut block);
        Ufrag { letter, block: block.into() }
    }

    fn mac_of(mac: &HopMac) -> [u8; 8] {
        mac.begin().finish()
    }

    #[test]
    fn a_ufrag_is_opened_to_its_route_and_password() {
        let route = [0, 1, 0, 0, 0, 5, 6];
        let ufrag = made(b'a', route, UFRAG_KEY);
        let opened = keys(&[ice(b'a', &[1], UFRAG_KEY)]).open(&ufrag);
        let password = ufrag::ice_password(&PASSWORD_KEY, &ufrag::text(&ufrag));
        assert_eq!(opened, Some(Opened { route, password: Some(password) }));
    }

    #[test]
    fn a_key_without_a_password_key_opens_without_a_password() {
        let ingress = IceKey { password_key: None, ..ice(b'a', &[1], UFRAG_KEY) };
        let opened = keys(&[ingress]).open(&made(b'a', [0, 1, 0, 0, 0, 5, 6], UFRAG_KEY)).unwrap();
        assert_eq!(opened.password, None);
    }

    #[test]
    fn a_ufrag_of_another_letter_key_or_cluster_is_not_opened() {
        let keys = keys(&[ice(b'a', &[1, 65535, 258], UFRAG_KEY)]);
        for (letter, ufrag_key, cluster, expected) in [
            (b'a', UFRAG_KEY, [0, 1], true),
            (b'a', UFRAG_KEY, [1, 2], true),
            (b'a', UFRAG_KEY, [255, 255], true),
            (b'a', UFRAG_KEY, [0, 2], false),
            (b'a', UFRAG_KEY, [0, 0], false),
            (b'b', UFRAG_KEY, [0, 1], false),
            (b'A', UFRAG_KEY, [0, 1], false),
            (255, UFRAG_KEY, [0, 1], false),
            (b'a', [8; 16], [0, 1], false),
        ] {
            let ufrag = made(letter, [cluster[0], cluster[1], 0, 0, 0, 5, 6], ufrag_key);
            assert_eq!(keys.open(&ufrag).is_some(), expected, "letter {letter}, cluster {cluster:?}");
        }
    }

    #[test]
    fn a_key_that_opens_but_is_not_of_the_cluster_leaves_it_to_the_next() {
        let ingress = IceKey { password_key: None, ..ice(b'a', &[2], UFRAG_KEY) };
        let home = ice(b'a', &[1], UFRAG_KEY);
        let ufrag = made(b'a', [0, 1, 0, 0, 0, 5, 6], UFRAG_KEY);
        assert!(keys(&[ingress.clone(), home.clone()]).open(&ufrag).unwrap().password.is_some());
        // Of two that both may, the first counts.
        let both = IceKey { clusters: vec![1, 2], ..ingress };
        assert!(keys(&[both, home]).open(&ufrag).unwrap().password.is_none());
    }

    #[test]
    fn each_of_8_keys_under_a_letter_is_tried_and_a_ninth_refused() {
        let eight: Vec<IceKey> = (0..8).map(|number| ice(b'a', &[1], [number; 16])).collect();
        let ring = keys(&eight);
        for number in 0..8 {
            assert!(ring.open(&made(b'a', [0, 1, 0, 0, 0, 5, 6], [number; 16])).is_some(), "key {number}");
        }
        let ninth = |key| Keys::new(&[&eight[..], &[key]].concat(), &[hop(3, KeyState::Active, 0)]);
        assert_eq!(ninth(ice(b'a', &[1], [8; 16])).unwrap_err(), KeysFault::TooManyUnderLetter(b'a'));
        assert!(ninth(ice(b'b', &[1], [8; 16])).is_ok());
        assert!(ninth(IceKey { state: KeyState::Retired, ..ice(b'a', &[1], [8; 16]) }).is_ok());
    }

    #[test]
    fn accepted_keys_open_and_retired_ones_do_not() {
        let ufrag = made(b'a', [0, 1, 0, 0, 0, 5, 6], UFRAG_KEY);
        for (state, expected) in [(KeyState::Active, true), (KeyState::Accepted, true), (KeyState::Retired, false)] {
            let key = IceKey { state, not_before: i64::MAX, ..ice(b'a', &[1], UFRAG_KEY) };
            assert_eq!(keys(&[key]).open(&ufrag).is_some(), expected, "{state:?}");
        }
    }

    #[test]
    fn ice_keys_of_either_end_are_named_with_their_cluster_and_no_others() {
        let retired = IceKey { state: KeyState::Retired, ..ice(b'z', &[1], UFRAG_KEY) };
        let mut keys = keys(&[
            ice(b'u', &[9, 1000], UFRAG_KEY),
            ice(b'b', &[258, 1], UFRAG_KEY),
            ice(b'b', &[1], UFRAG_KEY),
            ice(b'a', &[1], UFRAG_KEY),
            retired,
        ]);
        keys.add_trunks(&[(9, hop(7, KeyState::Active, 0)), (8, hop(5, KeyState::Active, 0))]);
        let ice = |pairs: &[(u8, u8)]| pairs.iter().flat_map(|(end, letter)| [0, *end, *letter]).collect::<Vec<u8>>();
        let expected = [vec![3], ice(&[(1, b'a'), (1, b'b'), (9, b'u')]), vec![1, 7]].concat();
        assert_eq!(keys.held_ids([0, 9], [0, 1]), expected);
        assert_eq!(keys.held_ids([0, 9], [0, 9]), [vec![1], ice(&[(9, b'u')]), vec![1, 7]].concat());
        assert_eq!(keys.held_ids([0, 2], [0, 3]), [0, 0]);
    }

    #[test]
    fn without_an_ice_key_or_a_live_hop_key_there_are_no_keys() {
        let active = hop(3, KeyState::Active, 0);
        assert_eq!(Keys::new(&[], std::slice::from_ref(&active)).unwrap_err(), KeysFault::NoIce);
        assert_eq!(with_hop(&[]).unwrap_err(), KeysFault::NoHop);
        assert_eq!(with_hop(&[hop(3, KeyState::Retired, 0)]).unwrap_err(), KeysFault::NoHop);
        let no_letter = ice(b'1', &[1], UFRAG_KEY);
        assert_eq!(Keys::new(&[no_letter], &[active]).unwrap_err(), KeysFault::Letter(b'1'));
    }

    #[test]
    fn two_live_hop_keys_of_one_id_are_refused() {
        let two = |state| with_hop(&[hop(3, KeyState::Active, 0), hop(3, state, 0)]);
        assert_eq!(two(KeyState::Accepted).unwrap_err(), KeysFault::TwoHopKeys(3));
        assert!(two(KeyState::Retired).is_ok());
    }

    #[test]
    fn hop_keys_are_found_by_id_unless_retired() {
        let keys =
            with_hop(&[hop(255, KeyState::Accepted, 0), hop(0, KeyState::Active, 0), hop(7, KeyState::Retired, 0)]);
        let keys = keys.unwrap();
        assert_eq!(mac_of(keys.hop(0).unwrap()), mac_of(&HopMac::new(&[0; 16])));
        assert_eq!(mac_of(keys.hop(255).unwrap()), mac_of(&HopMac::new(&[255; 16])));
        assert!(keys.hop(7).is_none() && keys.hop(1).is_none());
        let all: Vec<HopKey> = (0..=255).map(|id| hop(id, KeyState::Active, 0)).collect();
        let keys = with_hop(&all).unwrap();
        for id in 0..=255 {
            assert_eq!(mac_of(keys.hop(id).unwrap()), mac_of(&HopMac::new(&[id; 16])), "id {id}");
        }
    }

    #[test]
    fn the_newest_active_hop_key_makes_once_its_time_has_come() {
        let keys = with_hop(&[
            hop(1, KeyState::Active, 0),
            hop(2, KeyState::Active, 100),
            hop(3, KeyState::Active, 100),
            hop(4, KeyState::Active, 50),
            hop(5, KeyState::Accepted, 60),
        ]);
        let keys = keys.unwrap();
        for (unix, expected) in [(0.0, 1), (49.999, 1), (50.0, 4), (99.9, 4), (100.0, 2), (1e12, 2)] {
            let (id, mac) = keys.choose_hop(unix);
            assert_eq!(id, expected, "at {unix}");
            assert_eq!(mac_of(mac), mac_of(&HopMac::new(&[expected; 16])));
        }
    }

    #[test]
    fn where_no_hop_key_is_active_yet_the_first_makes() {
        let keys =
            with_hop(&[hop(1, KeyState::Retired, 0), hop(2, KeyState::Accepted, 0), hop(3, KeyState::Active, 100)]);
        assert_eq!(keys.unwrap().choose_hop(99.0).0, 2);
    }

    #[test]
    fn key_bytes_do_not_show_in_debug() {
        let ufrag_key = [0xab; 16];
        let key = IceKey { password_key: Some([0xab; 32]), ..ice(b'a', &[1], ufrag_key) };
        let hop_key = HopKey { key: [0xab; 16], ..hop(3, KeyState::Active, 0) };
        let keys = Keys::new(std::slice::from_ref(&key), std::slice::from_ref(&hop_key)).unwrap();
        let opened = Opened { route: [0; 7], password: Some([0xab; 32]) };
        for shown in [format!("{key:?}"), format!("{hop_key:?}"), format!("{keys:?}"), format!("{opened:?}")] {
            assert!(!shown.contains("171") && !shown.to_lowercase().contains("ab, "), "{shown}");
        }
    }

    #[test]
    fn threads_may_share_keys() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<Keys>();
    }

    proptest! {
        #[test]
        fn no_ufrag_makes_it_panic(letter in any::<u8>(), block in any::<[u8; 16]>()) {
            let keys = keys(&[ice(b'a', &[1], UFRAG_KEY)]);
            // 2^-48 is never: neither the check value nor the cluster comes about by chance.
            prop_assert_eq!(keys.open(&Ufrag { letter, block }), None);
        }
    }
}
