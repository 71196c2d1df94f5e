/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines on standard error, once per process and kind.
 */
#ifndef REPORT_H
#define REPORT_H

#include <stdint.h>

enum report { REPORT_REFUSED, REPORT_NO_SLOT, REPORT_LEDGER, REPORT_LIMIT, REPORT_KINDS };

/* Write one line. The format knows %s, and %m for bytes in MiB, rounded (a uint64_t). Never fails. */
void report_once(enum report kind, const char *format, ...);

#endif
