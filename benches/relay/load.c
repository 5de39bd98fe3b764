// The load: all clients and all transceivers of a relay, in one process that also counts what arrives.
//
// load CLIENT-NET TRANSCEIVER-IP TRANSCEIVERS : says the transceivers' ports as JSON, then takes commands by stdin, each
// answered by one line of JSON:
//   open IP PORT FLOWS         make or refresh flows at the relay there, by real checks and alive answers
//   send KEY=VALUE ...         send at a rate through a relay, and say what came out; see `read_plan`
//
// Client i has the address CLIENT-NET + 1 + i (packet info chooses it) and the port of the one client socket. It belongs to
// transceiver i mod T; 16 clients share a ufrag. One thread sends, one receives. In most runs a filter lets only every
// SAMPLE-th datagram reach the receiver, so that its time is no part of the picture; the kernel counts the others.
#define _GNU_SOURCE
#include "wire.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_TRANSCEIVERS = 64, BURST = 64, AREA = 9216, CHUNK = 256, FLOWS_PER_UFRAG = 16, CHECKS = 1024 };
enum { STAMP_AT = 16, BUCKET_NS = 250, BUCKETS = 80000, HOSTILE = 1 << 20 };

enum kind { RTP, STUN, UNKNOWN, JUNK, FORGED, TAMPERED, MIX };
static const char *const KINDS[] = {"rtp", "stun", "unknown", "junk", "forged", "tampered", "mix"};

// The return slot of each transceiver's answers is 0 where no trunk is on the way.
struct relay { struct sockaddr_in to, upstream; uint16_t slots[MOST_TRANSCEIVERS]; };
struct plan {
    int port, burst, ms, size, hostile, sample, flows, stamp;
    double rate;
    enum kind live, attack;
    char direction;  // up, down, or x: straight to the transceivers, without a relay
};

// What the receiver counts; reset between runs.
static struct {
    atomic_ulong datagrams, records, questions, wrong;
    atomic_uint buckets[BUCKETS];
} seen;

static int clients, transceivers[MOST_TRANSCEIVERS];
static struct sockaddr_in transceiver_names[MOST_TRANSCEIVERS];
static int transceiver_count;
static uint32_t net;
static uint16_t client_port;
static struct relay relays[16];
static int relay_count;
static pthread_t receiver;
static uint64_t random_state = 88172645463325252u;

static struct mmsghdr headers[BURST];
static struct iovec pieces[BURST];
static _Alignas(8) uint8_t controls[BURST][64];
static _Alignas(64) uint8_t areas[BURST][2048];
static uint8_t checks[CHECKS][160], answered[CHUNK];
static size_t check_length;

static uint32_t random32(void) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static void client_path(uint32_t client, uint8_t path[20]) {
    put16(path, LISTENER), put16(path + 2, client_port), memset(path + 4, 0, 10), memset(path + 14, 0xff, 2);
    put32(path + 16, net + 1 + client);
}

// ---- receiving

static void on_record(const uint8_t *record, void *context) {
    const uint8_t *payload = record + RECORD;
    uint64_t arrived = *(uint64_t *)context, sent;
    atomic_fetch_add_explicit(&seen.records, 1, memory_order_relaxed);
    if (arrived && get16(record) >= STAMP_AT + 8) {
        memcpy(&sent, payload + STAMP_AT, 8);
        uint64_t bucket = arrived > sent ? (arrived - sent) / BUCKET_NS : 0;
        atomic_fetch_add_explicit(&seen.buckets[bucket < BUCKETS ? bucket : BUCKETS - 1], 1, memory_order_relaxed);
    }
}

// A client's datagram: it must have come from a relay to the address of the client that its SSRC names.
static bool is_for_client(const uint8_t *payload, size_t length, const struct sockaddr_in *from, struct in_addr to) {
    bool known = false;
    for (int n = 0; n < relay_count; n++)
        known |= relays[n].to.sin_port == from->sin_port && relays[n].to.sin_addr.s_addr == from->sin_addr.s_addr;
    return known && length >= 12 && get32(payload + 8) + net + 1 == ntohl(to.s_addr);
}

