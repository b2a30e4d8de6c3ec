// Listens to the returns of a function that throws every other time.
//
//     c++ examples/throw.cc $(pkg-config --cflags --libs grapnel-hook)
#include <grapnel_hook.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

static int left;

static void on_leave(grapnel_call *call, void *)
{
    left++;
    grapnel_set_result(call, grapnel_result(call) + 1);
}

__attribute__((noinline)) static long throws(long x)
{
    if (x % 2)
        throw std::runtime_error("odd");
    return x;
}

// Called through a pointer that the compiler doesn't see through.
static long (*volatile function)(long) = throws;

int main()
{
    grapnel_hook *hook;
    grapnel_error *error = grapnel_attach((void *)throws, nullptr, on_leave, nullptr, 0, GRAPNEL_SINGLE_THREADED, &hook);
    if (error) {
        std::fprintf(stderr, "%s\n", grapnel_error_message(error));
        return 1;
    }
    int caught = 0;
    for (long x = 0; x < 20000; x++) {
        try {
            if (function(x) != x + 1)
                return 1;
        } catch (const std::runtime_error &) {
            caught++;
        }
    }
    std::printf("20000 calls, %d caught, %d left\n", caught, left);
    error = grapnel_remove(hook, GRAPNEL_SINGLE_THREADED);
    return error || caught != 10000 || left != 10000 || grapnel_missed() != 0;
}
