//! One ufrag has one text, and a ring opens exactly what its keys made for their clusters.
#![no_main]

use aes::Aes128Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use usher_relay_path::keys::{HopKey, IceKey, KeyState, Keys};
use usher_relay_path::ufrag::{Ufrag, ice_password, split, text};

const UFRAG_KEY: [u8; 16] = [7; 16];
const PASSWORD_KEY: [u8; 32] = [9; 32];
const CLUSTERS: [u16; 2] = [1, 258];

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let (state, not_before) = (KeyState::Active, 0);
    let password_key = Some(PASSWORD_KEY);
    let ice = IceKey { letter: b'a', clusters: CLUSTERS.into(), ufrag_key: UFRAG_KEY, password_key, state, not_before };
    Keys::new(&[ice], &[HopKey { id: 0, key: [0; 16], state, not_before }]).expect("good keys")
});

fuzz_target!(|input: &[u8]| {
    if let Ok(ufrag) = split(input) {
        has_one_text(&ufrag, input);
    }
    if let Some((letter, rest)) = input.split_first() {
        if let Some(block) = rest.first_chunk() {
            comes_back(Ufrag { letter: *letter, block: *block });
        }
        if let Some(clear) = rest.first_chunk() {
            opens_if_made(*letter, *clear);
        }
    }
});

fn has_one_text(ufrag: &Ufrag, input: &[u8]) {
    assert_eq!(text(ufrag), input, "what was split is spelled the same");
    for last in 0..=u8::MAX {
        let mut other = text(ufrag);
        other[22] = last;
        match split(&other) {
            Ok(found) => assert_eq!(found == *ufrag, last == input[22], "another spelling is another ufrag"),
            Err(_) => assert_ne!(last, input[22]),
        }
    }
}

fn comes_back(ufrag: Ufrag) {
    let found = split(&text(&ufrag));
    assert_eq!(found.ok(), ufrag.letter.is_ascii_alphabetic().then_some(ufrag));
}

fn opens_if_made(letter: u8, clear: [u8; 16]) {
    let mut block = clear.into();
    Aes128Enc::new(&UFRAG_KEY.into()).encrypt_block(&mut block);
    let ufrag = Ufrag { letter, block: block.into() };
    let cluster = u16::from_be_bytes([clear[0], clear[1]]);
    let ours = letter == b'a' && CLUSTERS.contains(&cluster) && clear[12..] == [0; 4];
    let opened = KEYS.open(&ufrag);
    assert_eq!(opened.map(|opened| opened.route), ours.then(|| *clear.first_chunk().expect("16 bytes")));
    if let Some(opened) = opened {
        assert_eq!(opened.password, Some(ice_password(&PASSWORD_KEY, &text(&ufrag))));
    }
}