static void take(int fd, const struct msghdr *header, size_t length) {
    const uint8_t *datagram = header->msg_iov->iov_base;
    uint64_t arrived = 0;
    struct in_addr to = {0};
    for (struct cmsghdr *message = CMSG_FIRSTHDR(header); message; message = CMSG_NXTHDR((struct msghdr *)header, message)) {
        struct timespec time;
        struct in_pktinfo info;
        if (message->cmsg_level == SOL_SOCKET && message->cmsg_type == SCM_TIMESTAMPNS)
            memcpy(&time, CMSG_DATA(message), sizeof time), arrived = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
        else if (message->cmsg_level == IPPROTO_IP && message->cmsg_type == IP_PKTINFO)
            memcpy(&info, CMSG_DATA(message), sizeof info), to = info.ipi_addr;
    }
    atomic_fetch_add_explicit(&seen.datagrams, 1, memory_order_relaxed);
    if (fd == clients) {
        uint8_t record[RECORD + STAMP_AT + 8] = {0};
        if (!is_for_client(datagram, length, header->msg_name, to)) atomic_fetch_add(&seen.wrong, 1);
        put16(record, length < STAMP_AT + 8 ? 0 : STAMP_AT + 8);
        memcpy(record + RECORD, datagram, length < STAMP_AT + 8 ? 0 : STAMP_AT + 8);
        on_record(record, &arrived);
    } else if (length > 1 && datagram[1] == WHO_HAS) {
        atomic_fetch_add(&seen.questions, 1);
    } else if (hop_read(datagram, length, DATA, unix_ms(), on_record, &arrived) < 0) {
        atomic_fetch_add(&seen.wrong, 1);
    }
}

static void *receive(void *nothing) {
    static uint8_t memory[BURST][AREA];
    static struct mmsghdr heads[BURST];
    static struct iovec parts[BURST];
    static struct sockaddr_in names[BURST];
    static _Alignas(8) uint8_t control[BURST][128];
    struct pollfd fds[MOST_TRANSCEIVERS + 1];
    for (int n = 0; n < transceiver_count; n++) fds[n] = (struct pollfd){transceivers[n], POLLIN, 0};
    fds[transceiver_count] = (struct pollfd){clients, POLLIN, 0};
    for (;;) {
        poll(fds, (nfds_t)transceiver_count + 1, -1);
        for (int n = 0; n <= transceiver_count; n++) {
            if (!(fds[n].revents & POLLIN)) continue;
            for (int at = 0; at < BURST; at++) {
                parts[at] = (struct iovec){memory[at], AREA};
                heads[at].msg_hdr = (struct msghdr){&names[at], sizeof names[at], &parts[at], 1, control[at], 128, 0};
            }
            int count = recvmmsg(fds[n].fd, heads, BURST, MSG_DONTWAIT, NULL);
            for (int at = 0; at < count; at++) take(fds[n].fd, &heads[at].msg_hdr, heads[at].msg_len);
        }
    }
    return nothing;
}

// Lets every `sample`-th datagram through, 0 for all; and every question, to tell it from what was relayed.
static void filter(int fd, uint32_t sample) {
    struct sock_filter every[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 8 + 1),  // behind the UDP header: type
                                  BPF_JUMP(BPF_JMP | BPF_JEQ, WHO_HAS, 3, 0),
                                  BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM)),
                                  BPF_STMT(BPF_ALU | BPF_AND, sample - 1), BPF_JUMP(BPF_JMP | BPF_JEQ, 0, 0, 1),
                                  BPF_STMT(BPF_RET, 0xffff), BPF_STMT(BPF_RET, 0)};
    struct sock_fprog program = {7, every};
    int none = 0;
    if (sample) setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    else setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
}

static uint32_t dropped(int fd) {
    uint32_t info[SK_MEMINFO_VARS] = {0};
    socklen_t length = sizeof info;
    getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &length);
    return info[SK_MEMINFO_DROPS];
}

static unsigned long all_dropped(void) {
    unsigned long sum = dropped(clients);
    for (int n = 0; n < transceiver_count; n++) sum += dropped(transceivers[n]);
    return sum;
}

// ---- making datagrams

