// throws TENTHS: asks operator new for more than there is, in two threads, in each way in which it may throw, for tenths of
// a second. It prints a line each.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

static std::atomic<bool> done;
static volatile std::size_t much = std::size_t(-1) / 2;

static void ask()
{
    while (!done) {
        if (::operator new(much, std::nothrow) != nullptr) {
            std::abort();
        }
        try {
            ::operator delete(::operator new(much));
            std::abort();
        } catch (const std::bad_alloc &) {
        }
        try {
            delete[] new char[much];
            std::abort();
        } catch (const std::bad_alloc &) {
        }
        ::operator delete(::operator new(24));
    }
}

int main(int, char **arguments)
{
    std::thread first(ask), second(ask);
    for (int tenths = std::atoi(arguments[1]); tenths > 0; tenths--) {
        std::puts("still here");
        std::fflush(stdout);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    done = true;
    first.join();
    second.join();
}
