// The limit: a relay of one thread in plain C, recvmmsg and sendmmsg in batches of 64, nothing else around it.
//
// It does what the path of a packet needs (docs/wire.md): first byte, flow look-up by (listener, address, port),
// headers with time and SipHash-2-4, packet info; back: route and source, MAC, time, listener. A flow is made by a
// verified Binding request. It has no limits, no roaming, no split, no IPv6, one listener, and keys that never change.
#define _GNU_SOURCE
#include "wire.h"
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64, ROOM = 64, SLOT = 33 * 64, MOST = 2000, CONTROL = 64 };

struct flow {
    uint8_t key[20];
    uint16_t transceiver;
    bool used;
    struct in_addr local;
    uint32_t packets;
    uint64_t bytes, seen, alive;
};

struct batch {
    struct mmsghdr headers[BATCH];
    struct iovec pieces[BATCH];
    struct sockaddr_in names[BATCH];
    _Alignas(8) uint8_t controls[BATCH][CONTROL];
};

struct counts { unsigned long batches, received, forwarded; };

static struct flow *flows;
static uint64_t mask, seed;
static struct sockaddr_in transceivers[64];
static unsigned transceiver_count;
static _Alignas(64) uint8_t slots[BATCH][SLOT];
static struct batch in, out;
static struct counts up, down;

static struct flow *find(const uint8_t key[20]) {
    uint64_t first, second;
    uint32_t third;
    memcpy(&first, key, 8), memcpy(&second, key + 8, 8), memcpy(&third, key + 16, 4);
    unsigned __int128 product = (unsigned __int128)(first ^ seed ^ (uint64_t)third << 17) * (second ^ third ^ 0x9E3779B97F4A7C15);
    uint64_t at = ((uint64_t)product ^ (uint64_t)(product >> 64)) * (seed | 1);
    for (at ^= at >> 32;; at++) {
        struct flow *flow = &flows[at & mask];
        if (!flow->used || memcmp(flow->key, key, 20) == 0) return flow;
    }
}

static int open_socket(const char *host, bool packet_info) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1, size = 4 << 20, df = IP_PMTUDISC_DO;
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size), setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (packet_info) setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
    else setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &df, sizeof df);
    if (bind(fd, (struct sockaddr *)&name, sizeof name) != 0) perror("bind"), exit(1);
    return fd;
}

static unsigned receive(int fd) {
    for (int n = 0; n < BATCH; n++) {
        in.pieces[n] = (struct iovec){slots[n] + ROOM, MOST + 1};
        in.headers[n].msg_hdr = (struct msghdr){&in.names[n], sizeof in.names[n], &in.pieces[n], 1, in.controls[n], CONTROL, 0};
    }
    int count = recvmmsg(fd, in.headers, BATCH, MSG_DONTWAIT, NULL);
    return count < 0 ? 0 : (unsigned)count;
}

static void push(unsigned number, uint8_t *begin, size_t length, const struct sockaddr_in *to, const struct in_addr *local) {
    struct msghdr *header = &out.headers[number].msg_hdr;
    out.pieces[number] = (struct iovec){begin, length};
    out.names[number] = *to;
    *header = (struct msghdr){&out.names[number], sizeof *to, &out.pieces[number], 1, NULL, 0, 0};
    if (local && local->s_addr) {
        struct cmsghdr *message = (struct cmsghdr *)out.controls[number];
        struct in_pktinfo info = {.ipi_spec_dst = *local};
        *message = (struct cmsghdr){CMSG_LEN(sizeof info), IPPROTO_IP, IP_PKTINFO};
        memcpy(CMSG_DATA(message), &info, sizeof info);
        header->msg_control = message, header->msg_controllen = CMSG_SPACE(sizeof info);
    }
}

static void send_all(int fd, unsigned count) {
    for (unsigned sent = 0; sent < count;) {
        int result = sendmmsg(fd, out.headers + sent, count - sent, MSG_DONTWAIT);
        sent += result > 0 ? (unsigned)result : 1;
    }
}

// Opens a ufrag; returns its pod, or 0.
static uint32_t open_ufrag(const char *ufrag) {
    static AES_KEY key;
    static int8_t values[256];
    if (values['B'] == 0) {
        memset(values, -1, sizeof values);
        for (int value = 0; value < 64; value++) values[(uint8_t)BASE64[value]] = (int8_t)value;
        AES_set_decrypt_key(UFRAG_KEY, 128, &key);
    }
    uint8_t block[18] = {0};
    uint32_t bits = 0;
    for (int at = 0, held = 0, used = 0; at < UFRAG - 1; at++) {
        int value = values[(uint8_t)ufrag[at + 1]];
        if (value < 0) return 0;
        bits = bits << 6 | (uint32_t)value, held += 6;
        if (held >= 8) block[used++] = (uint8_t)(bits >> (held -= 8));
    }
    if (ufrag[0] != LETTER || bits & 15) return 0;
    AES_decrypt(block, block, &key);
    return get32(block + 12) == 0 && get16(block) == CLUSTER ? get32(block + 2) : 0;
}

