// Patches operator new and delete of the C++ runtime after a while, as a library of hooks does. Those for arrays and with sizes, which
// lead to them, must go on doing so.
#include "keep.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <new>
#include <sys/mman.h>

static int made, gone;

static void *counted(std::size_t size) {
    made++;
    return std::malloc(size);
}

static void released(void *block) {
    gone++;
    std::free(block);
}

// What of an address the processor goes to, and what is told of the instruction set by the rest.
#if defined(__arm__)
static constexpr std::uintptr_t told = 1;
#else
static constexpr std::uintptr_t told = 0;
#endif

// Writes a jump there that reaches anything, and answers how long it is.
static std::size_t jump(unsigned char *at, [[maybe_unused]] bool is_t32, const void *to) {
#if defined(__x86_64__)
    // mov rax, to; jmp rax
    unsigned char code[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
    std::memcpy(code + 2, &to, sizeof to);
    std::memcpy(at, code, sizeof code);
    return sizeof code;
#else
#if defined(__aarch64__)
    // ldr x16, to; br x16
    const std::uint32_t code[] = {0x58000050, 0xd61f0200};
#elif defined(__arm__)
    // nop where the word would not be aligned; ldr.w pc, to, whose pc is 4 ahead and aligned, or ldr pc, to, whose pc is 8 ahead
    const std::uint32_t t32 = 0xf000f8df, a32 = 0xe51ff004;
    const std::uint16_t nop = 0xbf00;
    const std::size_t before = is_t32 && reinterpret_cast<std::uintptr_t>(at) % 4 != 0 ? sizeof nop : 0;
    std::memcpy(at, &nop, before);
    const std::uint32_t code[] = {is_t32 ? t32 : a32};
    at += before;
#endif
    std::memcpy(at, code, sizeof code);
    std::memcpy(at + sizeof code, &to, sizeof to);
    return sizeof code + sizeof to;
#endif
}

static void patch(const char *name, const void *to) {
    const auto address = reinterpret_cast<std::uintptr_t>(dlsym(RTLD_DEFAULT, name));
    auto *at = reinterpret_cast<unsigned char *>(address & ~told);
    auto *page = reinterpret_cast<void *>(address & ~std::uintptr_t{4095});
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        std::exit(1);
    const std::size_t length = jump(at, (address & told) != 0, to);
    __builtin___clear_cache(reinterpret_cast<char *>(at), reinterpret_cast<char *>(at) + length);
    mprotect(page, 8192, PROT_READ | PROT_EXEC);
}

static void use() {
    for (int i = 0; i < 10; i++) {
        operator delete[](keep(operator new[](10)));
        operator delete(keep(operator new(20)), std::size_t{20});
    }
}

int main() {
    use();
    patch(sizeof(std::size_t) == 8 ? "_Znwm" : "_Znwj", reinterpret_cast<const void *>(counted));
    patch("_ZdlPv", reinterpret_cast<const void *>(released));
    use();
    std::printf("made %d, gone %d\n", made, gone);
}
