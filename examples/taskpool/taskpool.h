/* Fork-join parallelism on a pool of threads.
 *
 *     struct taskpool *pool = taskpool_create(0);
 *     struct taskpool_task task;
 *     taskpool_fork(pool, &task, function, argument);
 *     ...                                  // anything else, meanwhile
 *     taskpool_join(pool, &task);
 *     taskpool_destroy(pool);
 */
#ifndef TASKPOOL_H
#define TASKPOOL_H

struct taskpool;

/* A forked call; belongs to the caller and must live until it is joined. */
struct taskpool_task {
    void (*function)(void *argument);
    void *argument;
    struct taskpool_task *next;
    int done;
};

/* A pool of n_workers threads, the calling one included; 0 stands for one per online processor.
 * Returns NULL, with errno set, when that is not possible. */
struct taskpool *taskpool_create(int n_workers);

/* All tasks must have been joined. */
void taskpool_destroy(struct taskpool *pool);

/* The number of threads that run tasks, the creating one included. */
int taskpool_workers(const struct taskpool *pool);

/* Let any thread of the pool call function(argument). */
void taskpool_fork(struct taskpool *pool, struct taskpool_task *task,
                   void (*function)(void *), void *argument);

/* Return when the task is done, and run other tasks until then. */
void taskpool_join(struct taskpool *pool, struct taskpool_task *task);

#endif
