/* SPDX-License-Identifier: Apache-2.0
 *
 * The file with which the processes of one container count together. Not safe for threads: see account.c.
 *
 * The plugin mounts it read-only. 64 bytes, little endian. Bytes 0 to 7: TGLEDGR2; then as u64: the limit in bytes
 * (0: the limit is in the environment), the bytes that a CUDA context costs; zeros. A process counts by a lock, which
 * the kernel removes with the process: a read lock of fcntl(2) takes no right to write. The file has 64 slots of 2^56
 * bytes, far past its end. A process that has a context or memory has a lock that begins where its slot begins. It
 * uses the cost of one context, and the lock's length less 1 besides.
 *
 * The bytes from 2^62 on are a mutex: a process that counts, or waits for that, has a lock of 1 byte there.
 */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum ledger_answer {
    LEDGER_DONE,
    LEDGER_FULL,    /* more than the limit: not noted, unless it was `forced` */
    LEDGER_NO_SLOT, /* too many processes: not noted */
    LEDGER_BROKEN,  /* the file cannot be used now; `ledger->problem` has the reason */
};

struct ledger {
    const char *path;
    int file;        /* -1: none */
    dev_t device;    /* with `inode`, the file's identity: */
    ino_t inode;     /* the program may have closed `file`, and opened another one with that number */
    int slot;        /* of this process; -1: none */
    uint64_t length; /* of its lock there */
    uint64_t limit;  /* of all processes, in bytes; UINT64_MAX: the file has none */
    uint64_t overhead;
    const char *problem;
    bool hopeless; /* waited for the mutex in vain */
};

/* Open the file for the calling process, and make one if `create`. False: there is none, or it cannot be used. */
bool ledger_open(struct ledger *ledger, const char *path, bool create);

/* Close the file, if it is open, in a forked child: its parent has the locks. */
void ledger_close(struct ledger *ledger);

/* Store that this process uses `bytes`, contexts included. If `forced`, also above the limit. */
enum ledger_answer ledger_set(struct ledger *ledger, uint64_t bytes, uint64_t limit, bool forced);

/* Give the use of all processes, in bytes, of which this one has `bytes`. */
uint64_t ledger_used(struct ledger *ledger, uint64_t bytes);

#endif
