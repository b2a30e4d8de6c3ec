/* What a program, its children and its parent see of signals, timers and stops. What it does is its first argument. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int came[NSIG], value[NSIG];

static void count(int signal, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code == SI_QUEUE)
        value[signal] = info->si_value.sival_int;
    came[signal]++;
}

static int is_caught(int signal) {
    static const int not[] = {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS, SIGCHLD, SIGPIPE, 32, 33};
    for (unsigned i = 0; i < sizeof not / sizeof *not; i++)
        if (not[i] == signal)
            return 0;
    return 1;
}

static void catch_all(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART};
    action.sa_sigaction = count;
    for (int signal = 1; signal < NSIG; signal++)
        if (is_caught(signal))
            sigaction(signal, &action, NULL);
}

static void rest(long milliseconds) {
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0)
        ;
}

static void print_all(const char *when) {
    for (int signal = 1; signal < NSIG; signal++)
        if (came[signal])
            printf("%s: signal %d %d times, value %d\n", when, signal, came[signal], value[signal]);
    memset((void *)came, 0, sizeof came);
}

/* Counts what comes until SIGTERM does, or for half a minute. */
static int counts(void) {
    catch_all();
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < 30000 && !came[SIGTERM]; i++)
        rest(1);
    rest(50);
    print_all("came");
    return 4;
}

static const int to_group[] = {SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGQUIT, SIGUSR2, SIGALRM, SIGWINCH, SIGTSTP};

static void send_all(pid_t to) {
    for (unsigned i = 0; i < sizeof to_group / sizeof *to_group; i++)
        kill(to, to_group[i]);
}

/* Signals for its own group, from itself, a child and a child's child, and for its parent. */
static int sends(int only_to_parent) {
    catch_all();
    if (only_to_parent) {
        kill(getppid(), SIGUSR1);
        rest(300);
        print_all("to the parent");
        return 4;
    }
    send_all(0);
    rest(300);
    print_all("from itself");
    for (int depth = 1; depth <= 2; depth++) {
        pid_t child = fork();
        if (child == 0) {
            if (depth == 2) {
                pid_t next = fork();
                if (next != 0) {
                    waitpid(next, NULL, 0);
                    _exit(0);
                }
            }
            send_all(0);
            rest(200);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        rest(200);
        print_all(depth == 1 ? "from a child" : "from a child's child");
    }
    return 4;
}

static void rang(int signal) {
    printf("rang %d\n", signal);
    fflush(stdout);
    _exit(3);
}

static int timers_of(const char *name) {
    return strcmp(name, "real") == 0 ? ITIMER_REAL : strcmp(name, "virtual") == 0 ? ITIMER_VIRTUAL : ITIMER_PROF;
}

/* Sets a timer and starts the rest. */
static int sets(char **arguments) {
    struct itimerval timer = {{0, atol(arguments[1])}, {0, atol(arguments[2])}};
    setitimer(timers_of(arguments[0]), &timer, NULL);
    execv(arguments[3], arguments + 3);
    return 127;
}

/* Computes until a timer rings. */
static int rings(void) {
    signal(SIGALRM, rang);
    signal(SIGVTALRM, rang);
    signal(SIGPROF, rang);
    for (;;)
        if (clock() > 60 * CLOCKS_PER_SEC)
            return 5;
}

/* Whether a timer runs, and how often it rings. */
static int asks(const char *name) {
    struct itimerval timer;
    getitimer(timers_of(name), &timer);
    int runs = timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0;
    printf("runs %d, every %ld s %ld us\n", runs, (long)timer.it_interval.tv_sec, (long)timer.it_interval.tv_usec);
    return 0;
}

static void to_every_one(int signal) {
    (void)signal;
    came[SIGCONT]++;
}

/* Stops itself by each of these signals. */
static int stops(char **signals) {
    signal(SIGCONT, to_every_one);
    for (; *signals; signals++) {
        came[SIGCONT] = 0;
        raise(atoi(*signals));
        rest(300);
        printf("continued %d times\n", came[SIGCONT]);
        fflush(stdout);
    }
    return 5;
}

/* The same in a thread that goes on when the first one has ended. */
static void *stops_later(void *signals) {
    rest(300);
    exit(stops(signals));
}

static int stops_in_a_thread(char **signals) {
    pthread_t thread;
    pthread_create(&thread, NULL, stops_later, signals);
    pthread_exit(NULL);
}

/* Goes to a group of its own, and waits for whatever ends it. */
static int leaves(void) {
    setpgid(0, 0);
    puts("ready");
    fflush(stdout);
    rest(20000);
    return 0;
}

/* The program, where grapnel is the child. */
static pid_t first_child_of(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE *file = fopen(path, "r");
    int child = 0;
    if (file && fscanf(file, "%d", &child) != 1)
        child = 0;
    if (file)
        fclose(file);
    return child ? child : pid;
}

/* Starts the rest as a shell starts a job, and continues it, or its group, or the program itself, when it stops. */
static int watches(char **arguments) {
    pid_t job = fork();
    if (job == 0) {
        setpgid(0, 0);
        execv(arguments[1], arguments + 1);
        _exit(127);
    }
    setpgid(job, job);
    for (int i = 0; i < 3000; i++) {
        int status;
        pid_t changed = waitpid(job, &status, WUNTRACED | WNOHANG);
        if (changed == job && WIFSTOPPED(status)) {
            printf("stopped by %d\n", WSTOPSIG(status));
            fflush(stdout);
            if (strcmp(arguments[0], "group") == 0)
                kill(-job, SIGCONT);
            else
                kill(strcmp(arguments[0], "job") == 0 ? job : first_child_of(job), SIGCONT);
        } else if (changed == job) {
            printf("ended by %x\n", status);
            return 6;
        }
        rest(5);
    }
    puts("nothing more");
    kill(-job, SIGKILL);
    return 7;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    const char *what = argv[1];
    if (strcmp(what, "counts") == 0)
        return counts();
    if (strcmp(what, "sends") == 0)
        return sends(argc > 2);
    if (strcmp(what, "kill") == 0)
        return kill(atoi(argv[2]), atoi(argv[3]));
    if (strcmp(what, "queue") == 0)
        return sigqueue(atoi(argv[2]), atoi(argv[3]), (union sigval){.sival_int = atoi(argv[4])});
    if (strcmp(what, "sets") == 0)
        return sets(argv + 2);
    if (strcmp(what, "rings") == 0)
        return rings();
    if (strcmp(what, "asks") == 0)
        return asks(argv[2]);
    if (strcmp(what, "stops_in_a_thread") == 0)
        return stops_in_a_thread(argv + 2);
    if (strcmp(what, "leaves") == 0)
        return leaves();
    if (strcmp(what, "stops") == 0)
        return stops(argv + 2);
    return watches(argv + 2);
}
