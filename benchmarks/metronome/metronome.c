/* A completions server that keeps time: first token after `ttft_ms`, one token every `itl_ms`, for any number of
 * streams. What it sends is what vLLM 0.31 sends for the same request (running usage figures, finish reason, final
 * usage, [DONE], chunked, keep-alive); when it sends it is the truth that a client's figures are compared with.
 *
 *     metronome PORT TTFT_MS ITL_MS GRID_MS     port 0: any; the port is printed on the first line
 *
 * Times at which tokens are due are rounded up to a grid of GRID_MS, so that streams that began together are served
 * together, as an engine's steps and the timers of event loops do; 0: each stream keeps its own phase.
 *
 * GET /lateness answers {"writes", "late_p50_ms", "late_p99_ms", "late_max_ms", "ttft_p50_ms", "cpu_s"} since the last
 * such call: how far behind its own clock it was, so that its faults are not taken for the client's, and the time to
 * first token that it meant (TTFT_MS and the rounding).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FD = 65536, MAX_SAMPLES = 1 << 22 };

typedef struct {
    int fd, active;
    char *in;                       /* request bytes not yet answered */
    size_t in_len, in_room;
    size_t head_len, body_len;      /* of the request being read, 0 while unknown */
    char *out;                      /* bytes the socket did not take */
    size_t out_len, out_room;
    int prompt_tokens, max_tokens, sent;
    int64_t start_ns, due_ns;
    char id[40];
} Conn;

static Conn *conns[MAX_FD];
static Conn *heap[MAX_FD];          /* running streams by due time */
static int heap_len;
static int64_t ttft_ns, itl_ns, grid_ns;
static int epoll_fd, timer_fd;
static float *late_ms, *ttft_ms;
static int samples, firsts;
static unsigned long ids;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void heap_up(int i) {
    while (i && heap[i]->due_ns < heap[(i - 1) / 2]->due_ns) {
        Conn *c = heap[i]; heap[i] = heap[(i - 1) / 2]; heap[(i - 1) / 2] = c;
        i = (i - 1) / 2;
    }
}

static void heap_down(int i) {
    for (;;) {
        int least = i, l = 2 * i + 1, r = l + 1;
        if (l < heap_len && heap[l]->due_ns < heap[least]->due_ns) least = l;
        if (r < heap_len && heap[r]->due_ns < heap[least]->due_ns) least = r;
        if (least == i) return;
        Conn *c = heap[i]; heap[i] = heap[least]; heap[least] = c;
        i = least;
    }
}

static void watch(Conn *c, int op, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = c->fd};
    epoll_ctl(epoll_fd, op, c->fd, &e);
}

static void hang_up(Conn *c) {
    for (int i = 0; i < heap_len; i++)
        if (heap[i] == c) {
            heap[i] = heap[--heap_len];
            heap_down(i);
            if (i < heap_len) heap_up(i);
            break;
        }
    close(c->fd);
    conns[c->fd] = NULL;
    free(c->in); free(c->out); free(c);
}

static int put(Conn *c, const char *data, size_t len) {
    if (!c->out_len) {
        ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return -1;
        if (n > 0) { data += n; len -= n; }
        if (!len) return 0;
        watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    }
    if (c->out_len + len > c->out_room) {
        c->out_room = 2 * (c->out_len + len);
        c->out = realloc(c->out, c->out_room);
    }
    memcpy(c->out + c->out_len, data, len);
    c->out_len += len;
    return 0;
}

static int frame(char *to, const char *body, int len) {
    int n = sprintf(to, "%x\r\n", len);
    memcpy(to + n, body, len);
    memcpy(to + n + len, "\r\n", 2);
    return n + len + 2;
}

