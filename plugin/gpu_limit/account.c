/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "account.h"

#include <stdlib.h>
#include <string.h>

#include "ledger.h"
#include "lock.h"
#include "process.h"
#include "report.h"

/* An integer of MiB; the name is NVIDIA's (gpu-fractioning). A setuid program's caller does not choose the limit. */
static const char LIMIT[] = "NVIDIA_GPU_MEMORY_LIMIT", LEDGER[] = "TEGRA_GPU_LIMIT_LEDGER";
/* Where the plugin mounts it; found there even if an image clears the environment. */
static const char MOUNTED_LEDGER[] = "/run/tegra-gpu-limit/ledger";

enum { PATH_SIZE = 4096, BITS_OF_A_MIB = 20 };

enum state { UNKNOWN, UNLIMITED, LIMITED };

static struct {
    union lock lock;
    uint32_t owner; /* the process that everything below is of */
    enum state state;
    uint64_t environment; /* its limit, in bytes; UINT64_MAX: none */
    /* In force, in bytes. They stay when the ledger of which they were read cannot be used any more. */
    uint64_t limit, overhead;
    char path[PATH_SIZE];
    bool named;      /* the environment names the ledger */
    struct ledger ledger;
    uint64_t charged; /* bytes */
} account = {.ledger.file = -1};

static uint64_t limit_of_environment(void)
{
    const char *text = secure_getenv(LIMIT);
    if (text == NULL || *text == 0)
        return UINT64_MAX;
    uint64_t mib = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && mib < UINT64_MAX >> (BITS_OF_A_MIB + 4); at++)
        mib = mib * 10 + (uint64_t)(*at - '0');
    if (*at == 0 && mib)
        return mib << BITS_OF_A_MIB;
    report_once(REPORT_LIMIT, "%s=%s: an integer of MiB above 0 is needed; memory is not limited by it", LIMIT, text);
    return UINT64_MAX;
}

