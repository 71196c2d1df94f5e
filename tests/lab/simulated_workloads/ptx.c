/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ptx.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 32, MOST_INSTRUCTIONS = 64, MOST_OPERANDS = 4, NAME_BYTES = 32, STATEMENT_BYTES = 128 };

/* The first three stand for what each thread is told. */
enum { BLOCK, THREADS, THREAD };
static const char *const special[] = {"%ctaid.x", "%ntid.x", "%tid.x"};

/* r: a register, i: a register or a number, p: a parameter, a: an address in a register, l: a label. */
static const struct operation {
    const char *name, *operands;
} operations[] = {
    {"ld.param.u32", "rp"}, {"ld.param.u64", "rp"}, {"mov.u32", "ri"},         {"cvta.to.global.u64", "rr"},
    {"add.u64", "rii"},     {"sub.u32", "rii"},     {"mul.wide.u32", "rii"},   {"mad.lo.u32", "riii"},
    {"setp.ge.u32", "rii"}, {"setp.eq.u32", "rii"}, {"ld.global.u32", "ra"},   {"st.global.u32", "ar"},
    {"bra", "l"},           {"ret", ""},
};
enum { LD_PARAM_U32, LD_PARAM_U64, MOV, CVTA, ADD, SUB, MUL_WIDE, MAD, SETP_GE, SETP_EQ, LD, ST, BRA, RET };

struct names {
    int count;
    char name[MOST_NAMES][NAME_BYTES];
};

struct operand {
    int number; /* is it one? else `value` is a place: of a register, a parameter, an instruction */
    uint64_t value;
};

struct instruction {
    int operation, guard; /* a register that must be true; -1: none */
    struct operand operands[MOST_OPERANDS];
};

struct ptx_kernel {
    char name[NAME_BYTES];
    struct names registers, parameters, labels;
    int target[MOST_NAMES]; /* the instruction after a label; -1: not seen */
    int count;
    struct instruction instructions[MOST_INSTRUCTIONS];
};

/* The place of a name, which is taken up where it is new; -1: too many, or too long. */
static int place(struct names *names, const char *name)
{
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->name[i], name) == 0)
            return i;
    if (names->count == MOST_NAMES || strlen(name) >= NAME_BYTES)
        return -1;
    strcpy(names->name[names->count], name);
    return names->count++;
}

static int known(const struct names *names, const char *name)
{
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->name[i], name) == 0)
            return i;
    return -1;
}

static int label(struct ptx_kernel *kernel, const char *name)
{
    int before = kernel->labels.count, at = place(&kernel->labels, name);
    if (at == before)
        kernel->target[at] = -1;
    return at;
}

static int operand(struct ptx_kernel *kernel, char kind, char *text, struct operand *operand)
{
    if (kind == 'p' || kind == 'a') {
        size_t length = strlen(text);
        if (length < 3 || text[0] != '[' || text[length - 1] != ']')
            return -1;
        text[length - 1] = 0;
        text++;
    }
    operand->number = kind == 'i' && isdigit((unsigned char)*text);
    int at = 0;
    if (operand->number)
        operand->value = strtoull(text, NULL, 0);
    else if (kind == 'p')
        at = known(&kernel->parameters, text);
    else if (kind == 'l')
        at = label(kernel, text);
    else
        at = *text == '%' ? known(&kernel->registers, text) : -1;
    if (at < 0)
        return -1;
    if (!operand->number)
        operand->value = (uint64_t)at;
    return 0;
}

/* `.reg .u32 %a, %b`: registers are declared before they are used. */
static int declare(struct ptx_kernel *kernel, char *text)
{
    char *rest, *name = strtok_r(text, " ,\t\n", &rest);
    for (int word = 0; name; word++, name = strtok_r(NULL, " ,\t\n", &rest))
        if (word >= 2 && (*name != '%' || place(&kernel->registers, name) < 0))
            return -1;
    return 0;
}

static int instruction(struct ptx_kernel *kernel, char *text)
{
    if (kernel->count == MOST_INSTRUCTIONS)
        return -1;
    struct instruction *one = &kernel->instructions[kernel->count++];
    char *rest, *word = strtok_r(text, " \t\n", &rest);
    one->guard = -1;
    if (word && *word == '@') {
        one->guard = known(&kernel->registers, word + 1);
        if (one->guard < 0)
            return -1;
        word = strtok_r(NULL, " \t\n", &rest);
    }
    one->operation = -1;
    for (int i = 0; word && i < (int)(sizeof operations / sizeof *operations); i++)
        if (strcmp(operations[i].name, word) == 0)
            one->operation = i;
    if (one->operation < 0)
        return -1;
    const char *kinds = operations[one->operation].operands;
    for (int i = 0; kinds[i]; i++)
        if ((word = strtok_r(NULL, " ,\t\n", &rest)) == NULL || operand(kernel, kinds[i], word, &one->operands[i]))
            return -1;
    return strtok_r(NULL, " ,\t\n", &rest) ? -1 : 0;
}

