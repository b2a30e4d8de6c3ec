// C++: every form of new and delete, containers, exceptions that pass through frames that allocate, threads.
#include "keep.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

template <class T> static T *kept(T *p) { return static_cast<T *>(keep(p)); }

struct alignas(256) Wide {
    char room[512];
};

struct Thrower {
    std::string text{std::string(100, 'x')};
    explicit Thrower(bool fail) {
        if (fail)
            throw std::runtime_error("from a constructor, with a message that is long enough to be on the heap");
    }
};

static void forms() {
    delete kept(new int(1));
    delete[] kept(new int[100]);
    delete kept(new (std::nothrow) int(2));
    delete[] kept(new (std::nothrow) char[1000]);
    delete kept(new Wide);
    delete[] kept(new Wide[3]);
    delete kept(new (std::nothrow) Wide);
    ::operator delete(keep(::operator new(0)));
    ::operator delete(keep(::operator new(50)), std::size_t{50});
    ::operator delete(keep(::operator new(64, std::align_val_t{64})), std::align_val_t{64});
    alignas(int) char place[sizeof(int)];
    std::printf("placed %d\n", *new (place) int(9));
    try {
        volatile std::size_t huge = std::size_t(-1) / 2 + 1;
        ::operator delete(keep(::operator new(huge)));
    } catch (const std::bad_alloc &) {
        std::puts("bad_alloc");
    }
    volatile std::size_t huge = std::size_t(-1) / 2 + 1;
    std::printf("nothrow %d\n", ::operator new(huge, std::nothrow) == nullptr);
}

static NOINLINE int thrown(int depth) {
    std::vector<std::string> held(static_cast<std::size_t>(depth % 5 + 1), std::string(40, 'a'));
    if (depth == 0) {
        Thrower whole(false);
        Thrower fails(true);
        return 0;
    }
    try {
        return thrown(depth - 1) + static_cast<int>(held.size());
    } catch (const std::logic_error &) {
        return -1;
    }
}

static void exceptions() {
    int caught = 0;
    for (int i = 0; i < 50; i++) {
        try {
            thrown(i % 25);
        } catch (const std::exception &error) {
            caught += std::string(error.what()).find("heap") != std::string::npos;
        }
    }
    try {
        try {
            throw std::out_of_range("first");
        } catch (...) {
            std::throw_with_nested(std::runtime_error("second"));
        }
    } catch (const std::exception &outer) {
        try {
            std::rethrow_if_nested(outer);
        } catch (const std::exception &inner) {
            std::printf("%s of %s\n", outer.what(), inner.what());
        }
    }
    std::exception_ptr carried;
    std::thread([&] {
        try {
            throw std::string(200, 'e');
        } catch (...) {
            carried = std::current_exception();
        }
    }).join();
    try {
        std::rethrow_exception(carried);
    } catch (const std::string &text) {
        caught += static_cast<int>(text.size());
    }
    std::printf("caught %d\n", caught);
}

static void containers() {
    std::vector<int> numbers;
    for (int i = 0; i < 100000; i++)
        numbers.push_back(i * 7919 % 100003);
    std::map<int, std::string> tree;
    std::unordered_map<std::string, int> table;
    std::list<std::shared_ptr<int>> list;
    for (int i = 0; i < 2000; i++) {
        tree[numbers[static_cast<std::size_t>(i)]] = std::to_string(i) + std::string(20, '-');
        table[std::to_string(i)] += i;
        list.push_back(std::make_shared<int>(i));
    }
    std::stable_sort(numbers.begin(), numbers.end());
    std::ostringstream out;
    for (auto &[key, value] : tree)
        out << key << value;
    std::function<int(int)> f = [big = std::string(300, 'f')](int n) { return n + static_cast<int>(big.size()); };
    std::printf("%zu %zu %zu %zu %d %d\n", tree.size(), table.size(), list.size(), out.str().size(), f(1), numbers[500]);
}

int main() {
    forms();
    exceptions();
    containers();
    auto answer = std::async(std::launch::async, [] { return std::string(1000, 'z').size(); });
    std::printf("async %zu\n", answer.get());
    static std::string *left = kept(new std::string(500, 'l'));
    std::printf("left %zu\n", left->size());
}
