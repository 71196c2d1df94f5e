/* SPDX-License-Identifier: Apache-2.0
 *
 * All locks are those of fcntl(2) that belong to a process. They end with it, even by SIGKILL, and with exec, which
 * closes the file; a forked child has none of them. A lock of flock(2) would belong to the open file, so a child
 * would keep it for a parent that was killed. A fresh open file for each count would help against that, but to close
 * it would end the process' locks on the file.
 */
#define _GNU_SOURCE
#include "ledger.h"

#include <errno.h>
#include <string.h>

#include "system.h"

enum { SLOTS = 64, SLOT_BITS = 56, MUTEX_BITS = 62 };

static const char MAGIC[8] __attribute__((nonstring)) = "TGLEDGR2";
/* A lock that is longer would reach the next slot. */
static const uint64_t LONGEST = (1ull << SLOT_BITS) - 1;
/* The first byte after the slots; it has as many bytes as they have. */
static const off_t MUTEX = 1ll << MUTEX_BITS;

/*
 * A stopped process may have the mutex for ever; a running process has it for microseconds. All attempts take about
 * 2 s, because the kernel adds 50 us to each pause (PR_SET_TIMERSLACK). During a pause a process of lower priority
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

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static off_t begin_of(int slot)
{
    return (off_t)slot << SLOT_BITS;
}

static bool set_lock(const struct ledger *ledger, short type, off_t from, uint64_t length)
{
    struct flock wanted = {.l_type = type, .l_whence = SEEK_SET, .l_start = from, .l_len = (off_t)length};
    return system_lock(ledger->file, F_SETLK, &wanted) == 0;
}

/* Find a lock of another process; `l_type` is F_UNLCK if there is none. `length` 0: without an end. */
static struct flock find_lock(const struct ledger *ledger, off_t from, off_t length)
{
    /* One that would conflict with a lock to write. */
    struct flock found = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = length};
    if (system_lock(ledger->file, F_GETLK, &found) != 0)
        found.l_type = F_UNLCK;
    return found;
}

/* ---- the mutex: one process at a time counts and then takes more ---- */

/*
 * The one-bit algorithm of Burns and Lamport ("The mutual exclusion problem: Part II", 1986). A bit is a lock of one
 * byte. A process locks a byte, and unlocks it if another process has an earlier byte. If not, it waits until no
 * process has a later byte. Two processes with the same byte both unlock it, and choose again.
 */

