/* What the parts of _cards share: the arrays that were handed in, and what is asked for. */

#ifndef BERTH_CARDS_H
#define BERTH_CARDS_H

#define Py_LIMITED_API 0x030b0000 /* buffers are in it since 3.11 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>

#define WHOLE 1000
#define MOST_GPUS 256 /* of a pod */
#define NOT_HERE (-INFINITY)

/* ---- arrays that are handed in */

typedef struct {
    const char *name;
    char kind; /* q: int64, h: int16, d: double, f: float, ?: bool */
    int axes;
    int written;
} Wanted;

int hold(PyObject *from, Py_buffer *to, Wanted wanted);
int long_enough(const Py_buffer *held, int axis, Py_ssize_t wanted, const char *name);
void let_go(Py_buffer *held, int count);
int fitting_together(PyObject *module, PyObject *nodes, PyObject *ask); /* no ask: Nodes at all */

/* ---- Nodes: the fleet's arrays, for as long as its layout lasts */

enum { CPU, MEMORY, GPU, WHOLE_GPUS, MILLI, A_GPU, OPEN, CLUSTER_OF, STARTS, LOG, NEWEST, ARRAYS };

typedef struct {
    PyObject_HEAD
    Py_buffer held[ARRAYS];
    Py_ssize_t count, width, clusters, logged;
    const int64_t *cpu, *memory, *gpu, *whole, *milli, *cluster_of, *starts, *log, *newest;
    const double *a_gpu;
    const char *open;
} Nodes;

/* ---- Ask: what one pod asks for, and what that is worth by what was learned */

#define LARGEST_BLOCK 64 /* wholly free GPUs of a node: with more it counts as with so many */

enum { FITTING, FITTING_GPUS, LOSSES, DEAR, BREAKS, ASKED };

typedef struct {
    PyObject_HEAD
    Py_buffer held[ASKED];
    const char *nodes, *gpus; /* that will do; no gpus: any */
    const double *losses;     /* by free milli, where a part of a GPU is asked for */
    const double *dear;       /* times which a node's GPUs count; none: once everywhere */
    const double *breaks;     /* what changes by the blocks that one pod breaks, by wholly free GPUs */
    long long cpu_milli, memory_mib, gpu_count, gpu_milli;
    double takes, left_over, slope, offset, a_cpu, short_of_cpu, own;
} Ask;

/* ---- scores: _scores.c */

float score(const Nodes *n, const Ask *ask, Py_ssize_t at);
/* The same, of the nodes from first to before last; scores begin with that of node 0. */
void score_span(const Nodes *n, const Ask *ask, Py_ssize_t first, Py_ssize_t last, float *scores);
int64_t whole_gpus(const Nodes *n, const Ask *ask, Py_ssize_t at); /* that are free and will do */
Py_ssize_t best_of(const float *scores, Py_ssize_t first, Py_ssize_t last); /* the first of them */

/* ---- what Python calls: _scores.c, _ranks.c and _gangs.c */

PyObject *scores_useful(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *ranks_rank(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *ranks_shown(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *gangs_room(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *gangs_seat(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
