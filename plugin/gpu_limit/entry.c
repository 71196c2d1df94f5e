/* SPDX-License-Identifier: Apache-2.0
 *
 * dlsym, in place of glibc's. An export without a version satisfies references to any version of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "account.h"
#include "hooks.h"

/*
 * Other names are passed on by a jump, not a call: glibc uses the return address to find the caller (RTLD_NEXT).
 * tests/gpu_limit checks that the compiler has made it one.
 */
__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name)
{
    dlsym_function *dlsym_of_glibc = driver_dlsym();
    if (dlsym_of_glibc == NULL)
        return NULL;
    enum function hook = name[0] == 'c' && name[1] == 'u' ? driver_hook_named(name) : HOOK_COUNT;
    if (hook == HOOK_COUNT)
        return dlsym_of_glibc(handle, name);
    const void *caller = __builtin_return_address(0);
    void *own = driver_own(hook);
    if (own && driver_contains(caller))
        return own;
    /* glibc would take this library for the caller, and answer RTLD_NEXT from here. */
    void *found = handle == RTLD_NEXT ? driver_next(caller, hook) : dlsym_of_glibc(handle, name);
    if (found == hooks_export(hook)) {
        found = dlsym_of_glibc(RTLD_NEXT, name);
    } else if (found == NULL && handle == RTLD_NEXT) {
        if (own == NULL)
            return dlsym_of_glibc(handle, name); /* for dlerror */
        found = own; /* the caller is a plugin, loaded after the driver */
    }
    /* Only the driver's own function is wrapped, not another one of that name. */
    return found && found == own && account_limited() ? hooks_export(hook) : found;
}