/* Any byte is right. A new byte at each attempt lets each process be the first at times. */
static off_t choose_byte(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    /* Fibonacci hashing; half of the 2^62 bytes are enough. */
    return MUTEX + (off_t)((uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u >> (64 - MUTEX_BITS + 1));
}

/* True if another process has a byte there. A longer lock is not the library's. */
static bool is_taken(const struct ledger *ledger, off_t from, off_t length)
{
    struct flock found = find_lock(ledger, from, length);
    return found.l_type != F_UNLCK && found.l_len == 1;
}

static void unlock(const struct ledger *ledger, off_t byte)
{
    set_lock(ledger, F_UNLCK, byte, 1);
}

/* Lock the mutex. Gives the locked byte; -1: another process keeps it, or the file cannot be locked. */
static off_t lock(struct ledger *ledger)
{
    /* A process that has waited in vain once does not wait again. */
    int left = ledger->hopeless ? 1 : ATTEMPTS;
    for (;;) {
        off_t byte = choose_byte();
        if (!set_lock(ledger, F_RDLCK, byte, 1)) {
            ledger->problem = "cannot be locked";
            return -1;
        }
        bool is_first = !is_taken(ledger, MUTEX, byte + 1 - MUTEX);
        while (is_first && is_taken(ledger, byte + 1, 0) && --left > 0)
            system_pause(&PAUSE);
        if (is_first && left > 0) {
            ledger->hopeless = false;
            ledger->problem = NULL;
            return byte;
        }
        unlock(ledger, byte);
        if (--left <= 0)
            break;
        system_pause(&PAUSE);
    }
    ledger->hopeless = true;
    ledger->problem = "is locked by a process that does not go on";
    return -1;
}

/* ---- the slots ---- */

struct others {
    uint64_t bytes; /* with each one's context */
    uint64_t slots; /* a bit for each slot that is taken */
};

/* Find a lock of another process in the slots from `first` to before `end`. Gives its slot; -1: there is none. */
static int find_other(const struct ledger *ledger, int first, int end, uint64_t *bytes)
{
    struct flock found = find_lock(ledger, begin_of(first), begin_of(end) - begin_of(first));
    if (found.l_type == F_UNLCK)
        return -1;
    /* A lock that is not the library's may begin before `first`, and be of any length. */
    int slot = (int)(found.l_start >> SLOT_BITS);
    *bytes = (found.l_len > 0 ? (uint64_t)found.l_len : LONGEST) - 1;
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

/* Give a slot that no process has; -1: there is none. */
static int free_slot(uint64_t taken)
{
    for (int slot = 0; slot < SLOTS; slot++)
        if (!(taken >> slot & 1))
            return slot;
    return -1;
}

/* Any use costs as much as a context, at least. */
static uint64_t cost(const struct ledger *ledger, uint64_t bytes)
{
    return bytes && bytes < ledger->overhead ? ledger->overhead : bytes;
}

static uint64_t length_of(const struct ledger *ledger, uint64_t bytes)
{
    uint64_t length = bytes ? add(cost(ledger, bytes) - ledger->overhead, 1) : 0;
    return length < LONGEST ? length : LONGEST;
}

static enum ledger_answer resize(struct ledger *ledger, uint64_t length)
{
    off_t begin = begin_of(ledger->slot);
    /* The kernel merges it with the one that is there, or cuts that. */
    bool done = length > ledger->length
                    ? set_lock(ledger, F_RDLCK, begin, length)
                    : set_lock(ledger, F_UNLCK, begin + (off_t)length, ledger->length - length);
    if (done)
        ledger->length = length;
    else
        ledger->problem = "cannot be locked";
    if (ledger->length == 0)
        ledger->slot = -1;
    return done ? LEDGER_DONE : LEDGER_BROKEN;
}

static enum ledger_answer grow(struct ledger *ledger, uint64_t length, uint64_t taken)
{
    if (ledger->slot < 0 && (ledger->slot = free_slot(taken)) < 0)
        return LEDGER_NO_SLOT;
    return resize(ledger, length);
}

/* ---- the file ---- */

/* True if the descriptor is that of the ledger, and not closed, or another file's by now. */
static bool is_own(const struct ledger *ledger)
{
    struct stat found;
    return ledger->file >= 0 && system_stat(ledger->file, &found) == 0 && found.st_dev == ledger->device &&
           found.st_ino == ledger->inode;
}

/* Open any kind of file: a FIFO or a lease (fcntl, F_SETLEASE) must not block the program. */
static int open_path(const char *path, int flags, struct stat *found)
{
    int file = system_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags, 0644);
    if (file >= 0 && system_stat(file, found) != 0) {
        system_close(file);
        return -1;
    }
    return file;
}

/* Open the ledger again if the program has closed its descriptor, and thereby ended the locks. */
static bool is_usable(struct ledger *ledger)
{
    if (is_own(ledger))
        return true;
    struct stat found;
    int file = open_path(ledger->path, 0, &found);
    if (file >= 0 && (found.st_dev != ledger->device || found.st_ino != ledger->inode)) {
        system_close(file);
        file = -1;
    }
    if (file < 0) {
        ledger->problem = "was closed, and cannot be opened again";
        return false;
    }
    ledger->file = file;
    ledger->slot = -1; /* another process may have it by now */
    ledger->length = 0;
    ledger->problem = NULL;
    return true;
}

bool ledger_open(struct ledger *ledger, const char *path, bool create)
{
    struct header header;
    struct stat found;
    *ledger = (struct ledger){.path = path, .slot = -1, .limit = UINT64_MAX};
    ledger->file = open_path(path, create ? O_CREAT : 0, &found);
    if (ledger->file < 0) {
        /* Absent and not requested: no problem. */
        ledger->problem = errno == ENOENT && !create ? NULL : "cannot be opened";
        return false;
    }
    ledger->device = found.st_dev;
    ledger->inode = found.st_ino;
    ssize_t size = S_ISREG(found.st_mode) ? system_read(ledger->file, &header, sizeof header) : -1;
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
    if (is_own(ledger))
        system_close(ledger->file);
    ledger->file = -1;
}

enum ledger_answer ledger_set(struct ledger *ledger, uint64_t bytes, uint64_t limit, bool forced)
{
    if (!is_usable(ledger))
        return LEDGER_BROKEN;
    uint64_t length = length_of(ledger, bytes);
    /* Less than before is always right. */
    if (length <= ledger->length)
        return length < ledger->length ? resize(ledger, length) : LEDGER_DONE;
    off_t byte = lock(ledger);
    if (byte < 0)
        return LEDGER_BROKEN;
    struct others others = others_of(ledger);
    enum ledger_answer answer = LEDGER_DONE;
    if (add(others.bytes, cost(ledger, bytes)) > limit)
        answer = LEDGER_FULL;
    if (answer == LEDGER_DONE || forced) {
        enum ledger_answer noted = grow(ledger, length, others.slots);
        if (noted != LEDGER_DONE)
            answer = noted;
    }
    unlock(ledger, byte);
    return answer;
}

uint64_t ledger_used(struct ledger *ledger, uint64_t bytes)
{
    return add(cost(ledger, bytes), is_usable(ledger) ? others_of(ledger).bytes : 0);
}
