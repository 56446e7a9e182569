/* The sum of 1 .. N, halves of the range at a time. */
#include "taskpool.h"

#include <stdio.h>
#include <stdlib.h>

struct range {
    struct taskpool *pool;
    long from, to; /* to is not in it */
    long sum;
};

static void add_up(void *argument)
{
    struct range *range = argument;
    range->sum = 0;
    if (range->to - range->from <= 100) {
        for (long i = range->from; i < range->to; i++)
            range->sum += i;
        return;
    }
    long middle = range->from + (range->to - range->from) / 2;
    struct range left = {range->pool, range->from, middle, 0};
    struct range right = {range->pool, middle, range->to, 0};
    struct taskpool_task task;
    taskpool_fork(range->pool, &task, add_up, &left);
    add_up(&right);
    taskpool_join(range->pool, &task);
    range->sum = left.sum + right.sum;
}

int main(void)
{
    const long n = 200000;
    for (int n_workers = 0; n_workers <= 8; n_workers++) {
        struct taskpool *pool = taskpool_create(n_workers);
        if (!pool) {
            perror("taskpool_create");
            return EXIT_FAILURE;
        }
        struct range range = {pool, 1, n + 1, 0};
        add_up(&range);
        int workers = taskpool_workers(pool);
        taskpool_destroy(pool);
        if (range.sum != n * (n + 1) / 2) {
            fprintf(stderr, "%d workers: sum %ld\n", workers, range.sum);
            return EXIT_FAILURE;
        }
    }
    if (taskpool_create(-1)) {
        fprintf(stderr, "a pool of -1 workers\n");
        return EXIT_FAILURE;
    }
    puts("ok");
    return EXIT_SUCCESS;
}
