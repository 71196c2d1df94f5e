/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes, no mapping: a mapped file that somebody truncates kills whoever touches it. A lock on the
 * file (flock) ends with its process, even by SIGKILL.
 */
#define _GNU_SOURCE
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, PATH_SIZE = 32, STAT_SIZE = 1024, FIELDS_FROM_STATE_TO_START = 19 };

/* No process has this id or a larger one: PID_MAX_LIMIT of the kernel's include/linux/threads.h, on 64 bits. */
static const uint64_t PROCESS_IDS = 4 * 1024 * 1024;

static const char MAGIC[8] = "TGLEDGR1";

/*
 * A stopped process may hold the lock for ever; a running process holds it for microseconds. All attempts take about
 * 2 s, because the kernel adds 50 us to each pause (PR_SET_TIMERSLACK). During a pause a holder of lower priority
 * runs. Pauses of up to 5 ms made a process beside a busy one wait for 45 ms.
 */
static const struct timespec PAUSE = {.tv_nsec = 100 * 1000};
enum { ATTEMPTS = 13000 };

struct slot {
    uint64_t pid, start, bytes, unused;
};

struct page {
    char magic[sizeof MAGIC];
    uint64_t limit, overhead, unused[5];
    struct slot slots[SLOTS];
};

_Static_assert(sizeof(struct page) == 64 + SLOTS * 32, "the plugin writes this format as well");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little endian");

