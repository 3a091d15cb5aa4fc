/* What nodes are worth to one kind of pod: the twin of value.py's score_nodes.

``score`` is of one node, as value.py has it. ``score_span`` is of many: blocks of nodes without a
branch, so that processors take several at once, and ``score`` for the nodes that are not plain. */

#include "_cards.h"
#include <string.h>

/* ---- scores: the twin of value.py */

static double best_loss(const Nodes *n, const Ask *ask, Py_ssize_t at)
{
    if (!ask->gpus && n->milli[at] == WHOLE * n->whole[at]) /* no parts are free */
        return n->whole[at] > 0 ? ask->losses[WHOLE] : NOT_HERE;
    double best = NOT_HERE;
    for (Py_ssize_t gpu = 0; gpu < n->width; gpu++) {
        if (ask->gpus && !ask->gpus[at * n->width + gpu])
            continue;
        int64_t free = n->gpu[gpu * n->count + at];
        double loss = ask->losses[free < 0 ? 0 : free > WHOLE ? WHOLE : free];
        best = loss > best ? loss : best;
    }
    return best;
}

int64_t whole_gpus(const Nodes *n, const Ask *ask, Py_ssize_t at)
{
    if (!ask->gpus)
        return n->whole[at];
    int64_t found = 0;
    for (Py_ssize_t gpu = 0; gpu < n->width; gpu++)
        found += n->gpu[gpu * n->count + at] >= WHOLE && ask->gpus[at * n->width + gpu];
    return found;
}

/* What is lost when a pod takes GPUs of these that are wholly free. */
static inline double broken(const Ask *ask, int64_t whole, double a_gpu)
{
    double lost = ((double)whole * ask->slope + ask->offset) * a_gpu;
    return ask->breaks ? lost + ask->breaks[whole < 0 ? 0 : whole > LARGEST_BLOCK ? LARGEST_BLOCK : whole] : lost;
}

float score(const Nodes *n, const Ask *ask, Py_ssize_t at)
{
    if (!ask->nodes[at] || !n->open[at] || n->cpu[at] < ask->cpu_milli
        || n->memory[at] < ask->memory_mib)
        return NOT_HERE;
    double gpus = (double)n->milli[at] * (1.0 / WHOLE);
    double score = (ask->takes - gpus) * ask->left_over;
    if (ask->losses) {
        double best = best_loss(n, ask, at);
        if (best == NOT_HERE)
            return NOT_HERE;
        if (best == ask->losses[WHOLE])
            best += broken(ask, n->whole[at], n->a_gpu[at]);
        score = best + score;
    } else if (ask->gpu_count) {
        if (whole_gpus(n, ask, at) < ask->gpu_count)
            return NOT_HERE;
        score = broken(ask, n->whole[at], n->a_gpu[at]) + score;
    }
    if (ask->a_cpu > 0.0) {
        double unserved = gpus - (double)n->cpu[at] * ask->a_cpu;
        score += unserved > 0.0 ? unserved : 0.0;
        unserved += ask->short_of_cpu;
        score -= unserved > 0.0 ? unserved : 0.0;
    }
    if (ask->dear)
        score = score * ask->dear[at] - (ask->dear[at] - 1.0) * ask->own;
    return (float)score;
}

/* ---- all of them */

/* Compiled for newer processors too, where the loader can choose: the same operations, so the same
bits; what is rounded is never contracted. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef FOR_EACH_PROCESSOR
#define FOR_EACH_PROCESSOR
#endif

#define BLOCK 256
#define LARGE ((int64_t)1 << 51) /* what is not below this is no amount that ``exact`` can take */

static inline double exact(int64_t amount) /* a conversion that many processors have no step for */
{
    const int64_t bits = amount + 0x4338000000000000; /* of 1.5 * 2^52, to which it is added */
    double sum;
    memcpy(&sum, &bits, sizeof sum);
    return sum - 6755399441055744.0;
}

enum { NO_GPU, WHOLE_ONES, PART };