static size_t make_check(uint8_t *out, uint32_t client, bool forged, bool tampered) {
    char ufrag[UFRAG], password[PASSWORD];
    uint32_t t = client % (uint32_t)transceiver_count;
    make_ufrag(FIRST_POD + t, client / (FLOWS_PER_UFRAG * (uint32_t)transceiver_count) * (uint32_t)transceiver_count + t, ufrag);
    make_password(ufrag, password);
    if (forged) ufrag[5] = ufrag[5] == 'A' ? 'B' : 'A';
    uint8_t *at = out + 20, digest[20];
    put16(out, BINDING), put32(out + 4, 0x2112A442);
    for (int n = 8; n < 20; n += 4) put32(out + n, random32());
    put16(at, USERNAME), put16(at + 2, UFRAG + 5), memcpy(at + 4, ufrag, UFRAG), memcpy(at + 4 + UFRAG, ":peer", 5), at += 32;
    put16(at, 0x0024), put16(at + 2, 4), put32(at + 4, 1845501695), at += 8;
    put16(at, 0x802A), put16(at + 2, 8), put32(at + 4, random32()), put32(at + 8, random32()), at += 12;
    put16(at, 0x0025), put16(at + 2, 0), at += 4;
    put16(out + 2, (uint16_t)(at + 24 - out - 20));
    hmac_sha1((uint8_t *)password, PASSWORD, out, (size_t)(at - out), NULL, 0, digest);
    if (tampered) digest[0] ^= 1;
    put16(at, INTEGRITY), put16(at + 2, 20), memcpy(at + 4, digest, 20), at += 24;
    put16(out + 2, (uint16_t)(at + 8 - out - 20));
    put16(at, FINGERPRINT), put16(at + 2, 4), put32(at + 4, crc32(out, (size_t)(at - out)) ^ 0x5354554E);
    return (size_t)(at + 8 - out);
}

static void push(int n, uint8_t *begin, size_t length, struct sockaddr_in *to, uint32_t source) {
    struct msghdr *header = &headers[n].msg_hdr;
    pieces[n] = (struct iovec){begin, length};
    *header = (struct msghdr){to, sizeof *to, &pieces[n], 1, NULL, 0, 0};
    if (source) {
        struct cmsghdr *message = (struct cmsghdr *)controls[n];
        struct in_pktinfo info = {.ipi_spec_dst.s_addr = htonl(source)};
        *message = (struct cmsghdr){CMSG_LEN(sizeof info), IPPROTO_IP, IP_PKTINFO};
        memcpy(CMSG_DATA(message), &info, sizeof info);
        header->msg_control = message, header->msg_controllen = CMSG_SPACE(sizeof info);
    }
}

static unsigned long refused;

static void flush(int fd, int count) {
    for (int sent = 0; sent < count;) {
        int result = sendmmsg(fd, headers + sent, (unsigned)(count - sent), 0);
        if (result < 0 && errno != EINTR) refused++, sent++;
        if (result > 0) sent += result;
    }
}

static uint8_t *rtp(int n, uint32_t ssrc, bool stamp) {
    uint8_t *payload = areas[n] + 64;
    payload[0] = 0x80, payload[1] = 0x6f, put32(payload + 8, ssrc);
    if (stamp) {
        uint64_t now = clock_ns(CLOCK_REALTIME);
        memcpy(payload + STAMP_AT, &now, 8);
    }
    return payload;
}

static void push_hostile(int n, enum kind kind, size_t size, struct relay *relay) {
    uint32_t draw = random32(), source = net + 0x200000 + draw % HOSTILE;
    if (kind == MIX) kind = UNKNOWN + draw % 4;
    uint8_t *payload = rtp(n, 0xF0000000 | draw, false);
    if (kind == JUNK) payload[0] = 0x50;
    if (kind == FORGED || kind == TAMPERED) {
        payload = checks[kind == FORGED ? CHECKS - 2 : CHECKS - 1];
        push(n, payload, check_length, &relay->to, source);
    } else {
        push(n, payload, size, &relay->to, source);
    }
}

// ---- commands

static struct relay *relay_at(int port) {
    for (int n = 0; n < relay_count; n++)
        if (ntohs(relays[n].to.sin_port) == port) return &relays[n];
    return NULL;
}

static int receive_one(int fd, uint8_t *out, struct sockaddr_in *from) {
    socklen_t length = sizeof *from;
    return (int)recvfrom(fd, out, AREA, MSG_DONTWAIT, (struct sockaddr *)from, &length);
}

