/* SPDX-License-Identifier: Apache-2.0
 *
 * The file in which the processes of one container count together. Not safe for threads: see account.c.
 *
 * Little endian. Bytes 0 to 7: TGLEDGR1; then as u64: the limit in bytes (0: the environment says it), the
 * bytes that each process costs before it allocates anything; zeros up to 64. Then 64 slots of 32 bytes, all
 * u64: process id as the container sees it (0: free), its start (field 22 of /proc/PID/stat), bytes, 0.
 */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum ledger_answer {
    LEDGER_DONE,
    LEDGER_FULL,    /* more than the limit: not noted, unless it was `forced` */
    LEDGER_NO_SLOT, /* too many processes: not noted */
    LEDGER_BROKEN,  /* the file cannot be used now; `ledger->trouble` says why */
};

struct ledger {
    int file; /* -1: none */
    uint64_t pid, start;
    const char *trouble;
    bool hopeless; /* the lock was not to be had */
};

/* Open the file for the calling process, and make one if `create`. False: there is none, or it cannot be used. */
bool ledger_open(struct ledger *ledger, const char *path, bool create);

/* Give the limit in bytes that the file and the caller set together; UINT64_MAX: there is none. */
uint64_t ledger_limit(struct ledger *ledger, uint64_t limit);

/* Note that this process has `bytes`. What it has already (`forced`) is noted even above the limit. */
enum ledger_answer ledger_set(struct ledger *ledger, uint64_t bytes, uint64_t limit, bool forced);

/* Give what all living processes have together, in bytes. */
enum ledger_answer ledger_used(struct ledger *ledger, uint64_t *used);

/* Forget this process. exec keeps the process id and the start, so a new program finds the old one's slot. */
void ledger_forget(struct ledger *ledger);

#endif