static int send_token(Conn *c) {
    char body[1024], out[4096];
    int last = ++c->sent >= c->max_tokens;
    int len = sprintf(body,
        "data: {\"id\":\"%s\",\"object\":\"text_completion\",\"created\":1764400000,\"model\":\"metronome\",\"choices\":"
        "[{\"index\":0,\"text\":\" tick\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,"
        "\"prompt_token_ids\":null,\"token_ids\":null}],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,"
        "\"completion_tokens\":%d}}\n\n",
        c->id, last ? "\"length\"" : "null", c->prompt_tokens, c->prompt_tokens + c->sent, c->sent);
    int n = frame(out, body, len);
    if (last) {
        len = sprintf(body,
            "data: {\"id\":\"%s\",\"object\":\"text_completion\",\"created\":1764400000,\"model\":\"metronome\","
            "\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
            c->id, c->prompt_tokens, c->prompt_tokens + c->sent, c->sent);
        n += frame(out + n, body, len);
        n += frame(out + n, "data: [DONE]\n\n", 14);
        n += sprintf(out + n, "0\r\n\r\n");
        c->active = 0;
    }
    return put(c, out, n);
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int answer_json(Conn *c, const char *json) {
    char out[2048];
    int n = snprintf(out, sizeof out,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", strlen(json), json);
    return put(c, out, n);
}

static int answer_lateness(Conn *c) {
    char json[512];
    qsort(late_ms, samples, sizeof *late_ms, by_value);
    qsort(ttft_ms, firsts, sizeof *ttft_ms, by_value);
    float none = 0, *s = samples ? late_ms : &none;
    int n = samples ? samples : 1;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    snprintf(json, sizeof json,
        "{\"writes\":%d,\"late_p50_ms\":%.4f,\"late_p99_ms\":%.4f,\"late_max_ms\":%.4f,\"ttft_p50_ms\":%.4f,"
        "\"cpu_s\":%.3f}",
        samples, s[n / 2], s[(int)(n * 0.99)], s[n - 1],
        firsts ? ttft_ms[firsts / 2] : 0.0f, cpu);
    samples = firsts = 0;
    return answer_json(c, json);
}

static int number_after(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? atoi(at + strlen(key)) : 0;
}

static int begin_stream(Conn *c) {
    static const char head[] =
        "HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
        "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    const char *body = c->in + c->head_len, *p = strstr(body, "\"prompt\"");
    c->prompt_tokens = 1;
    if (p && (p = strchr(p, '[')))
        for (; *p && *p != ']'; p++) c->prompt_tokens += *p == ',';
    c->max_tokens = number_after(body, "\"max_tokens\":");
    if (c->max_tokens < 1) c->max_tokens = 16;
    c->sent = 0;
    c->active = 1;
    sprintf(c->id, "cmpl-%032lx", ++ids);
    c->due_ns = c->start_ns + ttft_ns;
    if (grid_ns) c->due_ns = (c->due_ns + grid_ns - 1) / grid_ns * grid_ns;
    if (firsts < MAX_SAMPLES) ttft_ms[firsts++] = (c->due_ns - c->start_ns) / 1e6f;
    heap[heap_len] = c;
    heap_up(heap_len++);
    return put(c, head, sizeof head - 1);
}

/* One whole request lies at the beginning of c->in. */
static int answer(Conn *c) {
    int bad;
    if (!strncmp(c->in, "POST ", 5)) bad = begin_stream(c);
    else if (!strncmp(c->in, "GET /lateness", 13)) bad = answer_lateness(c);
    else if (!strncmp(c->in, "GET /v1/models", 14)) bad = answer_json(c, "{\"data\":[{\"id\":\"metronome\"}]}");
    else bad = put(c, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", 45);
    size_t used = c->head_len + c->body_len;
    memmove(c->in, c->in + used, c->in_len - used + 1);
    c->in_len -= used;
    c->head_len = c->body_len = 0;
    return bad;
}

static int readable(Conn *c) {
    for (;;) {
        if (c->in_room < c->in_len + 65536 + 1) c->in = realloc(c->in, c->in_room = 2 * c->in_len + 131072);
        ssize_t n = recv(c->fd, c->in + c->in_len, c->in_room - c->in_len - 1, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return -1;
        if (n < 0) return 0;
        c->in_len += n;
        c->in[c->in_len] = 0;
        if (!c->head_len) {
            char *end = strstr(c->in, "\r\n\r\n");
            if (!end) continue;
            c->head_len = end + 4 - c->in;
            char *length = strcasestr(c->in, "content-length:");
            c->body_len = length && length < end ? strtoul(length + 15, NULL, 10) : 0;
        }
        if (c->in_len >= c->head_len + c->body_len) {
            c->start_ns = now_ns();
            if (answer(c)) return -1;
            return 0;
        }
    }
}

static int writable(Conn *c) {
    ssize_t n = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN ? 0 : -1;
    memmove(c->out, c->out + n, c->out_len - n);
    c->out_len -= n;
    if (!c->out_len) watch(c, EPOLL_CTL_MOD, EPOLLIN);
    return 0;
}

static void tick(void) {
    while (heap_len && heap[0]->due_ns <= now_ns()) {
        Conn *c = heap[0];
        if (samples < MAX_SAMPLES) late_ms[samples++] = (now_ns() - c->due_ns) / 1e6f;
        if (send_token(c)) { hang_up(c); continue; }
        if (c->active) c->due_ns += itl_ns;
        else heap[0] = heap[--heap_len];
        heap_down(0);
    }
    struct itimerspec t = {0};
    if (heap_len) {
        t.it_value.tv_sec = heap[0]->due_ns / 1000000000;
        t.it_value.tv_nsec = heap[0]->due_ns % 1000000000;
    }
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

static void accept_all(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        int one = 1;
        if (fd >= MAX_FD) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Conn *c = conns[fd] = calloc(1, sizeof *c);
        c->fd = fd;
        watch(c, EPOLL_CTL_ADD, EPOLLIN);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: metronome PORT TTFT_MS ITL_MS GRID_MS\n"); return 2; }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct rlimit files = {MAX_FD, MAX_FD};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    ttft_ns = (int64_t)(atof(argv[2]) * 1e6);
    itl_ns = (int64_t)(atof(argv[3]) * 1e6);
    grid_ns = (int64_t)(atof(argv[4]) * 1e6);
    ttft_ms = malloc(MAX_SAMPLES * sizeof *ttft_ms);
    late_ms = malloc(MAX_SAMPLES * sizeof *late_ms);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 4096)) { perror("metronome"); return 1; }
    getsockname(listener, (struct sockaddr *)&at, &size);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, events[256];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    e.data.fd = timer_fd;
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &e);
    for (;;) {
        int n = epoll_wait(epoll_fd, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) { accept_all(listener); continue; }
            if (fd == timer_fd) {
                uint64_t times;
                if (read(timer_fd, &times, sizeof times) < 0 && errno != EAGAIN) return 1;
                continue;
            }
            Conn *c = conns[fd];
            if (!c) continue;
            if ((events[i].events & EPOLLOUT) && c->out_len && writable(c)) { hang_up(c); continue; }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && readable(c)) hang_up(c);
            tick();
        }
        tick();
    }
}