struct opening { uint32_t first; int fd; struct relay *relay; int confirmed; };

// The transceiver's side of a check: it answers, and says that the client is alive.
static void answer(const uint8_t *record, void *context) {
    struct opening *opening = context;
    static uint8_t memory[128];
    uint8_t *payload = memory + 64;
    uint32_t client = get32(record + 19) - net - 1, t = client % (uint32_t)transceiver_count;
    if (client - opening->first >= CHUNK) return;
    memset(payload, 0, 24), payload[0] = 0x80, put32(payload + 8, client);
    uint8_t *begin = hop_write(payload, 24, DATA | TO_CLIENT, ALIVE, FIRST_POD + t, record + 3, unix_ms(), opening->relay->slots[t]);
    sendto(opening->fd, begin, OVERHEAD + 24, 0, (struct sockaddr *)&opening->relay->upstream, sizeof opening->relay->upstream);
}

// Opens the flows first..first+count; a lost one is tried again.
static bool open_chunk(struct relay *relay, uint32_t first, uint32_t count) {
    static uint8_t memory[CHUNK][160], in[AREA];
    struct opening opening = {first, 0, relay, 0};
    struct sockaddr_in from;
    memset(answered, 0, sizeof answered);
    for (int tries = 0; tries < 20 && opening.confirmed < (int)count; tries++) {
        int n = 0;
        for (uint32_t at = 0; at < count; at++) {
            if (answered[at]) continue;
            push(n++, memory[at], make_check(memory[at], first + at, false, false), &relay->to, net + 1 + first + at);
            if (n == BURST) flush(clients, n), n = 0;
        }
        flush(clients, n);
        for (uint64_t until = clock_ns(CLOCK_MONOTONIC) + 200000000; clock_ns(CLOCK_MONOTONIC) < until && opening.confirmed < (int)count;) {
            for (int t = 0; t < transceiver_count; t++) {
                opening.fd = transceivers[t];
                for (int length; (length = receive_one(transceivers[t], in, &from)) > 0;) {
                    if (in[1] == WHO_HAS) continue;  // a question from before
                    relay->upstream = from, relay->slots[t] = get16(in + 16);
                    if (hop_read(in, (size_t)length, DATA, unix_ms(), answer, &opening) < 0) return false;
                }
            }
            while (receive_one(clients, in, &from) >= 12) {
                uint32_t client = get32(in + 8) - first;
                if (client < count && !answered[client]) answered[client] = 1, opening.confirmed++;
            }
        }
    }
    return opening.confirmed == (int)count;
}

static void open_flows(const char *host, int port, uint32_t flows) {
    uint64_t begin = clock_ns(CLOCK_MONOTONIC);
    if (!relay_at(port))
        relays[relay_count++].to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = inet_addr(host)};
    uint32_t opened = 0;
    while (opened < flows) {
        uint32_t count = flows - opened < CHUNK ? flows - opened : CHUNK;
        if (!open_chunk(relay_at(port), opened, count)) break;
        opened += count;
    }
    printf("{\"opened\": %u, \"seconds\": %.3f}\n", opened, (double)(clock_ns(CLOCK_MONOTONIC) - begin) / 1e9);
}

static uint32_t divisor(uint32_t a, uint32_t b) { return b ? divisor(b, a % b) : a; }