static void read_environment(void)
{
    account.limit = account.environment = limit_of_environment();
    const char *path = secure_getenv(LEDGER);
    account.named = path && *path && strlen(path) < sizeof account.path;
    strcpy(account.path, account.named ? path : MOUNTED_LEDGER);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void warn_of_ledger(void)
{
    if (account.ledger.problem)
        report_once(REPORT_LEDGER, "%s %s: each process is limited by itself", account.path, account.ledger.problem);
}

/* The process is a new one: it was started, or forked. */
static void start_over(void)
{
    if (account.state == UNKNOWN)
        read_environment();
    allocation_clear();
    account.charged = 0;
    ledger_close(&account.ledger);
    ledger_open(&account.ledger, account.path, account.named);
    if (account.ledger.limit != UINT64_MAX)
        account.limit = smaller(account.ledger.limit, account.environment);
    if (account.ledger.overhead)
        account.overhead = account.ledger.overhead;
    warn_of_ledger();
    enum state state = account.limit == UINT64_MAX ? UNLIMITED : LIMITED;
    __atomic_store_n(&account.state, state, __ATOMIC_RELEASE);
}

static void begin(void)
{
    uint32_t self = process_number();
    lock_acquire(&account.lock, self);
    if (account.owner != self) {
        start_over();
        account.owner = self;
    }
}

static void end(void)
{
    lock_release(&account.lock);
}

static bool note_alone(uint64_t charged, bool forced)
{
    bool enough = charged <= account.limit;
    if (enough || forced)
        account.charged = charged;
    return enough;
}

/* Make `charged` the bytes of this process, if they are not too much or are there already. */
static bool note(uint64_t charged, bool forced)
{
    if (account.ledger.file < 0)
        return note_alone(charged, forced);
    enum ledger_answer answer = ledger_set(&account.ledger, charged, account.limit, forced);
    switch (answer) {
    case LEDGER_BROKEN:
        warn_of_ledger();
        return note_alone(charged, forced);
    case LEDGER_NO_SLOT:
        report_once(REPORT_NO_SLOT, "%s has no free slot for another process: it gets no memory", account.path);
        break;
    case LEDGER_FULL:
    case LEDGER_DONE:
        break;
    }
    if (answer == LEDGER_DONE || forced)
        account.charged = charged;
    return answer == LEDGER_DONE;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

bool account_limited(void)
{
    enum state state = __atomic_load_n(&account.state, __ATOMIC_ACQUIRE);
    if (state == UNKNOWN) {
        begin();
        state = account.state;
        end();
    }
    return state == LIMITED;
}

uint64_t account_limit(void)
{
    begin();
    uint64_t limit = account.limit;
    end();
    return limit;
}

uint64_t account_used(void)
{
    begin();
    note(account.charged, true); /* should its lock have ended */
    uint64_t used = account.ledger.file < 0 ? account.charged : ledger_used(&account.ledger, account.charged);
    end();
    return used;
}

uint64_t account_overhead(void)
{
    begin();
    uint64_t overhead = account.overhead;
    end();
    return overhead;
}

static bool reserve(uint64_t bytes)
{
    return bytes <= UINT64_MAX - account.charged && note(account.charged + bytes, false);
}

bool account_reserve(uint64_t bytes)
{
    begin();
    bool enough = reserve(bytes);
    end();
    return enough;
}

bool account_add(struct allocation entry)
{
    begin();
    bool there = allocation_find(entry.kind, entry.key) != NULL;
    if (!there && reserve(entry.bytes))
        there = allocation_put(entry);
    end();
    return there;
}

void account_release(uint64_t bytes)
{
    begin();
    note(less(account.charged, bytes), true);
    end();
}

bool account_keep(uint64_t reserved, struct allocation entry)
{
    begin();
    struct allocation *before = allocation_find(entry.kind, entry.key);
    uint64_t replaced = before ? before->bytes : 0;
    bool enough = true;
    if (allocation_put(entry) && reserved + replaced != entry.bytes)
        enough = note(less(account.charged, reserved + replaced) + entry.bytes, true);
    end();
    return enough;
}

struct allocation account_take(enum allocation_kind kind, uint64_t key)
{
    begin();
    struct allocation taken = allocation_take(kind, key);
    end();
    return taken;
}

struct allocation account_find(enum allocation_kind kind, uint64_t key)
{
    begin();
    struct allocation *found = allocation_find(kind, key);
    struct allocation copy = found ? *found : (struct allocation){0};
    end();
    return copy;
}

static void hold(uint64_t handle)
{
    struct allocation *physical = allocation_find(ALLOCATION_PHYSICAL, handle);
    if (physical)
        physical->holds++;
}

static struct allocation drop(uint64_t handle)
{
    struct allocation *physical = allocation_find(ALLOCATION_PHYSICAL, handle);
    if (physical == NULL || --physical->holds)
        return (struct allocation){0};
    return allocation_take(ALLOCATION_PHYSICAL, handle);
}

void account_hold(uint64_t handle)
{
    begin();
    hold(handle);
    end();
}

struct allocation account_drop(uint64_t handle)
{
    begin();
    struct allocation taken = drop(handle);
    end();
    taken.holds = 1; /* should it have to be put back */
    return taken;
}

void account_map(uint64_t address, uint64_t bytes, uint64_t handle)
{
    begin();
    if (allocation_put((struct allocation){.kind = ALLOCATION_MAPPING, .key = address, .bytes = bytes, .owner = handle}))
        hold(handle);
    end();
}

void account_unmap(uint64_t address, uint64_t bytes)
{
    begin();
    uint64_t dropped = 0;
    /* One call may end several mappings that lie side by side. */
    for (uint64_t at = address; at - address < bytes;) {
        struct allocation mapping = allocation_take(ALLOCATION_MAPPING, at);
        if (mapping.kind == ALLOCATION_NOTHING)
            break;
        dropped += drop(mapping.owner).bytes;
        at += mapping.bytes;
    }
    if (dropped)
        note(less(account.charged, dropped), true);
    end();
}

bool account_query(uint64_t (*query)(const struct allocation *entry))
{
    begin();
    uint64_t before = 0, now = 0;
    struct allocation *entry;
    for (unsigned long at = 0; (entry = allocation_next_pool(&at));) {
        before += entry->bytes;
        now += entry->bytes = query(entry);
    }
    bool enough = before == now || note(less(account.charged, before) + now, true);
    end();
    return enough;
}

void account_context_gone(uint64_t context)
{
    begin();
    uint64_t bytes = allocation_take_context(context);
    if (bytes)
        note(less(account.charged, bytes), true);
    end();
}

void account_forget(void)
{
    begin();
    allocation_clear();
    note(0, true);
    end();
}
