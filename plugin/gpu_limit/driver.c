/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the driver and dlsym in what the loader has mapped. This library must not import dlsym (it exports
 * one), nor load a driver that the program has not loaded.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <elf.h>
#include <link.h>
#include <string.h>

#include "account.h"

static const char *const names[FUNCTION_COUNT] = {
#define NAME(name) [NUMBER_##name] = #name,
    HOOKS(NAME) QUESTIONS(NAME)
#undef NAME
};

static struct {
    uintptr_t start, end; /* of its mapping; 0: not loaded at the last search */
    void *functions[FUNCTION_COUNT];
} driver;

/* One mapped ELF file; the tables are NULL where it has none. */
struct object {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *strings;
    const char *soname;
    const ElfW(Word) * sysv_hash; /* all drivers have this one; before 12.0 they have no other */
    const ElfW(Word) * gnu_hash;
};

static bool read_object(const struct dl_phdr_info *info, struct object *object)
{
    const ElfW(Dyn) *entry = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (entry == NULL)
        return false;
    *object = (struct object){.base = info->dlpi_addr};
    ElfW(Word) soname = 0;
    for (; entry->d_tag != DT_NULL; entry++) {
        /* glibc has made these absolute, but not in the kernel's vdso. */
        uintptr_t address = entry->d_un.d_ptr;
        if (address < info->dlpi_addr)
            address += info->dlpi_addr;
        switch (entry->d_tag) {
        case DT_SYMTAB:
            object->symbols = (const void *)address;
            break;
        case DT_STRTAB:
            object->strings = (const void *)address;
            break;
        case DT_HASH:
            object->sysv_hash = (const void *)address;
            break;
        case DT_GNU_HASH:
            object->gnu_hash = (const void *)address;
            break;
        case DT_SONAME:
            soname = entry->d_un.d_val;
            break;
        }
    }
    if (object->symbols == NULL || object->strings == NULL)
        return false;
    object->soname = soname ? object->strings + soname : "";
    return true;
}

static void *defined(const struct object *object, ElfW(Word) index, const char *name)
{
    const ElfW(Sym) *symbol = &object->symbols[index];
    if (symbol->st_shndx == SHN_UNDEF || strcmp(object->strings + symbol->st_name, name) != 0)
        return NULL;
    return (void *)(object->base + symbol->st_value);
}

/* DT_HASH: System V gABI, chapter 5, "Hash Table". */
static void *find_by_sysv_hash(const struct object *object, const char *name)
{
    const ElfW(Word) *table = object->sysv_hash, *buckets = table + 2, *chains = buckets + table[0];
    uint32_t hash = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        hash = (hash << 4) + *c;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    for (ElfW(Word) index = buckets[hash % table[0]]; index; index = chains[index]) {
        void *found = defined(object, index, name);
        if (found)
            return found;
    }
    return NULL;
}

/* DT_GNU_HASH: as in glibc, elf/dl-lookup.c; its Bloom filter only saves time. */
static void *find_by_gnu_hash(const struct object *object, const char *name)
{
    const ElfW(Word) *table = object->gnu_hash;
    ElfW(Word) bucket_count = table[0], first = table[1], bloom_words = table[2];
    const ElfW(Word) *buckets = (const ElfW(Word) *)((const ElfW(Addr) *)(table + 4) + bloom_words);
    const ElfW(Word) *chains = buckets + bucket_count;
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        hash = hash * 33 + *c;
    ElfW(Word) index = buckets[hash % bucket_count];
    if (index < first)
        return NULL;
    for (;; index++) {
        ElfW(Word) there = chains[index - first];
        void *found = (there | 1) == (hash | 1) ? defined(object, index, name) : NULL;
        if (found || there & 1)
            return found;
    }
}

static void *find(const struct object *object, const char *name)
{
    if (object->gnu_hash)
        return find_by_gnu_hash(object, name);
    return object->sysv_hash ? find_by_sysv_hash(object, name) : NULL;
}

static int dlsym_in(struct dl_phdr_info *info, size_t size, void *result)
{
    (void)size;
    struct object object;
    if (!read_object(info, &object))
        return 0;
    /* In libc since glibc 2.34, in libdl before. */
    if (strcmp(object.soname, "libc.so.6") != 0 && strcmp(object.soname, "libdl.so.2") != 0)
        return 0;
    void *found = find(&object, "dlsym");
    if (found == NULL)
        return 0;
    *(void **)result = found;
    return 1;
}

