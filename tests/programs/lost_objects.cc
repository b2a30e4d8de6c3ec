// C++ objects that are lost, and ones that are held by pointers that compilers make to their insides.
#include <cstdio>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

struct First {
    virtual ~First() = default;
    long first = 1;
};
struct Second {
    virtual ~Second() = default;
    long second = 2;
};
struct Both : First, Second {
    long both[3] = {};
};
struct Shared {
    virtual ~Shared() = default;
    long shared = 3;
};
struct Left : virtual Shared {
    long left = 4;
};
struct Right : virtual Shared {
    long right = 5;
};
struct Diamond : Left, Right {
    long diamond[5] = {};
};
struct Counted {
    ~Counted() { ended++; }
    static int ended;
    int numbers[4] = {};
};
int Counted::ended;
struct Circle {
    std::shared_ptr<Circle> other;
    char text[90] = {};
};

static Second *volatile second;
static Shared *volatile shared;
static Counted *volatile counted;
static std::vector<std::string> *volatile strings;
static std::map<int, std::string> *volatile numbers;
static std::list<std::unique_ptr<Both>> held;
static std::shared_ptr<std::vector<int>> counted_by_pointers;

template <class T> static T *keep(T *object) {
    __asm__ volatile("" : "+r"(object) : : "memory");
    return object;
}

__attribute__((noinline)) static void lose() {
    keep(new Both);
    keep(new Diamond);
    keep(new Counted[5]);
    keep(new std::vector<int>(100));
    auto *map = keep(new std::map<int, std::string>);
    for (int i = 0; i < 12; i++) (*map)[i * 7 % 12] = std::string(40 + i, 'x');
    auto *list = keep(new std::list<std::vector<char>>);
    for (int i = 1; i < 6; i++) list->emplace_back(100 * i);
    auto a = std::make_shared<Circle>(), b = std::make_shared<Circle>();
    a->other = b;
    b->other = a;
}

__attribute__((noinline)) static void hold() {
    second = keep(new Both);
    shared = keep(new Diamond);
    counted = keep(new Counted[7]);
    strings = keep(new std::vector<std::string>);
    for (int i = 0; i < 20; i++) strings->push_back(std::string(30 + i, 'y'));
    numbers = keep(new std::map<int, std::string>);
    for (int i = 0; i < 9; i++) (*numbers)[i] = std::string(50, 'z');
    for (int i = 0; i < 4; i++) held.push_back(std::make_unique<Both>());
    counted_by_pointers = std::make_shared<std::vector<int>>(30);
}

int main() {
    // What their stacks still hold is nobody's.
    std::thread(lose).join();
    std::thread(hold).join();
    puts("done");
    fflush(stdout);
    return 0;
}
