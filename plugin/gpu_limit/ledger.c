/* SPDX-License-Identifier: Apache-2.0
 *
 * Two kinds of locks: flock, by which one process at a time counts and then takes more; and those of fcntl, which are
 * the count (ledger.h). Both end with their process, even by SIGKILL. Those of fcntl are a process': a child does not
 * have its parent's, and they also end with exec, which closes the file.
 */
#define _GNU_SOURCE
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, SLOT_BITS = 56 };

static const char MAGIC[8] __attribute__((nonstring)) = "TGLEDGR2";
/* A lock of this length would reach the next slot. */
static const uint64_t MOST = (1ull << SLOT_BITS) - 2;

/*
 * A stopped process may keep the lock for ever; a running process has it for microseconds. All attempts take about
 * 2 s, because the kernel adds 50 us to each pause (PR_SET_TIMERSLACK). During a pause a holder of lower priority
 * runs. Pauses of up to 5 ms made a process beside a busy one wait for 45 ms.
 */
static const struct timespec PAUSE = {.tv_nsec = 100 * 1000};
enum { ATTEMPTS = 13000 };

struct header {
    char magic[sizeof MAGIC];
    uint64_t limit, overhead, unused[5];
};

_Static_assert(sizeof(struct header) == 64, "the plugin writes this format");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little endian");
_Static_assert(sizeof(off_t) == 8, "an offset is a slot and a number of bytes");

static bool lock(struct ledger *ledger)
{
    ledger->problem = "is locked by a process that does not go on";
    for (int attempt = 1; flock(ledger->file, LOCK_EX | LOCK_NB) != 0; attempt++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return false;
        /* Who has waited in vain once does not wait again. */
        if (ledger->hopeless || attempt == ATTEMPTS) {
            ledger->hopeless = true;
            return false;
        }
        nanosleep(&PAUSE, NULL);
    }
    ledger->hopeless = false;
    ledger->problem = NULL;
    return true;
}

static void unlock(const struct ledger *ledger)
{
    flock(ledger->file, LOCK_UN);
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static off_t begin_of(int slot)
{
    return (off_t)slot << SLOT_BITS;
}

struct others {
    uint64_t bytes; /* with each one's overhead */
    uint64_t slots; /* a bit for each slot that is taken */
};

/* Find a lock of another process in the slots from `first` to before `end`. Gives its slot; -1: there is none. */
static int find_other(const struct ledger *ledger, int first, int end, uint64_t *bytes)
{
    /* One that would conflict with a lock to write. */
    struct flock found = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = begin_of(first), .l_len = begin_of(end) - begin_of(first)};
    if (fcntl(ledger->file, F_GETLK, &found) != 0 || found.l_type == F_UNLCK)
        return -1;
    /* A lock that is not the library's may begin before `first`, and be of any length. */
    int slot = (int)(found.l_start >> SLOT_BITS);
    *bytes = found.l_len > 0 ? (uint64_t)found.l_len - 1 : MOST;
    return slot < first ? first : slot;
}

/* Two questions and one for each other process: the kernel finds a lock, and the slots before and after are left. */
static void add_others(const struct ledger *ledger, int first, int end, struct others *others)
{
    uint64_t bytes;
    int slot;
    while (first < end && (slot = find_other(ledger, first, end, &bytes)) >= 0) {
        others->bytes = add(others->bytes, add(bytes, ledger->overhead));
        others->slots |= 1ull << slot;
        /* The smaller part first, so that it is not deep. */
        if (slot - first < end - slot) {
            add_others(ledger, first, slot, others);
            first = slot + 1;
        } else {
            add_others(ledger, slot + 1, end, others);
            end = slot;
        }
    }
}

static struct others others_of(const struct ledger *ledger)
{
    struct others others = {0};
    add_others(ledger, 0, SLOTS, &others);
    return others;
}

static bool set_lock(const struct ledger *ledger, short type, uint64_t from, uint64_t length)
{
    struct flock wanted = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = begin_of(ledger->slot) + (off_t)from, .l_len = (off_t)length};
    return fcntl(ledger->file, F_SETLK, &wanted) == 0;
}

/* Give a slot that no process has; -1: there is none. */
static int free_slot(uint64_t taken)
{
    for (int slot = 0; slot < SLOTS; slot++)
        if (!(taken >> slot & 1))
            return slot;
    return -1;
}

static enum ledger_answer grow(struct ledger *ledger, uint64_t bytes, uint64_t taken)
{
    if (ledger->slot < 0 && (ledger->slot = free_slot(taken)) < 0)
        return LEDGER_NO_SLOT;
    /* The kernel merges it with the one that is there. */
    if (set_lock(ledger, F_RDLCK, 0, bytes + 1)) {
        ledger->bytes = bytes;
        return LEDGER_DONE;
    }
    ledger->problem = "cannot be locked";
    return LEDGER_BROKEN;
}

bool ledger_open(struct ledger *ledger, const char *path, bool create)
{
    struct header header;
    *ledger = (struct ledger){.slot = -1, .limit = UINT64_MAX};
    ledger->file = open(path, O_RDONLY | O_CLOEXEC | (create ? O_CREAT : 0), 0644);
    if (ledger->file < 0) {
        /* Absent and not requested: no problem. */
        ledger->problem = errno == ENOENT && !create ? NULL : "cannot be opened";
        return false;
    }
    ssize_t size = pread(ledger->file, &header, sizeof header, 0);
    if (size == 0 && create)
        return true;
    if (size == (ssize_t)sizeof header && memcmp(header.magic, MAGIC, sizeof MAGIC) == 0) {
        ledger->overhead = header.overhead;
        if (header.limit)
            ledger->limit = header.limit;
        return true;
    }
    ledger_close(ledger);
    ledger->problem = "is not a ledger";
    return false;
}

void ledger_close(struct ledger *ledger)
{
    if (ledger->file >= 0)
        close(ledger->file);
    ledger->file = -1;
}

enum ledger_answer ledger_set(struct ledger *ledger, uint64_t bytes, uint64_t limit, bool forced)
{
    if (bytes > MOST)
        bytes = MOST;
    /* Less than before is always right. */
    if (ledger->slot >= 0 && bytes <= ledger->bytes) {
        if (bytes < ledger->bytes && !set_lock(ledger, F_UNLCK, bytes + 1, ledger->bytes - bytes)) {
            ledger->problem = "cannot be locked";
            return LEDGER_BROKEN;
        }
        ledger->bytes = bytes;
        return LEDGER_DONE;
    }
    if (!lock(ledger))
        return LEDGER_BROKEN;
    struct others others = others_of(ledger);
    if (ledger->limit < limit)
        limit = ledger->limit;
    enum ledger_answer answer = LEDGER_DONE;
    if (add(others.bytes, add(bytes, ledger->overhead)) > limit)
        answer = LEDGER_FULL;
    if (answer == LEDGER_DONE || forced) {
        enum ledger_answer noted = grow(ledger, bytes, others.slots);
        if (noted != LEDGER_DONE)
            answer = noted;
    }
    unlock(ledger);
    return answer;
}

uint64_t ledger_used(const struct ledger *ledger)
{
    uint64_t own = ledger->slot < 0 ? 0 : add(ledger->bytes, ledger->overhead);
    return add(own, others_of(ledger).bytes);
}
