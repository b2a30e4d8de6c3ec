// Puts a function of its own into the words by which libstdc++ calls malloc and free, after it has called new and delete many
// times, as profilers do that rebind. Each call from then on is to come by there.
#include "keep.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <new>
#include <sys/mman.h>

// Such relocations have their addends with them, or where they point to, by the machine.
#if defined(__arm__)
using Relocation = ElfW(Rel);
static std::size_t symbol_of(const Relocation &relocation) { return ELF32_R_SYM(relocation.r_info); }
#else
using Relocation = ElfW(Rela);
static std::size_t symbol_of(const Relocation &relocation) { return ELF64_R_SYM(relocation.r_info); }
#endif

static int given, taken;

static void *counting_malloc(std::size_t size) {
    given++;
    return std::malloc(size);
}

static void counting_free(void *block) {
    taken++;
    std::free(block);
}

// The words of the object's procedure linkage table that relocations with this symbol's name fill.
static void rebind(const dl_phdr_info *object, const char *name, void *function) {
    const ElfW(Dyn) *dynamic = nullptr;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = reinterpret_cast<const ElfW(Dyn) *>(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    const ElfW(Sym) *symbols = nullptr;
    const char *names = nullptr;
    const Relocation *table = nullptr;
    std::size_t bytes = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = reinterpret_cast<const ElfW(Sym) *>(dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB)
            names = reinterpret_cast<const char *>(dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_JMPREL)
            table = reinterpret_cast<const Relocation *>(dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_PLTRELSZ)
            bytes = dynamic->d_un.d_val;
    }
    for (std::size_t i = 0; i < bytes / sizeof(*table); i++) {
        if (std::strcmp(names + symbols[symbol_of(table[i])].st_name, name) != 0)
            continue;
        std::uintptr_t at = object->dlpi_addr + table[i].r_offset;
        mprotect(reinterpret_cast<void *>(at & ~std::uintptr_t(4095)), 4096, PROT_READ | PROT_WRITE);
        *reinterpret_cast<void **>(at) = function;
    }
}

static int visit(dl_phdr_info *object, std::size_t, void *) {
    if (std::strstr(object->dlpi_name, "libstdc++")) {
        rebind(object, "malloc", reinterpret_cast<void *>(counting_malloc));
        rebind(object, "free", reinterpret_cast<void *>(counting_free));
    }
    return 0;
}

NOINLINE static void work() {
    for (int i = 0; i < 100; i++) {
        operator delete(keep(operator new(24)));
        operator delete(keep(operator new(24)), std::size_t{24});
        operator delete[](keep(operator new[](48)));
        operator delete[](keep(operator new[](48)), std::size_t{48});
    }
}

int main() {
    work();
    dl_iterate_phdr(visit, nullptr);
    work();
    std::printf("%d given, %d taken\n", given, taken);
}
