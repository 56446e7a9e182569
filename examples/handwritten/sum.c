/* The sum of the numbers below N, in chunks on a pool of threads: sum N WORKERS
 *
 * Prints N,WORKERS,sum,seconds.
 */
#include <taskpool.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CHUNKS = 16 };

struct chunk {
    long first, end, sum;
};

static void add(void *argument)
{
    struct chunk *chunk = argument;
    for (long number = chunk->first; number < chunk->end; number++)
        chunk->sum += number;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: sum N WORKERS\n");
        return EXIT_FAILURE;
    }
    long n = strtol(argv[1], NULL, 10), sum = 0;
    struct taskpool *pool = taskpool_create(atoi(argv[2]));
    struct chunk chunks[CHUNKS];
    struct taskpool_task tasks[CHUNKS];
    struct timespec start, end;

    if (pool == NULL) {
        perror("sum: taskpool_create");
        return EXIT_FAILURE;
    }
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < CHUNKS; i++) {
        chunks[i] = (struct chunk){n * i / CHUNKS, n * (i + 1) / CHUNKS, 0};
        taskpool_fork(pool, &tasks[i], add, &chunks[i]);
    }
    for (int i = 0; i < CHUNKS; i++) {
        taskpool_join(pool, &tasks[i]);
        sum += chunks[i].sum;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    taskpool_destroy(pool);
    printf("%ld,%s,%ld,%.9f\n", n, argv[2], sum,
           (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
    return EXIT_SUCCESS;
}
