//! STUN messages as a relay reads them (RFC 8489, RFC 8445 section 7.2.2), in place.
//!
//! * A message has 20..1232 bytes, and its length field and every attribute stay inside the datagram.
//! * Order of attributes is free: libdatachannel puts USERNAME after SOFTWARE, libnice PRIORITY first. Of several of one
//!   type the first counts (RFC 8489 section 14).
//! * What follows MESSAGE-INTEGRITY, except FINGERPRINT, is ignored (section 14.5), but must be well formed: attributes
//!   of a fixed length have that length there, too.
//! * FINGERPRINT is the last attribute and checked here (section 14.7).
//! * Any method and class is parsed. Nothing is authentic before `verify_integrity` held.

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

const HEADER_LENGTH: usize = 20;
const ATTRIBUTE_HEADER_LENGTH: usize = 4;
const INTEGRITY_LENGTH: usize = 20;
/// The longest message that is looked at: 1280 bytes of IPv6 less IP and UDP headers.
const MAX_LENGTH: usize = 1232;
const MAX_USERNAME: usize = 513;
const MAGIC_COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const FINGERPRINT_XOR: u32 = 0x5354_554e;

const BINDING_REQUEST: u16 = 0x0001;
const CLASS_MASK: u16 = 0x0110;
const NOT_STUN_MASK: u16 = 0xc000;

const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const PRIORITY: u16 = 0x0024;
const USE_CANDIDATE: u16 = 0x0025;
const FINGERPRINT: u16 = 0x8028;
const ICE_CONTROLLED: u16 = 0x8029;
const ICE_CONTROLLING: u16 = 0x802a;

/// The datagram is no STUN message, or a wrong one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// A parsed message; it is not authentic before `verify_integrity` held.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    datagram: &'a [u8],
    /// The first USERNAME that MESSAGE-INTEGRITY covers (or the first, when there is none).
    username: Option<&'a [u8]>,
    /// Where MESSAGE-INTEGRITY starts.
    integrity_offset: Option<usize>,
}

/// Parse a STUN message.
pub fn parse(datagram: &[u8]) -> Result<Message<'_>, Malformed> {
    check_header(datagram)?;
    let mut message = Message { datagram, username: None, integrity_offset: None };
    let mut offset = HEADER_LENGTH;
    while offset < datagram.len() {
        let attribute = Attribute::at(datagram, offset)?;
        attribute.check_length()?;
        if attribute.kind == FINGERPRINT {
            check_fingerprint(datagram, offset, attribute.value)?;
        } else if message.integrity_offset.is_none() {
            message.take(attribute, offset);
        }
        offset += ATTRIBUTE_HEADER_LENGTH + attribute.value.len().next_multiple_of(4);
    }
    // The datagram's length is a multiple of 4, so that padding is never cut off.
    match message.username {
        Some(username) if username.len() > MAX_USERNAME => Err(Malformed),
        _ => Ok(message),
    }
}

impl<'a> Message<'a> {
    /// Whether this is a Binding request.
    pub fn is_binding_request(&self) -> bool {
        self.message_type() == BINDING_REQUEST
    }

    /// Whether this is a request, of any method (RFC 8489 section 5).
    pub fn is_request(&self) -> bool {
        self.message_type() & CLASS_MASK == 0
    }

