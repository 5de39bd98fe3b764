//! The ICE username fragment that routes the first packet, and the password derived from it (docs/wire.md section 2).
//!
//! A ufrag has 23 ice-chars (RFC 8445 section 5.3): one key letter and 22 characters of base64 (alphabet A-Za-z0-9+/,
//! no padding; RFC 4648 section 4) over one AES-128 block. The block, in network order:
//!
//! ```text
//! cluster 2 | pod 4 | worker 1 | random 5 | check 4 (zero)
//! ```
//!
//! * The last base64 character has 4 spare bits. They are zero; any other spelling is refused, so that one session has
//!   one ufrag. What [`split`] took, [`text`] spells the same.
//! * The check value decides which of the keys under one letter made it. Cluster 0 is never opened.
//! * The password is base64 of the first 24 bytes of HMAC-SHA-256(password key, the 23 characters).

use crate::hop::RouteKey;
use aes::Aes128Dec;
use aes::cipher::BlockCipherDecrypt;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of the text of a ufrag.
pub const UFRAG_LENGTH: usize = 23;
const BLOCK_LENGTH: usize = 16;
const CHECK: [u8; 4] = [0; 4];
const NO_CLUSTER: [u8; 2] = [0; 2];
const PASSWORD_BYTES: usize = 24;

/// A ufrag of our shape: it stands for one text of 23 characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ufrag {
    /// The key letter, A-Z or a-z.
    pub letter: u8,
    /// The encrypted block.
    pub block: [u8; BLOCK_LENGTH],
}

/// The text is no ufrag of ours: its length, a character, or the spelling of its last one is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape;

/// Return the key letter and the encrypted block of a ufrag.
pub fn split(text: &[u8]) -> Result<Ufrag, Shape> {
    let (letter, encoded) = text.split_first().ok_or(Shape)?;
    if text.len() != UFRAG_LENGTH || !letter.is_ascii_alphabetic() {
        return Err(Shape);
    }
    let mut block = [0; BLOCK_LENGTH];
    match STANDARD_NO_PAD.decode_slice(encoded, &mut block) {
        Ok(BLOCK_LENGTH) => Ok(Ufrag { letter: *letter, block }),
        _ => Err(Shape),
    }
}

/// Return the text of a ufrag.
pub fn text(ufrag: &Ufrag) -> [u8; UFRAG_LENGTH] {
    let mut text = [ufrag.letter; UFRAG_LENGTH];
    let written = STANDARD_NO_PAD.encode_slice(ufrag.block, &mut text[1..]);
    debug_assert_eq!(written, Ok(UFRAG_LENGTH - 1), "22 characters hold 16 bytes");
    text
}

/// Return the password of a ufrag, 32 ice-chars. [`PasswordKey`] does the same without setting the key up each time.
pub fn ice_password(password_key: &[u8; 32], text: &[u8; UFRAG_LENGTH]) -> [u8; 32] {
    PasswordKey::new(password_key).password(text)
}

/// A ufrag key, ready to open ufrags.
#[derive(Clone)]
pub struct UfragKey {
    cipher: Aes128Dec,
}

impl UfragKey {
    /// Take a key of AES-128.
    pub fn new(key: &[u8; 16]) -> Self {
        Self { cipher: Aes128Dec::new(&(*key).into()) }
    }

    /// Return the route in an encrypted block, or None when this key did not make it.
    pub fn open(&self, block: &[u8; BLOCK_LENGTH]) -> Option<RouteKey> {
        let mut clear = (*block).into();
        self.cipher.decrypt_block(&mut clear);
        let (route, rest) = clear.split_first_chunk()?;
        (rest.ends_with(&CHECK) && !route.starts_with(&NO_CLUSTER)).then_some(*route)
    }
}

/// A password key, ready to derive passwords.
#[derive(Clone)]
pub struct PasswordKey {
    keyed: Hmac<Sha256>,
}

impl PasswordKey {
    /// Take a key of 32 bytes.
    pub fn new(key: &[u8; 32]) -> Self {
        // The constructor takes keys of any length from 64 bytes; a shorter one is filled up with zeros (RFC 2104).
        let mut block = [0; 64];
        block[..key.len()].copy_from_slice(key);
        Self { keyed: Hmac::new(&block.into()) }
    }

