// Exceptions that are thrown in a call which was relocated into a trampoline: caught by the hooked function itself, and by
// its caller when the hooked function has something to clean up. A call at the end of what the patch takes returns to the
// original, so that nobody has to be told of the trampoline; one through memory doesn't.
#include <grapnel_hook.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

static int cleaned, replaced;

struct Cleaner {
    ~Cleaner() { cleaned++; }
};

__attribute__((noinline, noclone)) static void thrower(long x)
{
    if (x % 2)
        throw std::runtime_error("odd");
    __asm__ volatile("");
}

// The call lies in the first bytes: sub rsp, 8; call.
__attribute__((noinline, noclone)) static long catches(long x)
{
    try {
        thrower(x);
    } catch (const std::runtime_error &) {
        return 1;
    }
    return 0;
}

__attribute__((noinline, noclone)) static long cleans(long x)
{
    Cleaner cleaner;
    thrower(x);
    return 0;
}

// sub rsp, 8; call [rsi].
__attribute__((noinline, noclone)) static long catches_through(long x, void (*const *through)(long))
{
    try {
        (*through)(x);
    } catch (const std::runtime_error &) {
        return 1;
    }
    return 0;
}

static void (*const pointer_to_thrower)(long) = thrower;
static long (*volatile call_catches)(long) = catches;
static long (*volatile call_cleans)(long) = cleans;
static long (*volatile call_catches_through)(long, void (*const *)(long)) = catches_through;
static long (*original_catches)(long);
static long (*original_cleans)(long);
static long (*original_catches_through)(long, void (*const *)(long));

static long replacement_catches(long x)
{
    replaced++;
    return original_catches(x);
}

static long replacement_cleans(long x)
{
    replaced++;
    return original_cleans(x);
}

static long replacement_catches_through(long x, void (*const *through)(long))
{
    replaced++;
    return original_catches_through(x, through);
}

static void told_of(grapnel_call *, void *) {}

static void check(grapnel_error *error)
{
    if (error) {
        std::fprintf(stderr, "%s; %s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        std::exit(1);
    }
}

int main(int argc, char **argv)
{
    bool told = false, memory = false, listen = false;
    for (int i = 1; i < argc; i++) {
        told |= !std::strcmp(argv[i], "told");
        memory |= !std::strcmp(argv[i], "memory");
        listen |= !std::strcmp(argv[i], "listen");
    }
    if (told)
        check(grapnel_announce(GRAPNEL_TO_UNWINDERS));
    if (listen) {
        check(grapnel_attach((void *)catches, told_of, told_of, nullptr, 0, GRAPNEL_SINGLE_THREADED, nullptr));
        check(grapnel_attach((void *)cleans, told_of, told_of, nullptr, 0, GRAPNEL_SINGLE_THREADED, nullptr));
    }
    check(grapnel_replace((void *)catches, (void *)replacement_catches, GRAPNEL_SINGLE_THREADED,
                          (void **)&original_catches, nullptr));
    check(grapnel_replace((void *)cleans, (void *)replacement_cleans, GRAPNEL_SINGLE_THREADED,
                          (void **)&original_cleans, nullptr));
    check(grapnel_replace((void *)catches_through, (void *)replacement_catches_through, GRAPNEL_SINGLE_THREADED,
                          (void **)&original_catches_through, nullptr));
    int caught_inside = 0, caught_outside = 0;
    for (long x = 0; x < 2000; x++) {
        caught_inside += memory ? call_catches_through(x, &pointer_to_thrower) : call_catches(x);
        try {
            call_cleans(x);
        } catch (const std::runtime_error &) {
            caught_outside++;
        }
    }
    std::printf("%d replaced, %d caught inside, %d outside, %d cleaned\n", replaced, caught_inside, caught_outside,
                cleaned);
}
