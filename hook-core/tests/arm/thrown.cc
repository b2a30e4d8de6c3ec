// Functions whose first call may throw, built once as A32 and once as T32: one catches that itself, one has something to clean
// up, and one calls either of them.

namespace {

int cleaned;

// Not inline: what it needs would come ahead of the call that may throw.
__attribute__((noinline, noclone)) void clean() { cleaned++; }

struct Cleaner {
	~Cleaner() { clean(); }
};

__attribute__((noinline, noclone)) void thrower(int x)
{
	if (x & 1)
		throw x;
	__asm__ volatile("");
}

} // namespace

// Nothing but a push lies ahead of the calls.
extern "C" int catches(int x)
{
	try {
		thrower(x);
	} catch (int) {
		return 1;
	}
	return 0;
}

extern "C" int cleans(int x)
{
	Cleaner cleaner;
	thrower(x);
	return 0;
}

extern "C" int calls(int (*function)(int), int x)
{
	try {
		return function(x);
	} catch (int thrown) {
		return 2 + thrown;
	}
}

extern "C" int count_cleaned(void) { return cleaned; }
