/* A library with variables of threads: more than libc has room for at threads' starts. */
static __thread volatile char room[20000];
static __thread void *volatile given;

void give(void *block);
void give(void *block) {
    room[100] = 1;
    given = block;
}