// Fills and sends one burst; returns how many live datagrams were in it.
static int send_burst(const struct plan *plan, struct relay *relay) {
    static uint64_t number, bursts, stride = 1, groups = 0;
    static int debt;
    uint32_t T = (uint32_t)transceiver_count, t = (uint32_t)(bursts++ % T), time_ms = unix_ms();
    int live = 0;
    if (groups != (uint32_t)plan->flows / T)  // all flows in turn, but not in the order in which they were made
        for (groups = (uint32_t)plan->flows / T, stride = groups * 618 / 1000 | 1; divisor((uint32_t)groups, (uint32_t)stride) != 1;) stride += 2;
    for (int n = 0; n < plan->burst; n++) {
        size_t size = plan->size ? (size_t)plan->size : 100 + number * 53 % 121;
        if ((debt += plan->hostile) >= 100) {
            debt -= 100, push_hostile(n, plan->attack, size, relay);
            continue;
        }
        live++, number++;
        if (plan->direction == 'u') t = (uint32_t)(number % T);
        uint32_t client = (uint32_t)(number / T * stride % groups) * T + t;
        if (plan->direction == 'd') client = (uint32_t)(number * stride % groups) * T + t;
        uint8_t *payload = rtp(n, client, plan->stamp), path[20];
        if (plan->live == STUN) {
            push(n, checks[client % (CHECKS - 2)], check_length, &relay->to, net + 1 + client % (CHECKS - 2));
        } else if (plan->direction == 'u') {
            push(n, payload, size, &relay->to, net + 1 + client);
        } else {
            uint8_t type = plan->direction == 'd' ? DATA | TO_CLIENT : DATA;
            client_path(client, path);
            payload = hop_write(payload, (uint16_t)size, type, ALIVE, FIRST_POD + t, path, time_ms, plan->direction == 'd' ? relay->slots[t] : 0);
            push(n, payload, OVERHEAD + size, plan->direction == 'd' ? &relay->upstream : &transceiver_names[t], 0);
        }
    }
    flush(plan->direction == 'd' ? transceivers[t] : clients, plan->burst);
    return live;
}

static double percentile(double part) {
    unsigned long all = 0, sum = 0;
    for (int n = 0; n < BUCKETS; n++) all += seen.buckets[n];
    for (int n = 0; n < BUCKETS; n++)
        if ((sum += seen.buckets[n]) >= (unsigned long)(part * (double)all) + 1) return n * BUCKET_NS / 1000.0;
    return all ? BUCKETS * BUCKET_NS / 1000.0 : 0;
}

static void prepare(const struct plan *plan) {
    for (int n = 0; n <= transceiver_count; n++) {
        int fd = n < transceiver_count ? transceivers[n] : clients;
        filter(fd, (uint32_t)plan->sample);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &plan->stamp, sizeof plan->stamp);
    }
    memset(&seen, 0, sizeof seen), refused = 0;
    if (plan->live == STUN || plan->hostile)
        for (uint32_t n = 0; n < CHECKS; n++) check_length = make_check(checks[n], n, n == CHECKS - 2, n == CHECKS - 1);
}

static void send_plan(const struct plan *plan) {
    struct relay *relay = relay_at(plan->port);
    unsigned long live = 0, all = 0, arrived = 0, before;
    clockid_t receiver_clock;
    prepare(plan);
    pthread_getcpuclockid(receiver, &receiver_clock);
    usleep(20000);
    before = all_dropped();
    uint64_t receiver_before = clock_ns(receiver_clock), begin = clock_ns(CLOCK_MONOTONIC), waited = 0;
    uint64_t end = begin + (uint64_t)plan->ms * 1000000, now;
    double next = (double)begin, step = plan->rate > 0 ? plan->burst / plan->rate * 1e9 : 0;
    while ((now = clock_ns(CLOCK_MONOTONIC)) < end) {
        if ((double)now < next) {
            uint64_t due = (uint64_t)next;
            if (due > now + 30000) {
                struct timespec until = {(time_t)((due - 10000) / 1000000000), (long)((due - 10000) % 1000000000)};
                clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
            }
            while (clock_ns(CLOCK_MONOTONIC) < due) {}
            waited += clock_ns(CLOCK_MONOTONIC) - now;
        }
        live += (unsigned long)send_burst(plan, relay), all += (unsigned long)plan->burst;
        // What could not be sent for 50 ms is not made up for: it would be a flood.
        next = next + step + 50e6 < (double)now ? (double)now : next + step;
    }
    double seconds = (double)(clock_ns(CLOCK_MONOTONIC) - begin) / 1e9;
    // What a relay still has in its socket comes later; it is done when nothing has come for 40 ms.
    double drain = 0;
    for (int quiet = 0; quiet < 20 && drain < 2;) {
        usleep(2000);
        unsigned long count = seen.datagrams - seen.questions + all_dropped() - before;
        if (count != arrived) drain = (double)(clock_ns(CLOCK_MONOTONIC) - begin) / 1e9 - seconds;
        quiet = count == arrived ? quiet + 1 : 0, arrived = count;
    }
    printf("{\"seconds\": %.4f, \"drain\": %.4f, \"sent\": %lu, \"hostile\": %lu, \"refused\": %lu, \"arrived\": %lu, \"read\": %lu, \"records\": %lu, "
           "\"wrong\": %lu, \"waited\": %.4f, \"receiver_cpu\": %.6f, \"latency\": [%.2f, %.2f, %.2f]}\n",
           seconds, drain, live, all - live, refused, arrived, seen.datagrams, seen.records, seen.wrong, (double)waited / 1e9,
           (double)(clock_ns(receiver_clock) - receiver_before) / 1e9, percentile(0.5), percentile(0.99), percentile(0.999));
}

