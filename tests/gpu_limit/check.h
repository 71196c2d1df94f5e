/* SPDX-License-Identifier: Apache-2.0
 *
 * For the programs that check something and end with the line where it failed.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)
#define CHECK(what)                                                                                          \
    do                                                                                                       \
        if (!(what)) {                                                                                       \
            printf("line %d: %s\n", __LINE__, #what);                                                        \
            exit(1);                                                                                         \
        }                                                                                                    \
    while (0)

#endif
