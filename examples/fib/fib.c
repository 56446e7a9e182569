/* The n-th Fibonacci number, by a task for every second call: fib N
 *
 * $FIB_WORKERS is the number of threads, by default one per processor. Prints the number and the
 * time it took, and writes the time to out.csv.
 */
#include <taskpool.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Below it handing a call to another thread costs more than the call. */
enum { SEQUENTIAL = 26, LARGEST = 60 };

struct call {
    struct taskpool *pool;
    int n;
    long result;
};

static long fib_sequential(int n)
{
    return n < 2 ? n : fib_sequential(n - 1) + fib_sequential(n - 2);
}

static void fib(void *argument)
{
    struct call *call = argument;
    if (call->n <= SEQUENTIAL) {
        call->result = fib_sequential(call->n);
        return;
    }
    struct call forked = {call->pool, call->n - 1, 0};
    struct call direct = {call->pool, call->n - 2, 0};
    struct taskpool_task task;
    taskpool_fork(call->pool, &task, fib, &forked);
    fib(&direct);
    taskpool_join(call->pool, &task);
    call->result = forked.result + direct.result;
}

static int parse(const char *what, const char *text, int largest)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 0 || value > largest) {
        fprintf(stderr, "fib: %s is '%s', a number from 0 to %d was expected\n", what, text,
                largest);
        exit(EXIT_FAILURE);
    }
    return (int)value;
}

static long now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void write_csv(int n, int n_workers, long time_ns)
{
    FILE *file = fopen("out.csv", "w");
    if (file)
        fprintf(file, "n_input,n_workers,time_ns\n%d,%d,%ld\n", n, n_workers, time_ns);
    if (!file || ferror(file) || fclose(file)) {
        perror("fib: out.csv");
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fib N\n");
        return EXIT_FAILURE;
    }
    int n = parse("N", argv[1], LARGEST);
    const char *workers = getenv("FIB_WORKERS");
    struct taskpool *pool = taskpool_create(workers ? parse("FIB_WORKERS", workers, 1024) : 0);
    if (!pool) {
        perror("fib: taskpool_create");
        return EXIT_FAILURE;
    }
    struct call call = {pool, n, 0};
    long start = now_ns();
    fib(&call);
    long time_ns = now_ns() - start;
    printf("fib(%d) = %ld\ntime_ns: %ld\n", n, call.result, time_ns);
    write_csv(n, taskpool_workers(pool), time_ns);
    taskpool_destroy(pool);
    return EXIT_SUCCESS;
}