static enum kind kind_named(const char *name) {
    for (int n = 0; n <= MIX; n++)
        if (strcmp(KINDS[n], name) == 0) return (enum kind)n;
    fprintf(stderr, "no kind %s\n", name), exit(2);
}

// port= of the relay, direction=u|d|x, rate= in datagrams/s (0: as fast as it goes), burst=, ms=, size= (0: voice, 100 to
// 220 bytes), flows=, live=rtp|stun, hostile= percent, attack= its kind, sample= power of two or 0, stamp=1 for latency.
static struct plan read_plan(char *text) {
    struct plan plan = {.burst = 16, .ms = 300, .sample = 64, .flows = 1000, .direction = 'u', .live = RTP, .attack = MIX, .rate = 10000};
    for (char *word = strtok(text, " \n"); word; word = strtok(NULL, " \n")) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(word, "port")) plan.port = atoi(value);
        if (!strcmp(word, "direction")) plan.direction = value[0];
        if (!strcmp(word, "rate")) plan.rate = atof(value);
        if (!strcmp(word, "burst")) plan.burst = atoi(value);
        if (!strcmp(word, "ms")) plan.ms = atoi(value);
        if (!strcmp(word, "size")) plan.size = atoi(value);
        if (!strcmp(word, "flows")) plan.flows = atoi(value);
        if (!strcmp(word, "live")) plan.live = kind_named(value);
        if (!strcmp(word, "hostile")) plan.hostile = atoi(value);
        if (!strcmp(word, "attack")) plan.attack = kind_named(value);
        if (!strcmp(word, "sample")) plan.sample = atoi(value);
        if (!strcmp(word, "stamp")) plan.stamp = atoi(value);
    }
    return plan;
}

static int open_socket(const char *host, struct sockaddr_in *name) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1, size = 4 << 20;
    socklen_t length = sizeof *name;
    *name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size), setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)name, sizeof *name) != 0) perror("bind"), exit(1);
    getsockname(fd, (struct sockaddr *)name, &length);
    return fd;
}

int main(int count, char **arguments) {
    if (count != 4) return fprintf(stderr, "usage: load CLIENT-NET TRANSCEIVER-IP TRANSCEIVERS\n"), 2;
    struct sockaddr_in name;
    char line[512], host[64];
    int port;
    unsigned flows;
    net = ntohl(inet_addr(arguments[1])), transceiver_count = atoi(arguments[3]);
    prctl(PR_SET_TIMERSLACK, 1);
    clients = open_socket("0.0.0.0", &name), client_port = ntohs(name.sin_port);
    printf("{\"transceivers\": [");
    for (int n = 0; n < transceiver_count; n++) {
        transceivers[n] = open_socket(arguments[2], &transceiver_names[n]);
        printf("%s%u", n ? ", " : "", ntohs(transceiver_names[n].sin_port));
    }
    printf("]}\n"), fflush(stdout);
    bool receiving = false;
    while (fgets(line, sizeof line, stdin)) {
        bool opening = sscanf(line, "open %63s %d %u", host, &port, &flows) == 3;
        if (receiving && opening) pthread_cancel(receiver), pthread_join(receiver, NULL), receiving = false;
        if (!receiving && !opening) pthread_create(&receiver, NULL, receive, NULL), receiving = true;
        if (opening) {
            struct plan everything = {0};
            prepare(&everything), open_flows(host, port, flows);
        } else {
            struct plan plan = read_plan(line);
            send_plan(&plan);
        }
        fflush(stdout);
    }
}