/* As if every node had room and no parts of GPUs were free. Whether all amounts were small enough. */
static inline int plain(const Nodes *n, const Ask *ask, Py_ssize_t first, Py_ssize_t count,
                        const int wants, const int scarce, const int dear, const int priced,
                        float *restrict out)
{
    const int64_t *restrict cpu = n->cpu + first, *restrict whole = n->whole + first;
    const int64_t *restrict milli = n->milli + first;
    const double *restrict a_gpu = n->a_gpu + first;
    const double *restrict factor = dear ? ask->dear + first : a_gpu;
    const double *restrict breaks = ask->breaks;
    const double own = ask->own;
    const double takes = ask->takes, left_over = ask->left_over, a_cpu = ask->a_cpu;
    const double slope = ask->slope, offset = ask->offset, short_of_cpu = ask->short_of_cpu;
    const double opening = wants == PART ? ask->losses[WHOLE] : 0.0;
    uint64_t seen = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        seen |= (uint64_t)(cpu[at] + LARGE) | (uint64_t)(whole[at] + LARGE)
                | (uint64_t)(milli[at] + LARGE);
        double gpus = exact(milli[at]) * (1.0 / WHOLE);
        double score = (takes - gpus) * left_over;
        double lost = (exact(whole[at]) * slope + offset) * a_gpu[at];
        if (priced)
            lost += breaks[whole[at] < 0 ? 0 : whole[at] > LARGEST_BLOCK ? LARGEST_BLOCK : whole[at]];
        if (wants == PART)
            score = (opening + lost) + score;
        else if (wants == WHOLE_ONES)
            score = lost + score;
        if (scarce) {
            double unserved = gpus - exact(cpu[at]) * a_cpu;
            score += unserved > 0.0 ? unserved : 0.0;
            unserved += short_of_cpu;
            score -= unserved > 0.0 ? unserved : 0.0;
        }
        if (dear)
            score = score * factor[at] - (factor[at] - 1.0) * own;
        out[at] = (float)score;
    }
    return seen < 2 * (uint64_t)LARGE;
}

static inline int of_kind(const Nodes *n, const Ask *ask, Py_ssize_t first, Py_ssize_t count,
                          const int scarce, const int dear, const int priced, float *out)
{
    if (ask->losses)
        return plain(n, ask, first, count, PART, scarce, dear, priced, out);
    if (ask->gpu_count)
        return plain(n, ask, first, count, WHOLE_ONES, scarce, dear, priced, out);
    return plain(n, ask, first, count, NO_GPU, scarce, dear, 0, out);
}

FOR_EACH_PROCESSOR
static int block(const Nodes *n, const Ask *ask, Py_ssize_t first, Py_ssize_t count, float *out)
{
    const int scarce = ask->a_cpu > 0.0;
    if (ask->breaks)
        return ask->dear ? of_kind(n, ask, first, count, scarce, 1, 1, out)
                         : of_kind(n, ask, first, count, scarce, 0, 1, out);
    return ask->dear ? of_kind(n, ask, first, count, scarce, 1, 0, out)
                     : of_kind(n, ask, first, count, scarce, 0, 0, out);
}

FOR_EACH_PROCESSOR
static void shut(const Nodes *n, const Ask *ask, Py_ssize_t first, Py_ssize_t count, float *out)
{
    const int64_t *restrict cpu = n->cpu + first, *restrict memory = n->memory + first;
    const int64_t *restrict whole = n->whole + first;
    const char *restrict open = n->open + first, *restrict nodes = ask->nodes + first;
    const int64_t cpu_milli = ask->cpu_milli, memory_mib = ask->memory_mib;
    const int64_t gpus = ask->losses ? 1 : ask->gpu_count ? ask->gpu_count : INT64_MIN;
    for (Py_ssize_t at = 0; at < count; at++) {
        int fits = (nodes[at] != 0) & (open[at] != 0) & (cpu[at] >= cpu_milli)
                   & (memory[at] >= memory_mib) & (whole[at] >= gpus);
        out[at] = fits ? out[at] : NOT_HERE;
    }
}

