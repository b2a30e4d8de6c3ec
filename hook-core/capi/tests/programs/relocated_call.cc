// Exceptions that are thrown in a call which was relocated into a trampoline: caught by the hooked function itself, and by
// its caller when the hooked function has something to clean up.
#include <grapnel_hook.h>

#include <cstdio>
#include <cstdlib>
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

static long (*volatile call_catches)(long) = catches;
static long (*volatile call_cleans)(long) = cleans;
static long (*original_catches)(long);
static long (*original_cleans)(long);

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

static void check(grapnel_error *error)
{
    if (error) {
        std::fprintf(stderr, "%s; %s\n", grapnel_error_message(error), grapnel_error_remedy(error));
        std::exit(1);
    }
}

int main(int argc, char **)
{
    // With an argument nobody is told, and the first exception ends the program.
    if (argc == 1)
        check(grapnel_announce(GRAPNEL_TO_UNWINDERS));
    check(grapnel_replace((void *)catches, (void *)replacement_catches, GRAPNEL_SINGLE_THREADED,
                          (void **)&original_catches, nullptr));
    check(grapnel_replace((void *)cleans, (void *)replacement_cleans, GRAPNEL_SINGLE_THREADED,
                          (void **)&original_cleans, nullptr));
    int caught_inside = 0, caught_outside = 0;
    for (long x = 0; x < 2000; x++) {
        caught_inside += call_catches(x);
        try {
            call_cleans(x);
        } catch (const std::runtime_error &) {
            caught_outside++;
        }
    }
    std::printf("%d replaced, %d caught inside, %d outside, %d cleaned\n", replaced, caught_inside, caught_outside,
                cleaned);
}
