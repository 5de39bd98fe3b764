// The formats of docs/wire.md in C, once more and by hand: for the plain loop, and to check what all others send.
#pragma once
#define OPENSSL_SUPPRESS_DEPRECATED  // SHA1_Update without a heap and a method table is what a fast path would use
#include <arpa/inet.h>
#include <openssl/aes.h>
#include <openssl/sha.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { OUTER = 26, RECORD = 25, OVERHEAD = OUTER + RECORD, COVERED = 16, MAC_AT = 18 };
enum { DATA = 1, WHO_HAS = 3, TO_CLIENT = 0x80, ALIVE = 2, KEY_ID = 1, LISTENER = 1, CLUSTER = 1, FIRST_POD = 17 };
enum { UFRAG = 23, PASSWORD = 32, BINDING = 0x0001, USERNAME = 0x0006, INTEGRITY = 0x0008, FINGERPRINT = 0x8028 };

// What benches/relay/programs.py gives the engines.
static const char LETTER = 'u';
static const uint8_t HOP_KEY[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t UFRAG_KEY[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t PASSWORD_KEY[32] = {2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17,
                                         18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33};

static inline void put16(uint8_t *to, uint16_t value) { value = htons(value), memcpy(to, &value, 2); }
static inline void put32(uint8_t *to, uint32_t value) { value = htonl(value), memcpy(to, &value, 4); }
static inline uint16_t get16(const uint8_t *from) { return (uint16_t)(from[0] << 8 | from[1]); }
static inline uint32_t get32(const uint8_t *from) { return (uint32_t)get16(from) << 16 | get16(from + 2); }
static inline uint64_t clock_ns(clockid_t which) {
    struct timespec time;
    clock_gettime(which, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}
static inline uint32_t unix_ms(void) { return (uint32_t)(clock_ns(CLOCK_REALTIME) / 1000000); }

#define ROTATE(x, by) ((x) << (by) | (x) >> (64 - (by)))
#define SIPROUND                                                                                                       \
    do {                                                                                                               \
        a += b, b = ROTATE(b, 13) ^ a, a = ROTATE(a, 32), c += d, d = ROTATE(d, 16) ^ c;                               \
        a += d, d = ROTATE(d, 21) ^ a, c += b, b = ROTATE(b, 17) ^ c, c = ROTATE(c, 32);                               \
    } while (0)

// SipHash-2-4.
static inline uint64_t siphash(const uint8_t *in, size_t length) {
    uint64_t k0, k1, word = 0;
    memcpy(&k0, HOP_KEY, 8), memcpy(&k1, HOP_KEY + 8, 8);
    uint64_t a = k0 ^ 0x736f6d6570736575, b = k1 ^ 0x646f72616e646f6d, c = k0 ^ 0x6c7967656e657261,
             d = k1 ^ 0x7465646279746573;
    for (size_t at = 0; at + 8 <= length; at += 8) {
        memcpy(&word, in + at, 8);
        d ^= word;
        SIPROUND;
        SIPROUND;
        a ^= word;
    }
    word = 0;
    memcpy(&word, in + (length & ~(size_t)7), length & 7);
    word |= (uint64_t)length << 56;
    d ^= word;
    SIPROUND;
    SIPROUND;
    a ^= word, c ^= 0xff;
    for (int round = 0; round < 4; round++) SIPROUND;
    return a ^ b ^ c ^ d;
}

// Writes both headers in front of `payload` and returns where the datagram begins. `type` includes the direction. What
// has a return slot is forwarded twice.
static inline uint8_t *hop_write(uint8_t *payload, uint16_t length, uint8_t type, uint8_t flags, uint32_t pod,
                                 const uint8_t path[20], uint32_t time_ms, uint16_t slot) {
    uint8_t *outer = payload - OVERHEAD, *record = payload - RECORD;
    outer[0] = 1, outer[1] = type, outer[2] = 0, outer[3] = slot ? 2 : 1;
    put16(outer + 4, CLUSTER), put32(outer + 6, pod), outer[10] = 0, outer[11] = KEY_ID;
    put32(outer + 12, time_ms), put16(outer + 16, slot), memset(outer + MAC_AT, 0, 8);
    put16(record, length), record[2] = flags, memcpy(record + 3, path, 20), put16(record + 23, 0);
    uint64_t mac = __builtin_bswap64(siphash(outer, OVERHEAD + (length < COVERED ? length : COVERED)));
    memcpy(outer + MAC_AT, &mac, 8);
    return outer;
}

// Calls `each(record header, context)` for the records of a whole datagram whose MAC and time hold; returns how many.
static inline int hop_read(const uint8_t *in, size_t length, uint8_t type, uint32_t now_ms,
                           void (*each)(const uint8_t *, void *), void *context) {
    uint8_t covered[OUTER + 256 * (RECORD + COVERED)];
    size_t at = OUTER, used = OUTER;
    int records = 0;
    if (length < OVERHEAD || in[0] != 1 || in[1] != type || in[3] == 0 || in[11] != KEY_ID) return -1;
    memcpy(covered, in, OUTER), memset(covered + MAC_AT, 0, 8);
    for (; at < length && records < 256; records++) {
        if (at + RECORD > length || at + RECORD + get16(in + at) > length) return -1;
        size_t payload = get16(in + at), part = RECORD + (payload < COVERED ? payload : COVERED);
        memcpy(covered + used, in + at, part);
        used += part, at += RECORD + payload;
    }
    uint64_t mac = __builtin_bswap64(siphash(covered, used));
    if (at != length || memcmp(&mac, in + MAC_AT, 8) != 0) return -1;
    int32_t offset = (int32_t)(now_ms - get32(in + 12));
    if (offset < -60000 || offset > 60000) return -1;
    for (at = OUTER; at < length; at += RECORD + get16(in + at)) each(in + at, context);
    return records;
}

static inline void path_key(uint8_t path[20], uint16_t listener, const struct sockaddr_in *from) {
    put16(path, listener), memcpy(path + 2, &from->sin_port, 2);
    memset(path + 4, 0, 10), memset(path + 14, 0xff, 2), memcpy(path + 16, &from->sin_addr, 4);
}

static const char BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static inline void to_base64(const uint8_t *in, size_t length, char *out) {
    uint32_t bits = 0;
    int held = 0;
    for (size_t at = 0; at < length; at++) {
        bits = bits << 8 | in[at], held += 8;
        while (held >= 6) *out++ = BASE64[bits >> (held -= 6) & 63];
    }
    if (held) *out = BASE64[bits << (6 - held) & 63];
}

// HMAC of two pieces; `block` is 64 for both hashes.
#define HMAC_OF(NAME, HASH, CONTEXT, SIZE)                                                                             \
    static inline void NAME(const uint8_t *key, size_t key_length, const uint8_t *one, size_t one_length,              \
                            const uint8_t *two, size_t two_length, uint8_t out[SIZE]) {                                \
        uint8_t pad[64];                                                                                               \
        CONTEXT context;                                                                                               \
        for (size_t at = 0; at < 64; at++) pad[at] = 0x36 ^ (at < key_length ? key[at] : 0);                           \
        HASH##_Init(&context), HASH##_Update(&context, pad, 64);                                                       \
        HASH##_Update(&context, one, one_length), HASH##_Update(&context, two, two_length);                            \
        HASH##_Final(out, &context);                                                                                   \
        for (size_t at = 0; at < 64; at++) pad[at] ^= 0x36 ^ 0x5c;                                                     \
        HASH##_Init(&context), HASH##_Update(&context, pad, 64), HASH##_Update(&context, out, SIZE);                   \
        HASH##_Final(out, &context);                                                                                   \
    }
HMAC_OF(hmac_sha1, SHA1, SHA_CTX, 20)
HMAC_OF(hmac_sha256, SHA256, SHA256_CTX, 32)

static inline void make_password(const char ufrag[UFRAG], char password[PASSWORD]) {
    uint8_t digest[32];
    hmac_sha256(PASSWORD_KEY, 32, (const uint8_t *)ufrag, UFRAG, NULL, 0, digest);
    to_base64(digest, 24, password);
}

static inline void make_ufrag(uint32_t pod, uint32_t number, char ufrag[UFRAG]) {
    uint8_t block[16] = {0};
    AES_KEY key;
    put16(block, CLUSTER), put32(block + 2, pod), put32(block + 8, number);
    AES_set_encrypt_key(UFRAG_KEY, 128, &key), AES_encrypt(block, block, &key);
    ufrag[0] = LETTER;
    to_base64(block, 16, ufrag + 1);
}

static inline uint32_t crc32(const uint8_t *in, size_t length) {
    static uint32_t table[256];
    if (table[1] == 0)
        for (uint32_t byte = 0; byte < 256; byte++) {
            table[byte] = byte;
            for (int bit = 0; bit < 8; bit++) table[byte] = table[byte] >> 1 ^ (table[byte] & 1 ? 0xEDB88320 : 0);
        }
    uint32_t crc = ~0u;
    while (length--) crc = table[(crc ^ *in++) & 255] ^ crc >> 8;
    return ~crc;
}
