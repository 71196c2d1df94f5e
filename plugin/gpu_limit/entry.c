/* SPDX-License-Identifier: Apache-2.0
 *
 * dlsym, in place of glibc's. An export without a version satisfies references to any version of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "account.h"
#include "hooks.h"

/* The answer for a function that is wrapped. */
static void *look_up(dlsym_function *dlsym_of_glibc, void *handle, enum function hook, const char *name)
{
    /* These two depend on where the call comes from: from here they mean what comes after this library. */
    void *found = dlsym_of_glibc(handle == RTLD_DEFAULT ? RTLD_NEXT : handle, name);
    if (found == hooks_wrapper(hook)) /* by the handle of the program itself */
        found = dlsym_of_glibc(RTLD_NEXT, name);
    /* Only the driver's own function is wrapped, not another one of that name. */
    return driver_hook_at(found) == hook ? hooks_wrapper(hook) : found;
}

/*
 * Everything else is passed on by a jump, not a call: glibc looks at the return address to know who asks
 * (RTLD_NEXT). The build checks that the compiler has made it one. The driver asks for its own functions.
 */
__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name)
{
    dlsym_function *dlsym_of_glibc = driver_dlsym();
    if (dlsym_of_glibc == NULL)
        return NULL;
    enum function hook = name[0] == 'c' && name[1] == 'u' ? driver_hook_named(name) : HOOK_COUNT;
    if (hook == HOOK_COUNT || !account_limited() || driver_contains(__builtin_return_address(0)))
        return dlsym_of_glibc(handle, name);
    return look_up(dlsym_of_glibc, handle, hook, name);
}
