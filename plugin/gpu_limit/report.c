/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "system.h"

enum { LINE = 512, BITS_OF_A_MIB = 20 };

struct line {
    char text[LINE];
    size_t length;
};

static void put(struct line *line, char character)
{
    if (line->length < LINE)
        line->text[line->length++] = character;
}

static void put_text(struct line *line, const char *text)
{
    while (*text)
        put(line, *text++);
}

static void put_number(struct line *line, uint64_t number)
{
    if (number > 9)
        put_number(line, number / 10);
    put(line, (char)('0' + number % 10));
}

void report_once(enum report kind, const char *format, ...)
{
    static bool done[REPORT_KINDS];
    if (__atomic_exchange_n(&done[kind], true, __ATOMIC_RELAXED))
        return;
    int error = errno;
    struct line line = {.length = 0};
    va_list values;
    va_start(values, format);
    /* Not printf: it may allocate, and allocators may call us. */
    put_text(&line, "tegra-gpu-limit: ");
    for (; *format; format++) {
        if (*format != '%')
            put(&line, *format);
        else if (*++format == 's')
            put_text(&line, va_arg(values, const char *));
        else
            put_number(&line, va_arg(values, uint64_t) >> BITS_OF_A_MIB);
    }
    va_end(values);
    put(&line, '\n');
    /* One call, so that lines of several processes do not mix. Without a reader, the line is dropped. */
    system_write(STDERR_FILENO, line.text, line.length);
    errno = error;
}