    /// The USERNAME as sent, `receiver-ufrag:sender-ufrag` in ICE.
    pub fn username(&self) -> Option<&'a [u8]> {
        self.username
    }

    /// The part of USERNAME before the first colon: the fragment of the agent that receives the request.
    pub fn server_ufrag(&self) -> Option<&'a [u8]> {
        let username = self.username?;
        let colon = username.iter().position(|byte| *byte == b':')?;
        username.get(..colon)
    }

    /// Tell in constant time whether MESSAGE-INTEGRITY was made with `password` (RFC 8489 section 14.5).
    ///
    /// The length field counts up to and including MESSAGE-INTEGRITY, whatever follows.
    pub fn verify_integrity(&self, password: &[u8]) -> bool {
        let Some(offset) = self.integrity_offset else {
            return false;
        };
        let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(password) else {
            return false;
        };
        let start = offset + ATTRIBUTE_HEADER_LENGTH;
        let end = start + INTEGRITY_LENGTH;
        let length = (end - HEADER_LENGTH) as u16;
        mac.update(&self.datagram[..2]);
        mac.update(&length.to_be_bytes());
        mac.update(&self.datagram[4..offset]);
        mac.verify_slice(&self.datagram[start..end]).is_ok()
    }

    fn message_type(&self) -> u16 {
        u16::from_be_bytes([self.datagram[0], self.datagram[1]])
    }

    fn take(&mut self, attribute: Attribute<'a>, offset: usize) {
        match attribute.kind {
            MESSAGE_INTEGRITY => self.integrity_offset = Some(offset),
            USERNAME if self.username.is_none() => self.username = Some(attribute.value),
            _ => {}
        }
    }
}

#[derive(Clone, Copy)]
struct Attribute<'a> {
    kind: u16,
    value: &'a [u8],
}