    /// Return the password of a ufrag, 32 ice-chars.
    pub fn password(&self, text: &[u8; UFRAG_LENGTH]) -> [u8; 32] {
        let mut mac = self.keyed.clone();
        mac.update(text);
        let digest = mac.finalize().into_bytes();
        let mut password = [0; 32];
        let written = STANDARD_NO_PAD.encode_slice(&digest[..PASSWORD_BYTES], &mut password);
        debug_assert_eq!(written, Ok(password.len()), "32 characters hold 24 bytes");
        password
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes::Aes128Enc;
    use aes::cipher::BlockCipherEncrypt;
    use proptest::prelude::*;

    const KEY: [u8; 16] = [7; 16];

    fn seal(clear: [u8; 16]) -> [u8; 16] {
        let mut block = clear.into();
        Aes128Enc::new(&KEY.into()).encrypt_block(&mut block);
        block.into()
    }

    fn clear(route: RouteKey, random: [u8; 5], check: [u8; 4]) -> [u8; 16] {
        let mut clear = [0; 16];
        clear[..7].copy_from_slice(&route);
        clear[7..12].copy_from_slice(&random);
        clear[12..].copy_from_slice(&check);
        clear
    }

    #[test]
    fn only_23_characters_are_a_ufrag() {
        for length in 0..64 {
            assert_eq!(split(&vec![b'A'; length]).is_ok(), length == 23, "{length} characters");
        }
    }

    #[test]
    fn the_first_character_is_a_letter_and_the_others_base64_without_padding() {
        for byte in 0..=255_u8 {
            let mut first = [b'A'; 23];
            first[0] = byte;
            assert_eq!(split(&first).is_ok(), byte.is_ascii_alphabetic(), "first byte {byte}");
            for at in 1..22 {
                let mut text = [b'A'; 23];
                text[at] = byte;
                let expected = byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
                assert_eq!(split(&text).is_ok(), expected, "byte {byte} at {at}");
            }
        }
        assert_eq!(split(b"aAAAAAAAAAAAAAAAAAAAA=="), Err(Shape));
    }

    #[test]
    fn of_the_last_character_only_four_spellings_are_taken() {
        for byte in 0..=255_u8 {
            let mut text = [b'A'; 23];
            text[22] = byte;
            assert_eq!(split(&text).is_ok(), b"AQgw".contains(&byte), "byte {byte}");
        }
    }

    #[test]
    fn a_key_opens_what_it_made_and_no_other_does() {
        let route = [0, 1, 3, 0x9a, 0x1e, 0, 9];
        let block = seal(clear(route, *b"12345", CHECK));
        assert_eq!(UfragKey::new(&KEY).open(&block), Some(route));
        assert_eq!(UfragKey::new(&[8; 16]).open(&block), None);
    }

    #[test]
    fn cluster_0_is_never_opened() {
        let key = UfragKey::new(&KEY);
        assert_eq!(key.open(&seal(clear([0, 0, 1, 1, 1, 1, 1], *b"12345", CHECK))), None);
        assert!(key.open(&seal(clear([1, 0, 0, 0, 0, 0, 0], [0; 5], CHECK))).is_some());
        assert!(key.open(&seal(clear([0, 1, 0, 0, 0, 0, 0], [0; 5], CHECK))).is_some());
    }

    #[test]
    fn any_bit_of_the_check_value_refuses_a_ufrag() {
        for bit in 0..32 {
            let block = seal(clear([0, 1, 0, 0, 0, 1, 0], *b"12345", (1_u32 << bit).to_be_bytes()));
            assert_eq!(UfragKey::new(&KEY).open(&block), None, "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn what_was_split_is_spelled_the_same(input in "[A-Za-z][A-Za-z0-9+/]{21}[A-Za-z0-9+/]") {
            if let Ok(ufrag) = split(input.as_bytes()) {
                prop_assert_eq!(&text(&ufrag)[..], input.as_bytes());
            } else {
                prop_assert!(!input.ends_with(['A', 'Q', 'g', 'w']));
            }
        }

        #[test]
        fn every_letter_and_block_has_a_text(letter in "[A-Za-z]", block in any::<[u8; 16]>()) {
            let ufrag = Ufrag { letter: letter.as_bytes()[0], block };
            prop_assert_eq!(split(&text(&ufrag)), Ok(ufrag));
        }

        #[test]
        fn no_input_makes_it_panic(input in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(ufrag) = split(&input) {
                let _ = UfragKey::new(&KEY).open(&ufrag.block);
            }
        }

        #[test]
        fn every_route_comes_back(route in any::<RouteKey>(), random in any::<[u8; 5]>()) {
            let opened = UfragKey::new(&KEY).open(&seal(clear(route, random, CHECK)));
            prop_assert_eq!(opened, (route[..2] != [0, 0]).then_some(route));
        }

        #[test]
        fn a_password_has_32_ice_chars_and_depends_on_key_and_ufrag(
            key in any::<[u8; 32]>(),
            name in any::<[u8; 23]>(),
            at in 0..23_usize,
        ) {
            let password = ice_password(&key, &name);
            prop_assert!(password.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte)));
            let mut other = name;
            other[at] ^= 1;
            prop_assert_ne!(ice_password(&key, &other), password);
        }
    }
}
