//! STUN is parsed as a second, plain reading of the rules says, and integrity holds for what was covered only.
#![no_main]

use hmac::{Hmac, KeyInit, Mac};
use libfuzzer_sys::fuzz_target;
use sha1::Sha1;
use usher_relay_path::stun;

const PASSWORD: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";
const USERNAME: u16 = 0x0006;
const INTEGRITY: u16 = 0x0008;
const FINGERPRINT: u16 = 0x8028;

fuzz_target!(|input: &[u8]| {
    check(input);
    let Some(choice) = input.first() else { return };
    let mut mended = mend(input);
    check(&mended);
    if mended.len() >= 20 {
        append_integrity(&mut mended);
        if choice & 1 == 1 {
            append_fingerprint(&mut mended);
        }
        check(&mended);
        holds_unless_changed(&mended, usize::from(*choice));
    }
});

fn check(datagram: &[u8]) {
    let expected = read(datagram);
    let found = stun::parse(datagram);
    assert_eq!(found.is_ok(), expected.is_some());
    let (Ok(found), Some(expected)) = (found, expected) else { return };
    assert_eq!(found.username(), expected.username);
    let ufrag =
        expected.username.and_then(|name| name.contains(&b':').then(|| name.split(|byte| *byte == b':').next()));
    assert_eq!(found.server_ufrag(), ufrag.flatten());
    assert_eq!(found.is_binding_request(), datagram[..2] == [0, 1]);
    assert_eq!(found.is_request(), datagram[0] & 1 == 0 && datagram[1] & 0x10 == 0);
    assert_eq!(found.verify_integrity(&PASSWORD), expected.holds);
}

struct Reading<'a> {
    username: Option<&'a [u8]>,
    holds: bool,
}

/// List all attributes first, then judge them.
fn read(datagram: &[u8]) -> Option<Reading<'_>> {
    let size = datagram.len();
    if !(20..=1232).contains(&size) || datagram[0] > 0x3f || datagram[4..8] != [0x21, 0x12, 0xa4, 0x42] {
        return None;
    }
    let length = usize::from(datagram[2]) << 8 | usize::from(datagram[3]);
    if size % 4 != 0 || length != size - 20 {
        return None;
    }
    let attributes = list(datagram)?;
    for (at, kind, value) in &attributes {
        let fixed = match kind {
            0x0008 => Some(20),
            0x0024 | 0x8028 => Some(4),
            0x0025 => Some(0),
            0x8029 | 0x802a => Some(8),
            _ => None,
        };
        if fixed.is_some_and(|fixed| fixed != value.len()) {
            return None;
        }
        let crc = crc32fast::hash(&datagram[..*at]) ^ 0x5354_554e;
        if *kind == FINGERPRINT && (at + 8 != size || *value != crc.to_be_bytes()) {
            return None;
        }
    }
    let integrity = attributes.iter().position(|(_, kind, _)| *kind == INTEGRITY);
    let covered = &attributes[..integrity.unwrap_or(attributes.len())];
    let username = covered.iter().find(|(_, kind, _)| *kind == USERNAME).map(|(_, _, value)| *value);
    if username.is_some_and(|username| username.len() > 513) {
        return None;
    }
    let holds = integrity.is_some_and(|number| {
        let (at, _, value) = attributes[number];
        *value == digest(&datagram[..at])
    });
    Some(Reading { username, holds })
}

fn list(datagram: &[u8]) -> Option<Vec<(usize, u16, &[u8])>> {
    let mut attributes = Vec::new();
    let mut at = 20;
    while at < datagram.len() {
        let kind = u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        let length = usize::from(u16::from_be_bytes([datagram[at + 2], datagram[at + 3]]));
        attributes.push((at, kind, datagram.get(at + 4..at + 4 + length)?));
        at += 4 + length.next_multiple_of(4);
    }
    (at == datagram.len()).then_some(attributes)
}

/// The digest of a message that MESSAGE-INTEGRITY follows.
fn digest(before: &[u8]) -> [u8; 20] {
    let mut covered = before.to_vec();
    set_length(&mut covered, 24);
    let mut mac = Hmac::<Sha1>::new_from_slice(&PASSWORD).expect("a key of any length");
    mac.update(&covered);
    mac.finalize().into_bytes().into()
}

fn set_length(datagram: &mut [u8], extra: usize) {
    let length = (datagram.len() - 20 + extra) as u16;
    datagram[2..4].copy_from_slice(&length.to_be_bytes());
}

/// Make the header good, so that the fuzzer comes to the attributes.
fn mend(input: &[u8]) -> Vec<u8> {
    let mut datagram = input[..input.len() / 4 * 4].to_vec();
    if datagram.len() >= 20 {
        datagram[0] &= 0x3f;
        datagram[4..8].copy_from_slice(&[0x21, 0x12, 0xa4, 0x42]);
        set_length(&mut datagram, 0);
    }
    datagram
}

fn append_integrity(datagram: &mut Vec<u8>) {
    let digest = digest(datagram);
    datagram.extend([&[0, 8, 0, 20], &digest[..]].concat());
    set_length(datagram, 0);
}

fn append_fingerprint(datagram: &mut Vec<u8>) {
    set_length(datagram, 8);
    let crc = crc32fast::hash(datagram) ^ 0x5354_554e;
    datagram.extend([&[0x80, 0x28, 0, 4], &crc.to_be_bytes()[..]].concat());
}

/// Flip one bit that the input chooses: whatever stands before the digest's end is covered.
fn holds_unless_changed(datagram: &[u8], choice: usize) {
    let holds = |datagram: &[u8]| stun::parse(datagram).is_ok_and(|message| message.verify_integrity(&PASSWORD));
    if !holds(datagram) {
        return;
    }
    let Some(end) =
        list(datagram).and_then(|all| all.iter().find(|(_, kind, _)| *kind == INTEGRITY).map(|it| it.0 + 24))
    else {
        return;
    };
    let mut changed = datagram.to_vec();
    changed[choice * 7 % end] ^= 1 << (choice % 8);
    assert!(!holds(&changed));
}