/* Read a process's state and start from /proc. False: no such file, or nothing to be read there. */
static bool read_process(uint64_t pid, char *state, uint64_t *start)
{
    char path[PATH_SIZE] = "/proc/", text[STAT_SIZE + 1], digits[20];
    size_t length = strlen(path), count = 0;
    do
        digits[count++] = (char)('0' + pid % 10);
    while (pid /= 10);
    while (count)
        path[length++] = digits[--count];
    memcpy(path + length, "/stat", sizeof "/stat");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t size = read(file, text, STAT_SIZE);
    close(file);
    if (size <= 0)
        return false;
    text[size] = 0;
    /* proc(5): the name is in brackets and may hold anything; the state follows. */
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ')
        return false;
    *state = at[2];
    at += 2;
    for (int field = 0; field < FIELDS_FROM_STATE_TO_START && at; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    if (at == NULL)
        return false;
    *start = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        *start = *start * 10 + (uint64_t)(*at - '0');
    return true;
}

/* Tell whether the owner of a slot is gone. A process id comes again, with another start. */
static bool is_dead(const struct slot *slot)
{
    char state;
    uint64_t start;
    /* As a pid_t, such a number is another process, a group of processes or all of them. */
    if (slot->pid >= PROCESS_IDS)
        return true;
    if (read_process(slot->pid, &state, &start))
        return start != slot->start || state == 'Z' || state == 'X';
    /* /proc may hide other users' processes. */
    return kill((pid_t)slot->pid, 0) != 0 && errno == ESRCH;
}

static bool lock(struct ledger *ledger)
{
    ledger->trouble = "is locked by a process that does not go on";
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
    ledger->trouble = NULL;
    return true;
}

static void unlock(const struct ledger *ledger)
{
    flock(ledger->file, LOCK_UN);
}

static bool read_page(struct ledger *ledger, struct page *page)
{
    if (pread(ledger->file, page, sizeof *page, 0) == (ssize_t)sizeof *page &&
        memcmp(page->magic, MAGIC, sizeof MAGIC) == 0)
        return true;
    ledger->trouble = "is not a ledger";
    return false;
}

static bool write_slot(struct ledger *ledger, const struct page *page, int number)
{
    const struct slot *slot = &page->slots[number];
    off_t place = (const char *)slot - (const char *)page;
    if (pwrite(ledger->file, slot, sizeof *slot, place) == (ssize_t)sizeof *slot)
        return true;
    ledger->trouble = "cannot be written";
    return false;
}

static bool begin(struct ledger *ledger, struct page *page)
{
    if (!lock(ledger))
        return false;
    if (read_page(ledger, page))
        return true;
    unlock(ledger);
    return false;
}

static int find_slot(const struct page *page, uint64_t pid, uint64_t start)
{
    for (int i = 0; i < SLOTS; i++)
        if (page->slots[i].pid == pid && (pid == 0 || page->slots[i].start == start))
            return i;
    return -1;
}

/* Free the slots of the dead, of all but `own`. */
static void reclaim(struct ledger *ledger, struct page *page, int own)
{
    for (int i = 0; i < SLOTS; i++)
        if (i != own && page->slots[i].pid && is_dead(&page->slots[i])) {
            page->slots[i] = (struct slot){0};
            write_slot(ledger, page, i);
        }
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Give what the processes of all slots but `own` have. */
static uint64_t of_others(const struct page *page, int own)
{
    uint64_t sum = 0;
    for (int i = 0; i < SLOTS; i++)
        if (i != own && page->slots[i].pid)
            sum = add(sum, add(page->slots[i].bytes, page->overhead));
    return sum;
}

static uint64_t smaller_limit(const struct page *page, uint64_t limit)
{
    return page->limit && page->limit < limit ? page->limit : limit;
}

static bool is_empty(const struct ledger *ledger)
{
    return lseek(ledger->file, 0, SEEK_END) == 0;
}

/* Write a fresh ledger into an empty file. */
static bool make(struct ledger *ledger)
{
    struct page page = {.limit = 0};
    memcpy(page.magic, MAGIC, sizeof MAGIC);
    if (!lock(ledger))
        return false;
    /* Another process may have been faster. */
    bool made = !is_empty(ledger) || pwrite(ledger->file, &page, sizeof page, 0) == (ssize_t)sizeof page;
    unlock(ledger);
    if (!made)
        ledger->trouble = "cannot be written";
    return made;
}

bool ledger_open(struct ledger *ledger, const char *path, bool create)
{
    char state;
    struct page page;
    *ledger = (struct ledger){.pid = (uint64_t)getpid()};
    read_process(ledger->pid, &state, &ledger->start);
    ledger->file = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0666);
    if (ledger->file < 0) {
        /* Not there and not asked for: nothing is wrong. */
        ledger->trouble = errno == ENOENT && !create ? NULL : "cannot be opened";
        return false;
    }
    if ((!create || !is_empty(ledger) || make(ledger)) && read_page(ledger, &page))
        return true;
    close(ledger->file);
    ledger->file = -1;
    return false;
}

uint64_t ledger_limit(struct ledger *ledger, uint64_t limit)
{
    struct page page;
    return read_page(ledger, &page) ? smaller_limit(&page, limit) : limit;
}

/* Give a slot for a process that has none; -1: there is none left. */
static int new_slot(struct ledger *ledger, struct page *page)
{
    if (find_slot(page, 0, 0) < 0)
        reclaim(ledger, page, -1);
    return find_slot(page, 0, 0);
}

enum ledger_answer ledger_set(struct ledger *ledger, uint64_t bytes, uint64_t limit, bool forced)
{
    struct page page;
    if (!begin(ledger, &page))
        return LEDGER_BROKEN;
    enum ledger_answer answer = LEDGER_DONE;
    int own = find_slot(&page, ledger->pid, ledger->start);
    /* Less than before is always right. Who is dead matters only where it would be too much. */
    if (own < 0 || bytes > page.slots[own].bytes) {
        uint64_t wanted = add(bytes, page.overhead);
        limit = smaller_limit(&page, limit);
        if (add(of_others(&page, own), wanted) > limit) {
            reclaim(ledger, &page, own);
            if (add(of_others(&page, own), wanted) > limit)
                answer = LEDGER_FULL;
        }
    }
    if (answer == LEDGER_DONE || forced) {
        if (own < 0)
            own = new_slot(ledger, &page);
        if (own < 0) {
            answer = LEDGER_NO_SLOT;
        } else {
            page.slots[own] = (struct slot){.pid = ledger->pid, .start = ledger->start, .bytes = bytes};
            if (!write_slot(ledger, &page, own))
                answer = LEDGER_BROKEN;
        }
    }
    unlock(ledger);
    return answer;
}

enum ledger_answer ledger_used(struct ledger *ledger, uint64_t *used)
{
    struct page page;
    if (!begin(ledger, &page))
        return LEDGER_BROKEN;
    reclaim(ledger, &page, find_slot(&page, ledger->pid, ledger->start));
    *used = of_others(&page, -1);
    unlock(ledger);
    return LEDGER_DONE;
}

void ledger_forget(struct ledger *ledger)
{
    struct page page;
    /* Most processes never had a slot: they need no lock to see that. */
    if (!read_page(ledger, &page) || find_slot(&page, ledger->pid, ledger->start) < 0)
        return;
    if (!begin(ledger, &page))
        return;
    int own = find_slot(&page, ledger->pid, ledger->start);
    if (own >= 0) {
        page.slots[own] = (struct slot){0};
        write_slot(ledger, &page, own);
    }
    unlock(ledger);
}
