/* Gangs: how many pods of a kind nodes can hold, and places for several in one cluster.

score_cache.py (room_of, PodCapacity) and fitting/fit.py (_seat_within) say what is worked out. They
are used where this is not built, for nodes whose GPUs are no plain columns, and for pods that are to
stand to each other in some way.

``seat`` takes room in the fleet's own arrays while it looks, and puts back what it has changed
before it returns, so that nobody sees it. */

#include "_cards.h"

/* ---- room: the twin of score_cache.py */

enum { ROOMS, SUMS, COUNTED };

static const Wanted counted[COUNTED] = {{"rooms", 'h', 1, 1}, {"sums", 'q', 1, 1}};

static int64_t lesser(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static int64_t room(const Nodes *n, const Ask *ask, Py_ssize_t at, int64_t most)
{
    if (!ask->nodes[at] || !n->open[at] || n->cpu[at] < ask->cpu_milli
        || n->memory[at] < ask->memory_mib)
        return 0;
    if (ask->cpu_milli > 0)
        most = lesser(most, n->cpu[at] / ask->cpu_milli);
    if (ask->memory_mib > 0)
        most = lesser(most, n->memory[at] / ask->memory_mib);
    if (ask->losses) {
        int64_t parts = 0;
        for (Py_ssize_t gpu = 0; gpu < n->width; gpu++) {
            int64_t free = n->gpu[gpu * n->count + at];
            if (free > 0 && (!ask->gpus || ask->gpus[at * n->width + gpu]))
                parts += free / ask->gpu_milli;
        }
        most = lesser(most, parts);
    } else if (ask->gpu_count > 0) {
        most = lesser(most, whole_gpus(n, ask, at) / ask->gpu_count);
    }
    return most > 0 ? most : 0;
}

static int count_changed(const Nodes *n, const Ask *ask, int16_t *rooms, int64_t *sums, int64_t most,
                         Py_ssize_t first, Py_ssize_t last, int64_t forgotten)
{
    for (Py_ssize_t i = first; i < last; i++) {
        int64_t slot = n->log[i];
        if (slot < 0 || slot >= n->count || n->cluster_of[slot] < 0
            || n->cluster_of[slot] >= n->clusters) {
            PyErr_SetString(PyExc_ValueError, "log: a slot that no cluster has");
            return -1;
        }
        if (n->newest[slot] != forgotten + i)
            continue;
        int64_t now = room(n, ask, slot, most);
        sums[n->cluster_of[slot]] += now - rooms[slot];
        rooms[slot] = (int16_t)now;
    }
    return 0;
}

static int count_all(const Nodes *n, const Ask *ask, int16_t *rooms, int64_t *sums, int64_t most)
{
    for (Py_ssize_t cluster = 0; cluster < n->clusters; cluster++)
        sums[cluster] = 0;
    for (Py_ssize_t at = 0; at < n->count; at++) {
        if (n->cluster_of[at] < 0 || n->cluster_of[at] >= n->clusters) {
            PyErr_SetString(PyExc_ValueError, "cluster_of: a cluster that there is not");
            return -1;
        }
        int64_t now = room(n, ask, at, most);
        sums[n->cluster_of[at]] += now;
        rooms[at] = (int16_t)now;
    }
    return 0;
}

PyObject *gangs_room(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 8) {
        PyErr_Format(PyExc_TypeError, "room takes 8 arguments, not %zd", count);
        return NULL;
    }
    if (!fitting_together(module, args[0], args[1]))
        return NULL;
    const Nodes *n = (const Nodes *)args[0];
    const Ask *ask = (const Ask *)args[1];
    long most = PyLong_AsLong(args[4]);
    Py_ssize_t first = PyLong_AsSsize_t(args[5]), last = PyLong_AsSsize_t(args[6]);
    long long forgotten = PyLong_AsLongLong(args[7]);
    if (PyErr_Occurred())
        return NULL;
    if (most < 0 || most > INT16_MAX || first > last || last > n->logged
        || (ask->losses && ask->gpu_milli < 1)) {
        PyErr_SetString(PyExc_ValueError, "the log does not reach so far, or amounts are none");
        return NULL;
    }
    Py_buffer held[COUNTED] = {{0}};
    int done = -1;
    if (hold(args[2], &held[ROOMS], counted[ROOMS]) == 0
        && hold(args[3], &held[SUMS], counted[SUMS]) == 0
        && long_enough(&held[ROOMS], 0, n->count, "rooms")
        && long_enough(&held[SUMS], 0, n->clusters, "sums"))
        done = first < 0 ? count_all(n, ask, held[ROOMS].buf, held[SUMS].buf, most)
                         : count_changed(n, ask, held[ROOMS].buf, held[SUMS].buf, most, first, last,
                                         forgotten);
    let_go(held, COUNTED);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- seats: the twin of fit.py */

typedef struct {
    int64_t *where, before;
} Change;

typedef struct {
    Change *changes;
    Py_ssize_t made, room;
} Undo;

static int set(Undo *undo, const int64_t *where, int64_t value)
{
    if (undo->made == undo->room) {
        Py_ssize_t more = undo->room ? 2 * undo->room : 64;
        Change *grown = PyMem_Realloc(undo->changes, (size_t)more * sizeof *grown);
        if (!grown) {
            PyErr_NoMemory();
            return -1;
        }
        undo->changes = grown;
        undo->room = more;
    }
    int64_t *cell = (int64_t *)where; /* of an array that was handed in to be written */
    undo->changes[undo->made++] = (Change){cell, *cell};
    *cell = value;
    return 0;
}

static void put_back(Undo *undo)
{
    while (undo->made) {
        Change last = undo->changes[--undo->made];
        *last.where = last.before;
    }
    PyMem_Free(undo->changes);
}

/* Numbers of the GPUs that a pod takes on a node where it fits: see value.py, pick_gpus. */
static int pick(const Nodes *n, const Ask *ask, Py_ssize_t at, int *picked)
{
    int found = 0;
    double least = NOT_HERE;
    for (int gpu = 0; gpu < n->width; gpu++) {
        int64_t free = n->gpu[gpu * n->count + at];
        if (ask->gpus && !ask->gpus[at * n->width + gpu])
            continue;
        if (!ask->losses) {
            if (found < ask->gpu_count && free >= WHOLE)
                picked[found++] = gpu;
        } else if (free > 0 && free <= WHOLE && ask->losses[free] > least) {
            least = ask->losses[free];
            picked[0] = gpu;
            found = 1;
        }
    }
    return found;
}

static int take(const Nodes *n, const Ask *ask, Py_ssize_t at, const int *picked, int gpus, Undo *undo)
{
    int64_t whole = n->whole[at], milli = n->milli[at];
    for (int i = 0; i < gpus; i++) {
        const int64_t *cell = &n->gpu[picked[i] * n->count + at];
        int64_t before = *cell, after = before - ask->gpu_milli;
        if (set(undo, cell, after) < 0)
            return -1;
        whole += (after >= WHOLE) - (before >= WHOLE);
        milli += (after > 0 ? after : 0) - (before > 0 ? before : 0);
    }
    if (gpus && (set(undo, &n->whole[at], whole) < 0 || set(undo, &n->milli[at], milli) < 0))
        return -1;
    if (set(undo, &n->cpu[at], n->cpu[at] - ask->cpu_milli) < 0
        || set(undo, &n->memory[at], n->memory[at] - ask->memory_mib) < 0)
        return -1;
    return 0;
}

static PyObject *one_place(Py_ssize_t at, const int *picked, int gpus)
{
    PyObject *numbers = PyTuple_New(gpus);
    for (int i = 0; numbers && i < gpus; i++) {
        PyObject *number = PyLong_FromLong(picked[i]);
        if (!number || PyTuple_SetItem(numbers, i, number) < 0)
            Py_CLEAR(numbers);
    }
    return numbers ? Py_BuildValue("(nN)", at, numbers) : NULL;
}

/* Places of a set's pods, one after the other. None: there is no room for all of them. */
static PyObject *seat_set(const Nodes *n, const Ask *ask, Py_ssize_t pods, Py_ssize_t limit,
                          Py_ssize_t first, Py_ssize_t last, float *scores, int *has, Undo *undo)
{
    int picked[MOST_GPUS];
    PyObject *places = PyList_New(pods);
    score_span(n, ask, first, last, scores - first);
    for (Py_ssize_t at = first; at < last; at++)
        has[at - first] = 0;
    for (Py_ssize_t pod = 0; places && pod < pods; pod++) {
        Py_ssize_t best = best_of(scores - first, first, last);
        int gpus = scores[best - first] > NOT_HERE ? pick(n, ask, best, picked) : 0;
        if (!(scores[best - first] > NOT_HERE) || gpus < ask->gpu_count) {
            Py_DECREF(places);
            Py_RETURN_NONE;
        }
        PyObject *place = one_place(best, picked, gpus);
        if (!place || PyList_SetItem(places, pod, place) < 0
            || take(n, ask, best, picked, gpus, undo) < 0) {
            Py_DECREF(places);
            return NULL;
        }
        scores[best - first] = ++has[best - first] < limit ? score(n, ask, best) : NOT_HERE;
    }
    return places;
}

static PyObject *seat_all(PyObject *module, const Nodes *n, PyObject *nodes, PyObject *sets,
                          Py_ssize_t first, Py_ssize_t last, float *scores, int *has, Undo *undo)
{
    Py_ssize_t count = PyTuple_Size(sets);
    PyObject *all = PyList_New(count);
    for (Py_ssize_t i = 0; all && i < count; i++) {
        PyObject *ask, *places = NULL;
        Py_ssize_t pods, limit;
        if (PyArg_ParseTuple(PyTuple_GetItem(sets, i), "Onn", &ask, &pods, &limit)
            && fitting_together(module, nodes, ask)) {
            const Ask *asked = (const Ask *)ask;
            if (pods < 1 || limit < 1 || asked->gpu_count < 0 || asked->gpu_count > MOST_GPUS
                || (asked->losses && asked->gpu_count != 1))
                PyErr_SetString(PyExc_ValueError, "sets: amounts that are none");
            else
                places = seat_set(n, asked, pods, limit, first, last, scores, has, undo);
        }
        if (!places || places == Py_None) {
            Py_DECREF(all);
            return places;
        }
        if (PyList_SetItem(all, i, places) < 0)
            Py_CLEAR(all);
    }
    return all;
}

PyObject *gangs_seat(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "seat takes Nodes, a tuple of sets and two numbers");
        return NULL;
    }
    if (!fitting_together(module, args[0], NULL))
        return NULL;
    const Nodes *n = (const Nodes *)args[0];
    Py_ssize_t first = PyLong_AsSsize_t(args[2]), last = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (first < 0 || first >= last || last > n->count) {
        PyErr_SetString(PyExc_ValueError, "no such nodes");
        return NULL;
    }
    Undo undo = {0};
    PyObject *found = NULL;
    float *scores = PyMem_Malloc((size_t)(last - first) * sizeof *scores);
    int *has = PyMem_Malloc((size_t)(last - first) * sizeof *has);
    if (scores && has)
        found = seat_all(module, n, args[0], args[1], first, last, scores, has, &undo);
    else
        PyErr_NoMemory();
    put_back(&undo);
    PyMem_Free(scores);
    PyMem_Free(has);
    return found;
}
