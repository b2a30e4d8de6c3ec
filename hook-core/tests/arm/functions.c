// Functions of many kinds, built once as A32 and once as T32.

#include <stdarg.h>

typedef long long wide;

static int counter;
static const int table[] = {3, 1, 4, 1, 5, 9, 2, 6};

__attribute__((noinline)) static int helper(int x)
{
	__asm__ volatile("");
	return x * 3;
}

wide leaf(int a, int b, int c, int d, int e, int f) { return a + 1; }

wide literals(int a, int b, int c, int d, int e, int f) { return (a ^ 0x12345678) + 0x7654321; }

wide branches(int a, int b, int c, int d, int e, int f)
{
	if (!a)
		return 9;
	return b > c ? d : e;
}

wide loops(int a, int b, int c, int d, int e, int f)
{
	wide sum = 0;
	for (int i = 0; i < a + 3; i++)
		sum = sum * 3 + table[i & 7];
	return sum;
}

wide calls(int a, int b, int c, int d, int e, int f) { return helper(a) + helper(f) + 1; }

wide tail(int a, int b, int c, int d, int e, int f) { return calls(a + 1, b, c, d, e, f); }

wide recursive(int a, int b, int c, int d, int e, int f)
{
	return a <= 0 ? f : recursive(a - 1, b, c, d, e, f + 1) + e;
}

wide switches(int a, int b, int c, int d, int e, int f)
{
	switch (a) {
	case 0: return b;
	case 1: return helper(c);
	case 2: return d * d;
	case 3: return counter;
	case 4: return e - f;
	case 5: return 77;
	case 6: return b ^ e;
	default: return -1;
	}
}

wide globals(int a, int b, int c, int d, int e, int f)
{
	counter += a;
	return counter - a + *(&table[a & 7]);
}

wide stack(int a, int b, int c, int d, int e, int f)
{
	volatile int room[300];
	for (int i = 0; i < 300; i++)
		room[i] = i * a;
	return room[b & 255] + e * 10 + f * 100;
}

wide wides(int a, int b, int c, int d, int e, int f) { return ((wide)a << 32 | (unsigned)b) * 3 + ((wide)e << 20); }

wide selects(int a, int b, int c, int d, int e, int f) { return a > b ? (c < d ? e : f) : (a == 0 ? c : d); }

static wide sum(int count, ...)
{
	va_list list;
	wide total = 0;
	va_start(list, count);
	while (count--)
		total = total * 7 + va_arg(list, int);
	va_end(list);
	return total;
}

wide variadic(int a, int b, int c, int d, int e, int f) { return sum(6, a, b, c, d, e, f); }

double floating(double x, float y, int z) { return x * 2 + y - z; }

#ifdef __thumb__
/* As glibc's `stpcpy`, which goes on at the second instruction of `strcpy`. */
__asm__(".pushsection .text\n"
	".syntax unified\n"
	".thumb\n"
	".globl like_stpcpy, like_strcpy\n"
	".type like_stpcpy, %function\n"
	".type like_strcpy, %function\n"
	".thumb_func\n"
	"like_stpcpy: adds r0, #5\n"
	"b 1f\n"
	".size like_stpcpy, . - like_stpcpy\n"
	".thumb_func\n"
	"like_strcpy: adds r0, #1\n"
	"1: asrs r1, r0, #31\n"
	"bx lr\n"
	".size like_strcpy, . - like_strcpy\n"
	".popsection\n");
#endif