// A Binding request: returns the transceiver that its ufrag names, or -1 where anything is wrong.
static int check_request(const uint8_t *message, size_t length) {
    const uint8_t *username = NULL, *integrity = NULL;
    if (length < 20 || get16(message) != BINDING || get32(message + 4) != 0x2112A442 || get16(message + 2) + 20u != length)
        return -1;
    for (size_t at = 20; at < length;) {
        if (at + 4 > length) return -1;
        size_t size = get16(message + at + 2), next = at + 4 + ((size + 3) & ~(size_t)3);
        uint16_t type = get16(message + at);
        if (next > length) return -1;
        if (type == USERNAME && size > UFRAG) username = message + at + 4;
        if (type == INTEGRITY && size == 20 && !integrity) integrity = message + at;
        if (type == FINGERPRINT && (crc32(message, at) ^ 0x5354554E) != get32(message + at + 4)) return -1;
        at = next;
    }
    if (!username || !integrity || username[UFRAG] != ':') return -1;
    uint32_t pod = open_ufrag((const char *)username);
    if (pod < FIRST_POD || pod >= FIRST_POD + transceiver_count) return -1;
    char password[PASSWORD];
    uint8_t head[20], digest[20];
    make_password((const char *)username, password);
    memcpy(head, message, 20), put16(head + 2, (uint16_t)(integrity - message + 4));
    hmac_sha1((uint8_t *)password, PASSWORD, head, 20, message + 20, (size_t)(integrity - message - 20), digest);
    return memcmp(digest, integrity + 4, 20) == 0 ? (int)(pod - FIRST_POD) : -1;
}

static void from_clients(int listener, int upstream) {
    unsigned count = receive(listener), sends = 0;
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    uint32_t time_ms = unix_ms();
    for (unsigned n = 0; n < count; n++) {
        uint8_t *payload = slots[n] + ROOM, path[20];
        size_t length = in.headers[n].msg_len;
        if (length == 0 || length > MOST) continue;
        path_key(path, LISTENER, &in.names[n]);
        struct flow *flow = find(path);
        if (payload[0] <= 3) {
            int transceiver = check_request(payload, length);
            if (transceiver < 0) continue;
            if (!flow->used) memcpy(flow->key, path, 20), flow->used = true;
            flow->transceiver = (uint16_t)transceiver;
            flow->local = ((struct in_pktinfo *)CMSG_DATA((struct cmsghdr *)in.controls[n]))->ipi_spec_dst;
        } else if (!((payload[0] >= 20 && payload[0] <= 63) || (payload[0] >= 128 && payload[0] <= 191))) {
            continue;
        }
        if (!flow->used) continue;
        flow->packets++, flow->bytes += length, flow->seen = now;
        uint8_t *begin = hop_write(payload, (uint16_t)length, DATA, 0, FIRST_POD + flow->transceiver, path, time_ms, 0);
        push(sends++, begin, OVERHEAD + length, &transceivers[flow->transceiver], NULL);
    }
    send_all(upstream, sends);
    up.batches++, up.received += count, up.forwarded += sends;
}

struct answers { unsigned sends; uint64_t now; };

static void answer(const uint8_t *record, void *context) {
    struct answers *answers = context;
    struct flow *flow = find(record + 3);
    if (answers->sends == BATCH || get16(record + 3) != LISTENER) return;
    if (flow->used && record[2] & ALIVE) flow->alive = answers->now;
    struct sockaddr_in to = {.sin_family = AF_INET};
    memcpy(&to.sin_port, record + 5, 2), memcpy(&to.sin_addr, record + 19, 4);
    push(answers->sends++, (uint8_t *)record + RECORD, get16(record), &to, flow->used ? &flow->local : NULL);
}

static void from_transceivers(int listener, int upstream) {
    unsigned count = receive(upstream);
    struct answers answers = {0, clock_ns(CLOCK_MONOTONIC)};
    uint32_t time_ms = unix_ms();
    for (unsigned n = 0; n < count; n++) {
        uint8_t *datagram = slots[n] + ROOM;
        uint32_t pod = in.headers[n].msg_len >= OVERHEAD ? get32(datagram + 6) - FIRST_POD : ~0u;
        if (pod >= transceiver_count || transceivers[pod].sin_port != in.names[n].sin_port ||
            transceivers[pod].sin_addr.s_addr != in.names[n].sin_addr.s_addr)
            continue;
        hop_read(datagram, in.headers[n].msg_len, DATA | TO_CLIENT, time_ms, answer, &answers);
    }
    send_all(listener, answers.sends);
    down.batches++, down.received += count, down.forwarded += answers.sends;
}

static void say_counts(void) {
    printf("{\"up\": [%lu, %lu, %lu], \"down\": [%lu, %lu, %lu]}\n", up.batches, up.received, up.forwarded,
           down.batches, down.received, down.forwarded);
    fflush(stdout);
}

// loop MOST-FLOWS TRANSCEIVER-IP PORT... : says its port, then its counts for each line of stdin, and ends with it.
int main(int count, char **arguments) {
    if (count < 4) return fprintf(stderr, "usage: loop MOST-FLOWS TRANSCEIVER-IP PORT...\n"), 2;
    for (mask = 1024; mask < 2 * strtoul(arguments[1], NULL, 10); mask *= 2) {}
    flows = calloc(mask--, sizeof *flows);
    seed = clock_ns(CLOCK_REALTIME) * 0x9E3779B97F4A7C15;
    for (int n = 3; n < count && transceiver_count < 64; n++)
        transceivers[transceiver_count++] = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[n])), .sin_addr.s_addr = inet_addr(arguments[2])};
    int listener = open_socket("0.0.0.0", true), upstream = open_socket("0.0.0.0", false);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    getsockname(listener, (struct sockaddr *)&name, &length);
    printf("{\"port\": %u}\n", ntohs(name.sin_port)), fflush(stdout);
    struct pollfd fds[3] = {{listener, POLLIN, 0}, {upstream, POLLIN, 0}, {0, POLLIN, 0}};
    for (char line[64];;) {
        poll(fds, 3, -1);
        if (fds[1].revents) from_transceivers(listener, upstream);
        if (fds[0].revents) from_clients(listener, upstream);
        if (fds[2].revents) {
            if (read(0, line, sizeof line) <= 0) return 0;
            say_counts();
        }
    }
}