static int parameters(struct ptx_kernel *kernel, char *text)
{
    char *rest, *word = strtok_r(text, " ,\t\n", &rest);
    for (int i = 0; word; i++, word = strtok_r(NULL, " ,\t\n", &rest))
        if (i % 3 == 2 && place(&kernel->parameters, word) < 0)
            return -1;
    return 0;
}

/* Labels end with a colon, all else with a semicolon. */
static int body(struct ptx_kernel *kernel, char *text)
{
    for (size_t length; text += strspn(text, " \t\n"), length = strcspn(text, ":;"), text[length]; text += length + 1) {
        char end = text[length];
        text[length] = 0;
        int wrong;
        if (end == ':') {
            int at = label(kernel, text);
            wrong = at < 0;
            if (!wrong)
                kernel->target[at] = kernel->count;
        } else
            wrong = strncmp(text, ".reg", 4) == 0 ? declare(kernel, text) : instruction(kernel, text);
        if (wrong)
            return -1;
    }
    for (int i = 0; i < kernel->labels.count; i++)
        if (kernel->target[i] < 0)
            return -1;
    return *text ? -1 : 0;
}

static void drop_comments(char *text)
{
    for (char *start; (start = strstr(text, "//"));)
        memset(start, ' ', strcspn(start, "\n"));
}

CUmodule ptx_parse(const char *given)
{
    char *text = strdup(given);
    struct ptx_kernel *kernel = calloc(1, sizeof *kernel);
    drop_comments(text);
    for (int i = 0; i < (int)(sizeof special / sizeof *special); i++)
        place(&kernel->registers, special[i]);
    char *entry = strstr(text, ".entry"), *open = entry ? strchr(entry, '(') : NULL, *close = open ? strchr(open, ')') : NULL;
    char *start = close ? strchr(close, '{') : NULL, *end = start ? strchr(start, '}') : NULL;
    int good = end && sscanf(entry, ".entry %31[A-Za-z0-9_]", kernel->name) == 1 && strstr(text, ".version") &&
               strstr(text, ".target");
    if (good) {
        *close = *end = 0;
        good = parameters(kernel, open + 1) == 0 && body(kernel, start + 1) == 0;
    }
    free(text);
    if (good)
        return kernel;
    free(kernel);
    return NULL;
}

const char *ptx_name(CUmodule kernel)
{
    return kernel->name;
}

static int run_thread(const struct ptx_kernel *kernel, uint64_t *registers, void **parameters,
                      void *(*at)(uint64_t, size_t))
{
    for (int next = 0; next < kernel->count;) {
        const struct instruction *one = &kernel->instructions[next++];
        if (one->guard >= 0 && !registers[one->guard])
            continue;
        uint64_t value[MOST_OPERANDS];
        for (int i = 0; operations[one->operation].operands[i]; i++) {
            const struct operand *operand = &one->operands[i];
            int held = strchr("rai", operations[one->operation].operands[i]) && !operand->number;
            value[i] = held ? registers[operand->value] : operand->value;
        }
        uint64_t *result = &registers[one->operands[0].value];
        uint32_t *memory;
        switch (one->operation) {
        case LD_PARAM_U32: *result = *(uint32_t *)parameters[value[1]]; break;
        case LD_PARAM_U64: *result = *(uint64_t *)parameters[value[1]]; break;
        case MOV:
        case CVTA: *result = value[1]; break;
        case ADD: *result = value[1] + value[2]; break;
        case SUB: *result = (uint32_t)(value[1] - value[2]); break;
        case MUL_WIDE: *result = (uint64_t)(uint32_t)value[1] * (uint32_t)value[2]; break;
        case MAD: *result = (uint32_t)(value[1] * value[2] + value[3]); break;
        case SETP_GE: *result = (uint32_t)value[1] >= (uint32_t)value[2]; break;
        case SETP_EQ: *result = (uint32_t)value[1] == (uint32_t)value[2]; break;
        case LD:
            if ((memory = at(value[1], sizeof *memory)) == NULL)
                return -1;
            *result = *memory;
            break;
        case ST:
            if ((memory = at(value[0], sizeof *memory)) == NULL)
                return -1;
            *memory = (uint32_t)value[1];
            break;
        case BRA: next = kernel->target[value[0]]; break;
        case RET: return 0;
        }
    }
    return 0;
}

int ptx_run(CUfunction kernel, unsigned blocks, unsigned threads, void **parameters, void *(*at)(uint64_t, size_t))
{
    for (unsigned block = 0; block < blocks; block++)
        for (unsigned thread = 0; thread < threads; thread++) {
            uint64_t registers[MOST_NAMES] = {[BLOCK] = block, [THREADS] = threads, [THREAD] = thread};
            if (run_thread(kernel, registers, parameters, at))
                return -1;
        }
    return 0;
}
