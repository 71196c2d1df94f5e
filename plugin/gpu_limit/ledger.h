/* SPDX-License-Identifier: Apache-2.0
 *
 * The file with which the processes of one container count together. Not safe for threads: see account.c.
 *
 * The plugin mounts it read-only. 64 bytes, little endian. Bytes 0 to 7: TGLEDGR2; then as u64: the limit in bytes
 * (0: the limit is in the environment), the bytes that each process costs without any allocation; zeros. A process
 * counts by a lock, which the kernel removes with the process: a read lock of fcntl(2) takes no right to write. The
 * file has 64 slots of 2^56 bytes, far past its end. A process has B bytes if its lock begins where its slot begins
 * and is B + 1 long.
 */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum ledger_answer {
    LEDGER_DONE,
    LEDGER_FULL,    /* more than the limit: not noted, unless it was `forced` */
    LEDGER_NO_SLOT, /* too many processes: not noted */
    LEDGER_BROKEN,  /* the file cannot be used now; `ledger->problem` has the reason */
};

struct ledger {
    int file;       /* -1: none */
    int slot;       /* of this process; -1: none */
    uint64_t bytes; /* in that slot */
    uint64_t limit; /* of all processes, in bytes; UINT64_MAX: the file has none */
    uint64_t overhead;
    const char *problem;
    bool hopeless; /* the lock of the file could not be acquired */
};

/* Open the file for the calling process, and make one if `create`. False: there is none, or it cannot be used. */
bool ledger_open(struct ledger *ledger, const char *path, bool create);

/* Remove this process, if the file is open. */
void ledger_close(struct ledger *ledger);

/* Store that this process has `bytes`. Memory that it has already (`forced`) is stored even above the limit. */
enum ledger_answer ledger_set(struct ledger *ledger, uint64_t bytes, uint64_t limit, bool forced);

/* Give the use of all processes, in bytes. */
uint64_t ledger_used(const struct ledger *ledger);

#endif