dlsym_function *driver_dlsym(void)
{
    static dlsym_function *dlsym_of_glibc;
    dlsym_function *found = __atomic_load_n(&dlsym_of_glibc, __ATOMIC_RELAXED);
    if (found == NULL) {
        dl_iterate_phdr(dlsym_in, &found);
        __atomic_store_n(&dlsym_of_glibc, found, __ATOMIC_RELAXED);
    }
    return found;
}

/* Give the length of a file's mapping. */
static uintptr_t mapped(const struct dl_phdr_info *info)
{
    uintptr_t end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_vaddr + part->p_memsz > end)
            end = part->p_vaddr + part->p_memsz;
    }
    return end;
}

static int driver_in(struct dl_phdr_info *info, size_t size, void *changed)
{
    (void)size;
    struct object object;
    /* By the name it gives itself: compat libraries and copies lie in any directory. */
    if (!read_object(info, &object) || strcmp(object.soname, "libcuda.so.1") != 0)
        return 0;
    for (int i = 0; i < FUNCTION_COUNT; i++)
        __atomic_store_n(&driver.functions[i], find(&object, names[i]), __ATOMIC_RELAXED);
    if (driver.start && driver.start != object.base)
        account_forget(); /* it was unloaded, with all that it had given */
    __atomic_store_n(&driver.end, object.base + mapped(info), __ATOMIC_RELAXED);
    __atomic_store_n(&driver.start, object.base, __ATOMIC_RELEASE);
    *(bool *)changed = true;
    return 1;
}

/* Find all functions again: the driver may have been loaded, or loaded again elsewhere. False: it is not loaded. */
static bool search_again(void)
{
    bool found = false;
    dl_iterate_phdr(driver_in, &found);
    return found;
}

void *driver_own(enum function hook)
{
    return search_again() ? __atomic_load_n(&driver.functions[hook], __ATOMIC_RELAXED) : NULL;
}

/*
 * A search through the files of the process in the loader's order: the program, preloaded libraries, the libraries of
 * both, then the files that were loaded later.
 */
struct search {
    uintptr_t after; /* an address of the file after which the search begins; 0: that file was passed */
    const char *name;
    void *found;
};

static int definition_in(struct dl_phdr_info *info, size_t size, void *result)
{
    (void)size;
    struct search *search = result;
    struct object object;
    if (search->after) {
        if (search->after - info->dlpi_addr < mapped(info))
            search->after = 0;
        return 0;
    }
    if (read_object(info, &object))
        search->found = find(&object, search->name);
    return search->found != NULL;
}

void *driver_next(const void *address, enum function hook)
{
    struct search search = {.after = (uintptr_t)address, .name = names[hook]};
    dl_iterate_phdr(definition_in, &search);
    return search.found;
}

static CUresult not_found(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

void *driver_function(enum function number)
{
    if (__atomic_load_n(&driver.start, __ATOMIC_ACQUIRE) == 0 && !search_again())
        return (void *)not_found;
    void *found = __atomic_load_n(&driver.functions[number], __ATOMIC_RELAXED);
    return found ? found : (void *)not_found;
}

enum function driver_hook_named(const char *name)
{
    enum function hook = 0;
    while (hook < HOOK_COUNT && strcmp(names[hook], name) != 0)
        hook++;
    return hook;
}

static enum function hook_at(const void *address)
{
    enum function hook = 0;
    while (hook < HOOK_COUNT && __atomic_load_n(&driver.functions[hook], __ATOMIC_RELAXED) != address)
        hook++;
    return hook;
}

enum function driver_hook_at(const void *address)
{
    if (address == NULL)
        return HOOK_COUNT;
    if (!driver_contains(address))
        search_again();
    return hook_at(address);
}

bool driver_contains(const void *address)
{
    uintptr_t start = __atomic_load_n(&driver.start, __ATOMIC_ACQUIRE);
    return (uintptr_t)address - start < __atomic_load_n(&driver.end, __ATOMIC_RELAXED) - start;
}