impl<'a> Attribute<'a> {
    fn at(datagram: &'a [u8], offset: usize) -> Result<Self, Malformed> {
        let rest = datagram.get(offset..).ok_or(Malformed)?;
        let ([kind_high, kind_low, length_high, length_low], rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let length = usize::from(u16::from_be_bytes([*length_high, *length_low]));
        let value = rest.get(..length).ok_or(Malformed)?;
        Ok(Self { kind: u16::from_be_bytes([*kind_high, *kind_low]), value })
    }

    fn check_length(&self) -> Result<(), Malformed> {
        let fixed = match self.kind {
            MESSAGE_INTEGRITY => INTEGRITY_LENGTH,
            FINGERPRINT | PRIORITY => 4,
            USE_CANDIDATE => 0,
            ICE_CONTROLLED | ICE_CONTROLLING => 8,
            _ => return Ok(()),
        };
        if self.value.len() == fixed { Ok(()) } else { Err(Malformed) }
    }
}

fn check_header(datagram: &[u8]) -> Result<(), Malformed> {
    let [kind_high, kind_low, length_high, length_low, cookie @ ..] = *datagram.first_chunk::<8>().ok_or(Malformed)?;
    let length = usize::from(u16::from_be_bytes([length_high, length_low]));
    let is_stun = u16::from_be_bytes([kind_high, kind_low]) & NOT_STUN_MASK == 0 && cookie == MAGIC_COOKIE;
    let fits = length % 4 == 0 && HEADER_LENGTH + length == datagram.len() && datagram.len() <= MAX_LENGTH;
    if is_stun && fits { Ok(()) } else { Err(Malformed) }
}

fn check_fingerprint(datagram: &[u8], offset: usize, value: &[u8]) -> Result<(), Malformed> {
    let is_last = offset + ATTRIBUTE_HEADER_LENGTH + value.len() == datagram.len();
    let expected = crc32fast::hash(&datagram[..offset]) ^ FINGERPRINT_XOR;
    if is_last && value == expected.to_be_bytes() { Ok(()) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PASSWORD: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";
    const SOFTWARE: u16 = 0x8022;

    /// Write a message without checks; `Part` tells what to append.
    #[derive(Clone, Debug)]
    enum Part {
        Raw(u16, Vec<u8>),
        Integrity,
        Fingerprint,
    }

    fn raw(kind: u16, value: &[u8]) -> Part {
        Part::Raw(kind, value.to_vec())
    }

    fn build(message_type: u16, parts: &[Part]) -> Vec<u8> {
        let mut datagram = [0; 20].to_vec();
        datagram[..2].copy_from_slice(&message_type.to_be_bytes());
        datagram[4..8].copy_from_slice(&MAGIC_COOKIE);
        datagram[8..20].copy_from_slice(b"transaction!");
        for part in parts {
            match part {
                Part::Raw(kind, value) => append(&mut datagram, *kind, value),
                Part::Integrity => {
                    set_length(&mut datagram, 24);
                    let mut mac = Hmac::<Sha1>::new_from_slice(&PASSWORD).unwrap();
                    mac.update(&datagram);
                    append(&mut datagram, MESSAGE_INTEGRITY, &mac.finalize().into_bytes());
                }
                Part::Fingerprint => {
                    set_length(&mut datagram, 8);
                    let crc = crc32fast::hash(&datagram) ^ FINGERPRINT_XOR;
                    append(&mut datagram, FINGERPRINT, &crc.to_be_bytes());
                }
            }
        }
        set_length(&mut datagram, 0);
        datagram
    }

    fn append(datagram: &mut Vec<u8>, kind: u16, value: &[u8]) {
        datagram.extend_from_slice(&kind.to_be_bytes());
        datagram.extend_from_slice(&(value.len() as u16).to_be_bytes());
        datagram.extend_from_slice(value);
        datagram.resize(datagram.len().next_multiple_of(4), 0);
    }

    fn set_length(datagram: &mut [u8], extra: usize) {
        let length = datagram.len() - HEADER_LENGTH + extra;
        datagram[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    }

    fn check(username: &[u8]) -> Vec<u8> {
        build(BINDING_REQUEST, &[raw(USERNAME, username), Part::Integrity, Part::Fingerprint])
    }

    fn is_malformed(datagram: &[u8]) -> bool {
        parse(datagram).is_err()
    }

    #[test]
    fn a_check_tells_its_username_and_holds_under_its_password_only() {
        let datagram = check(b"server:client");
        let message = parse(&datagram).unwrap();
        assert!(message.is_binding_request() && message.is_request());
        assert_eq!(message.username(), Some(&b"server:client"[..]));
        assert_eq!(message.server_ufrag(), Some(&b"server"[..]));
        assert!(message.verify_integrity(&PASSWORD));
        assert!(!message.verify_integrity(&[b'x'; 32]));
    }

    #[test]
    fn the_server_ufrag_ends_at_the_first_colon_and_needs_one() {
        let cases: [(&[u8], Option<&[u8]>); 5] =
            [(b"a:b:c", Some(b"a")), (b":b", Some(b"")), (b"a:", Some(b"a")), (b"ab", None), (b"", None)];
        for (username, expected) in cases {
            assert_eq!(parse(&check(username)).unwrap().server_ufrag(), expected, "{username:?}");
        }
        let nameless = build(BINDING_REQUEST, &[Part::Integrity]);
        assert_eq!(parse(&nameless).unwrap().username(), None);
        assert_eq!(parse(&nameless).unwrap().server_ufrag(), None);
    }

    #[test]
    fn an_empty_username_is_a_username() {
        assert_eq!(parse(&check(b"")).unwrap().username(), Some(&b""[..]));
    }

    #[test]
    fn a_message_without_integrity_never_holds() {
        let datagram = build(BINDING_REQUEST, &[raw(USERNAME, b"a:b"), Part::Fingerprint]);
        assert!(!parse(&datagram).unwrap().verify_integrity(&PASSWORD));
    }

    #[test]
    fn only_20_to_1232_bytes_are_looked_at() {
        assert!(!is_malformed(&build(BINDING_REQUEST, &[])));
        assert!(is_malformed(&build(BINDING_REQUEST, &[])[..19]));
        assert!(is_malformed(&[]));
        assert!(!is_malformed(&build(BINDING_REQUEST, &[raw(SOFTWARE, &[b'x'; 1208])])));
        assert!(is_malformed(&build(BINDING_REQUEST, &[raw(SOFTWARE, &[b'x'; 1212])])));
    }

    #[test]
    fn a_wrong_cookie_type_or_length_field_is_refused() {
        let good = build(BINDING_REQUEST, &[raw(SOFTWARE, b"usher")]);
        for (at, value) in [(0, 0x40), (0, 0x80), (4, 0x20), (5, 0), (6, 0), (7, 0), (3, 8), (3, 11), (3, 16), (2, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(is_malformed(&bad), "byte {at} set to {value}");
        }
        assert!(is_malformed(&[&good[..], &[0; 4]].concat()));
        // A length that fits, but is no multiple of 4.
        let mut odd = [&good[..], &[0]].concat();
        odd[3] += 1;
        assert!(is_malformed(&odd));
    }

    #[test]
    fn any_method_and_class_is_parsed_and_only_one_type_is_a_binding_request() {
        for message_type in 0..0x4000_u16 {
            let datagram = build(message_type, &[]);
            let message = parse(&datagram).unwrap();
            assert_eq!(message.is_binding_request(), message_type == 1);
            assert_eq!(message.is_request(), message_type & 0x0110 == 0);
        }
    }

    #[test]
    fn attributes_of_a_fixed_length_have_it_before_and_after_integrity() {
        let fixed = [(PRIORITY, 4), (USE_CANDIDATE, 0), (ICE_CONTROLLED, 8), (ICE_CONTROLLING, 8)];
        for (kind, length) in fixed.into_iter().chain([(MESSAGE_INTEGRITY, 20)]) {
            for size in 0..24 {
                let attribute = raw(kind, &vec![0; size]);
                let before = build(BINDING_REQUEST, &[attribute.clone(), Part::Integrity]);
                let after = build(BINDING_REQUEST, &[Part::Integrity, attribute]);
                assert_eq!(is_malformed(&before), size != length, "0x{kind:04x} of {size} bytes");
                assert_eq!(is_malformed(&after), size != length, "0x{kind:04x} of {size} bytes after integrity");
            }
        }
    }

    #[test]
    fn an_attribute_longer_than_its_message_is_refused() {
        let good = build(BINDING_REQUEST, &[raw(SOFTWARE, b"usher")]);
        for length in 9..=255 {
            let mut bad = good.clone();
            bad[23] = length;
            assert!(is_malformed(&bad), "length {length}");
        }
        // Up to the end of the padding it fits.
        for length in 5..=8 {
            let mut longer = good.clone();
            longer[23] = length;
            assert!(!is_malformed(&longer), "length {length}");
        }
    }

    #[test]
    fn fingerprint_must_be_last_right_and_of_4_bytes() {
        assert!(!is_malformed(&build(BINDING_REQUEST, &[Part::Fingerprint])));
        assert!(is_malformed(&build(BINDING_REQUEST, &[Part::Fingerprint, raw(SOFTWARE, b"")])));
        assert!(is_malformed(&build(BINDING_REQUEST, &[Part::Fingerprint, Part::Fingerprint])));
        assert!(is_malformed(&build(BINDING_REQUEST, &[raw(FINGERPRINT, b"1234")])));
        assert!(is_malformed(&build(BINDING_REQUEST, &[Part::Integrity, raw(FINGERPRINT, b"1234")])));
        assert!(is_malformed(&build(BINDING_REQUEST, &[raw(FINGERPRINT, b"")])));
    }

    #[test]
    fn the_first_username_counts_and_none_behind_integrity() {
        let twice = build(BINDING_REQUEST, &[raw(USERNAME, b"a:1"), raw(USERNAME, b"b:2"), Part::Integrity]);
        assert_eq!(parse(&twice).unwrap().username(), Some(&b"a:1"[..]));
        let behind = build(BINDING_REQUEST, &[Part::Integrity, raw(USERNAME, b"b:2")]);
        assert_eq!(parse(&behind).unwrap().username(), None);
        assert!(parse(&behind).unwrap().verify_integrity(&PASSWORD));
    }

    #[test]
    fn the_first_integrity_counts() {
        let wrong_first = build(BINDING_REQUEST, &[raw(MESSAGE_INTEGRITY, &[0; 20]), Part::Integrity]);
        assert!(!parse(&wrong_first).unwrap().verify_integrity(&PASSWORD));
        let right_first = build(BINDING_REQUEST, &[Part::Integrity, raw(MESSAGE_INTEGRITY, &[0; 20])]);
        assert!(parse(&right_first).unwrap().verify_integrity(&PASSWORD));
    }

    #[test]
    fn a_username_of_more_than_513_bytes_is_refused_if_it_counts() {
        let long = raw(USERNAME, &[b'a'; 514]);
        assert!(!is_malformed(&build(BINDING_REQUEST, &[raw(USERNAME, &[b'a'; 513])])));
        assert!(is_malformed(&build(BINDING_REQUEST, std::slice::from_ref(&long))));
        assert!(!is_malformed(&build(BINDING_REQUEST, &[raw(USERNAME, b"a:b"), long.clone()])));
        assert!(!is_malformed(&build(BINDING_REQUEST, &[Part::Integrity, long])));
    }

    fn any_part() -> impl Strategy<Value = Part> {
        let kinds = prop_oneof![
            Just(USERNAME),
            Just(MESSAGE_INTEGRITY),
            Just(PRIORITY),
            Just(USE_CANDIDATE),
            Just(FINGERPRINT),
            Just(ICE_CONTROLLED),
            Just(SOFTWARE),
            any::<u16>(),
        ];
        let lengths = prop_oneof![Just(0), Just(4), Just(8), Just(20), 0..40_usize, 500..530_usize];
        let raws = (kinds, lengths, any::<u8>()).prop_map(|(kind, length, fill)| Part::Raw(kind, vec![fill; length]));
        prop_oneof![4 => raws, 1 => Just(Part::Integrity), 1 => Just(Part::Fingerprint)]
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_and_verified(
            username in proptest::collection::vec(any::<u8>(), 0..=513),
            software in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let parts = [raw(SOFTWARE, &software), raw(USERNAME, &username), Part::Integrity, Part::Fingerprint];
            let datagram = build(BINDING_REQUEST, &parts);
            let message = parse(&datagram).unwrap();
            prop_assert_eq!(message.username(), Some(&username[..]));
            prop_assert!(message.verify_integrity(&PASSWORD));
        }

        #[test]
        fn a_flip_of_any_covered_bit_shows(
            username in proptest::collection::vec(any::<u8>(), 0..60),
            at in any::<proptest::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut datagram = build(BINDING_REQUEST, &[raw(USERNAME, &username), Part::Integrity]);
            let at = at.index(datagram.len());
            datagram[at] ^= 1_u8 << bit;
            let accepted = parse(&datagram).is_ok_and(|message| message.verify_integrity(&PASSWORD));
            prop_assert!(!accepted, "byte {at}");
        }

        #[test]
        fn a_flip_of_any_bit_before_the_fingerprint_is_refused(
            username in proptest::collection::vec(any::<u8>(), 0..60),
            at in any::<proptest::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut datagram = check(&username);
            let covered = datagram.len() - 8;
            let at = at.index(covered);
            datagram[at] ^= 1_u8 << bit;
            let accepted = parse(&datagram).is_ok_and(|message| message.verify_integrity(&PASSWORD));
            prop_assert!(!accepted, "byte {at}");
        }

        #[test]
        fn a_parsed_message_keeps_what_a_second_walk_finds(parts in proptest::collection::vec(any_part(), 0..6)) {
            let datagram = build(BINDING_REQUEST, &parts);
            if let Ok(message) = parse(&datagram) {
                let covered = parts.iter().take_while(|part| !is_integrity(part));
                let names = covered.filter_map(|part| match part {
                    Part::Raw(USERNAME, value) => Some(&value[..]),
                    _ => None,
                });
                prop_assert_eq!(message.username(), names.clone().next());
                let first = parts.iter().find(|part| is_integrity(part));
                prop_assert_eq!(message.verify_integrity(&PASSWORD), matches!(first, Some(Part::Integrity)));
            }
        }

        #[test]
        fn no_input_makes_it_panic(datagram in proptest::collection::vec(any::<u8>(), 0..200), mend in any::<bool>()) {
            let mut datagram = datagram;
            if mend && datagram.len() >= HEADER_LENGTH {
                datagram.truncate(datagram.len() / 4 * 4);
                datagram[0] &= 0x3f;
                datagram[4..8].copy_from_slice(&MAGIC_COOKIE);
                set_length(&mut datagram, 0);
            }
            if let Ok(message) = parse(&datagram) {
                let _ = (message.server_ufrag(), message.verify_integrity(&PASSWORD));
            }
        }
    }

    fn is_integrity(part: &Part) -> bool {
        matches!(part, Part::Integrity | Part::Raw(MESSAGE_INTEGRITY, _))
    }
}