/* Whether nodes will do, room aside: most blocks hold none that has the model that is asked for. */
static int any_will_do(const char *restrict nodes, Py_ssize_t count)
{
    char any = 0;
    for (Py_ssize_t at = 0; at < count; at++)
        any |= nodes[at];
    return any != 0;
}

void score_span(const Nodes *n, const Ask *ask, Py_ssize_t from, Py_ssize_t last, float *scores)
{
    for (Py_ssize_t first = from; first < last; first += BLOCK) {
        Py_ssize_t count = last - first < BLOCK ? last - first : BLOCK;
        float *out = scores + first;
        if (!any_will_do(ask->nodes + first, count)) {
            for (Py_ssize_t at = 0; at < count; at++)
                out[at] = NOT_HERE;
            continue;
        }
        if (ask->gpus || !block(n, ask, first, count, out)) {
            for (Py_ssize_t at = 0; at < count; at++)
                out[at] = score(n, ask, first + at);
            continue;
        }
        shut(n, ask, first, count, out);
        for (Py_ssize_t at = first; ask->losses && at < first + count; at++)
            if (n->milli[at] != WHOLE * n->whole[at]) /* parts are free: one may do better */
                scores[at] = score(n, ask, at);
    }
}

FOR_EACH_PROCESSOR
Py_ssize_t best_of(const float *scores, Py_ssize_t first, Py_ssize_t last)
{
    Py_ssize_t best = first;
    float most = scores[first];
    for (Py_ssize_t from = first + 1; from < last; from += BLOCK) {
        Py_ssize_t to = last - from < BLOCK ? last : from + BLOCK;
        int any = 0;
        for (Py_ssize_t at = from; at < to; at++)
            any |= scores[at] > most;
        for (Py_ssize_t at = from; any && at < to; at++)
            if (scores[at] > most) {
                most = scores[at];
                best = at;
            }
    }
    return best;
}

/* ---- what free room is worth: the twin of pressure.py's useful_room */

enum { HOLE, CAPACITY, ROOM, HANDED };

static void useful(const Nodes *n, const double *hole, const int64_t *capacity, double a_cpu,
                   double wasted, double *room)
{
    for (Py_ssize_t at = 0; at < n->count; at++)
        room[at] = 0.0;
    for (Py_ssize_t gpu = 0; gpu < n->width; gpu++) {
        const int64_t *free = n->gpu + gpu * n->count;
        for (Py_ssize_t at = 0; at < n->count; at++)
            room[at] += hole[free[at] < 0 ? 0 : free[at] > WHOLE ? WHOLE : free[at]];
    }
    for (Py_ssize_t at = 0; at < n->count; at++) {
        double left = room[at];
        if (a_cpu > 0.0) {
            double unserved = (double)n->milli[at] * 1e-3 - (double)n->cpu[at] * a_cpu;
            left -= unserved > 0.0 ? unserved : 0.0;
        }
        left -= (double)capacity[at] * wasted;
        room[at] = n->open[at] && left > 0.0 ? left : 0.0;
    }
}

PyObject *scores_useful(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    static const Wanted wanted[HANDED] = {
        {"hole", 'd', 1, 0}, {"capacity", 'q', 1, 0}, {"room", 'd', 1, 1}};
    if (count != 6) {
        PyErr_Format(PyExc_TypeError, "useful takes 6 arguments, not %zd", count);
        return NULL;
    }
    if (!fitting_together(module, args[0], NULL))
        return NULL;
    const Nodes *n = (const Nodes *)args[0];
    double a_cpu = PyFloat_AsDouble(args[4]), wasted = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer held[HANDED] = {{0}};
    int right = 1;
    for (int i = 0; right && i < HANDED; i++)
        right = hold(args[1 + i], &held[i], wanted[i]) == 0
                && long_enough(&held[i], 0, i == HOLE ? WHOLE + 1 : n->count, wanted[i].name);
    if (right)
        useful(n, held[HOLE].buf, held[CAPACITY].buf, a_cpu, wasted, held[ROOM].buf);
    let_go(held, HANDED);
    if (!right)
        return NULL;
    Py_RETURN_NONE;
}
