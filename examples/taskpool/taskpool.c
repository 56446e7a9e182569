#include "taskpool.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* One stack of tasks for all threads. Last in, first out: a join then finds what was forked last,
 * which is small, instead of the largest pieces of work, which would pile up on its own stack. */
struct taskpool {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a task was forked, one is done, or the pool is closing */
    struct taskpool_task *top;
    int closing;
    int n_workers;
    int n_threads; /* started: all workers but the one that created the pool */
    pthread_t threads[];
};

/* Called, and returns, with the lock held. */
static void run_top(struct taskpool *pool)
{
    struct taskpool_task *task = pool->top;
    pool->top = task->next;
    pthread_mutex_unlock(&pool->lock);
    task->function(task->argument);
    pthread_mutex_lock(&pool->lock);
    /* After this the task may be gone: its owner returns from the join. */
    task->done = 1;
    pthread_cond_broadcast(&pool->changed);
}

static void *work(void *argument)
{
    struct taskpool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    while (!pool->closing) {
        if (pool->top)
            run_top(pool);
        else
            pthread_cond_wait(&pool->changed, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

struct taskpool *taskpool_create(int n_workers)
{
    if (n_workers == 0)
        n_workers = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (n_workers < 1) {
        errno = EINVAL;
        return NULL;
    }
    struct taskpool *pool =
        calloc(1, sizeof *pool + (size_t)(n_workers - 1) * sizeof pool->threads[0]);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    pool->n_workers = n_workers;
    while (pool->n_threads < n_workers - 1) {
        int error = pthread_create(&pool->threads[pool->n_threads], NULL, work, pool);
        if (error) {
            taskpool_destroy(pool);
            errno = error;
            return NULL;
        }
        pool->n_threads++;
    }
    return pool;
}

void taskpool_destroy(struct taskpool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->closing = 1;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int taskpool_workers(const struct taskpool *pool)
{
    return pool->n_workers;
}

void taskpool_fork(struct taskpool *pool, struct taskpool_task *task,
                   void (*function)(void *), void *argument)
{
    task->function = function;
    task->argument = argument;
    task->done = 0;
    pthread_mutex_lock(&pool->lock);
    task->next = pool->top;
    pool->top = task;
    /* One is enough, whoever waits runs tasks; and if it leaves instead, the join runs this one. */
    pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

void taskpool_join(struct taskpool *pool, struct taskpool_task *task)
{
    pthread_mutex_lock(&pool->lock);
    while (!task->done) {
        if (pool->top)
            run_top(pool);
        else
            pthread_cond_wait(&pool->changed, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}
