/* The clusters in the order of their scores, and what records show of them: the twin of
scoring/cluster_scores.py. */

#include "_cards.h"

#define MOST 100.0

enum { FREE, ALL, TOTAL, MAY, VALUES, HANDED };

static const Wanted handed[HANDED] = {
    {"free_milli", 'q', 1, 0}, {"all_milli", 'q', 1, 0}, {"total", 'd', 1, 0},
    {"may", '?', 1, 0},        {"values", 'd', 2, 1},
};

/* Of one pod set: the score of each cluster's best node, and how that becomes the part "fit". */
typedef struct {
    Py_buffer held;
    const float *best;
    double a_gpu, even;
} Fits;

static inline double within_bounds(double value)
{
    value = value > 0.0 ? value : 0.0;
    return value < MOST ? value : MOST;
}

/* Numbers by falling score, equal ones as they stand. */
static void sort(const double *score, Py_ssize_t *order, Py_ssize_t *spare, Py_ssize_t count)
{
    if (count > 12) {
        Py_ssize_t half = count / 2, left = 0, right = half;
        sort(score, order, spare, half);
        sort(score, order + half, spare, count - half);
        for (Py_ssize_t at = 0; at < count; at++) {
            int second = left == half || (right < count && score[order[right]] > score[order[left]]);
            spare[at] = order[second ? right++ : left++];
        }
        for (Py_ssize_t at = 0; at < count; at++)
            order[at] = spare[at];
        return;
    }
    for (Py_ssize_t next = 1; next < count; next++) {
        Py_ssize_t number = order[next], at = next;
        for (; at && score[number] > score[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = number;
    }
}

static PyObject *listed(const double *score, const char *able, Py_ssize_t clusters)
{
    Py_ssize_t count = 0;
    Py_ssize_t *order = PyMem_Malloc((size_t)(2 * clusters + 1) * sizeof *order);
    if (!order)
        return PyErr_NoMemory();
    for (Py_ssize_t cluster = 0; cluster < clusters; cluster++)
        if (able[cluster])
            order[count++] = cluster;
    sort(score, order, order + clusters, count);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t at = 0; list && at < count; at++) {
        PyObject *number = PyLong_FromSsize_t(order[at]);
        if (!number || PyList_SetItem(list, at, number) < 0)
            Py_CLEAR(list);
    }
    PyMem_Free(order);
    return list;
}

/* The worst of what it is for each set. */
static double fit_of(const Fits *sets, Py_ssize_t count, Py_ssize_t at)
{
    double least = within_bounds((double)sets[0].best[at] * sets[0].a_gpu + sets[0].even);
    for (Py_ssize_t set = 1; set < count; set++) {
        double fit = within_bounds((double)sets[set].best[at] * sets[set].a_gpu + sets[set].even);
        least = fit < least ? fit : least;
    }
    return least;
}

static PyObject *rank(const Py_buffer *held, const Fits *sets, Py_ssize_t count, double room_factor,
                      double fit_factor, int single)
{
    Py_ssize_t clusters = held[MAY].shape[0];
    const int64_t *free_milli = held[FREE].buf, *all_milli = held[ALL].buf;
    const double *total = held[TOTAL].buf;
    const char *may = held[MAY].buf;
    double *score = held[VALUES].buf;
    double *fit = fit_factor != 0.0 ? score + clusters : NULL;
    double *room = room_factor != 0.0 ? score + (fit ? 2 : 1) * clusters : NULL;
    PyObject *able = PyBytes_FromStringAndSize(NULL, clusters);
    if (!able)
        return NULL;
    char *can = PyBytes_AsString(able);
    for (Py_ssize_t at = 0; at < clusters; at++) {
        double sum = 0.0;
        if (room) {
            double percent = MOST / (double)(all_milli[at] > 1 ? all_milli[at] : 1);
            room[at] = within_bounds(percent * (double)free_milli[at]);
            sum = room_factor * room[at];
        }
        if (fit) {
            fit[at] = fit_of(sets, count, at);
            sum = room ? sum + fit_factor * fit[at] : fit_factor * fit[at];
        }
        score[at] = room || fit ? sum + total[at] : total[at];
        can[at] = may[at] && (!single || sets[0].best[at] > NOT_HERE);
    }
    PyObject *order = listed(score, can, clusters);
    if (!order) {
        Py_DECREF(able);
        return NULL;
    }
    PyObject *both = PyTuple_Pack(2, able, order);
    Py_DECREF(able);
    Py_DECREF(order);
    return both;
}

static int take_set(PyObject *from, Fits *set, Py_ssize_t clusters)
{
    static const Wanted wanted = {"best", 'f', 1, 0};
    PyObject *best;
    return PyArg_ParseTuple(from, "Odd", &best, &set->a_gpu, &set->even)
           && hold(best, &set->held, wanted) == 0
           && long_enough(&set->held, 0, clusters, "best");
}

static PyObject *rank_sets(const Py_buffer *held, PyObject *from, double room, double fit, int single)
{
    Py_ssize_t count = PyTuple_Size(from), taken = 0;
    Fits *sets = PyMem_Calloc((size_t)count, sizeof *sets);
    PyObject *found = NULL;
    if (!sets)
        return PyErr_NoMemory();
    while (taken < count && take_set(PyTuple_GetItem(from, taken), &sets[taken], held[FREE].shape[0])) {
        sets[taken].best = sets[taken].held.buf;
        taken++;
    }
    if (taken == count)
        found = rank(held, sets, count, room, fit, single);
    for (Py_ssize_t set = 0; set < count; set++)
        let_go(&sets[set].held, 1);
    PyMem_Free(sets);
    return found;
}

PyObject *ranks_rank(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 9 || !PyTuple_Check(args[6]) || !PyTuple_Size(args[6])) {
        PyErr_SetString(PyExc_TypeError, "rank takes 9 arguments, the 7th a tuple of sets");
        return NULL;
    }
    double room = PyFloat_AsDouble(args[4]), fit = PyFloat_AsDouble(args[5]);
    long single = PyLong_AsLong(args[8]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *from[HANDED] = {args[1], args[2], args[3], args[7], args[0]};
    Py_buffer held[HANDED] = {{0}};
    PyObject *found = NULL;
    int right = 1;
    for (int i = 0; right && i < HANDED; i++)
        right = hold(from[i], &held[i], handed[i]) == 0;
    for (int i = 0; right && i < HANDED; i++)
        right = long_enough(&held[i], i == VALUES, held[FREE].shape[0], handed[i].name);
    Py_ssize_t rows = 1 + (room != 0.0) + (fit != 0.0);
    if (right && long_enough(&held[VALUES], 0, rows, "values"))
        found = rank_sets(held, args[6], room, fit, single != 0);
    let_go(held, HANDED);
    return found;
}

/* ---- what records show */

typedef struct {
    Py_buffer held;  /* a row for each part */
    PyObject *names; /* of the parts */
} Parts;

static PyObject *to_show(double value)
{
    return PyFloat_FromDouble(floor(value * 1e4 + 0.5) / 1e4);
}

static int show_parts(const Parts *from, Py_ssize_t first, Py_ssize_t number, PyObject *into)
{
    const double *of_it = (const double *)from->held.buf + number;
    for (Py_ssize_t row = first; row < from->held.shape[0]; row++) {
        PyObject *part = to_show(of_it[row * from->held.shape[1]]);
        int done = part ? PyDict_SetItem(into, PyTuple_GetItem(from->names, row - first), part) : -1;
        Py_XDECREF(part);
        if (done < 0)
            return -1;
    }
    return 0;
}

static PyObject *shown(const Parts *values, const Parts *fixed, Py_ssize_t number)
{
    PyObject *score = to_show(((const double *)values->held.buf)[number]);
    PyObject *parts = PyDict_New(), *both = NULL;
    if (score && parts && show_parts(values, 1, number, parts) == 0
        && show_parts(fixed, 0, number, parts) == 0)
        both = PyTuple_Pack(2, score, parts);
    Py_XDECREF(score);
    Py_XDECREF(parts);
    return both;
}

static PyObject *shown_all(const Parts *values, const Parts *fixed, PyObject *numbers)
{
    Py_ssize_t length = PyList_Size(numbers);
    PyObject *list = PyList_New(length);
    for (Py_ssize_t at = 0; list && at < length; at++) {
        Py_ssize_t number = PyLong_AsSsize_t(PyList_GetItem(numbers, at));
        PyObject *one = NULL;
        if (number >= 0 && number < values->held.shape[1])
            one = shown(values, fixed, number);
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "no such cluster");
        if (!one || PyList_SetItem(list, at, one) < 0)
            Py_CLEAR(list);
    }
    return list;
}

PyObject *ranks_shown(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    static const Wanted wanted[2] = {{"values", 'd', 2, 0}, {"fixed", 'd', 2, 0}};
    (void)module;
    if (count != 5 || !PyTuple_Check(args[1]) || !PyTuple_Check(args[3]) || !PyList_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "shown takes two arrays, each with a tuple, and a list");
        return NULL;
    }
    Parts values = {{0}, args[1]}, fixed = {{0}, args[3]};
    PyObject *list = NULL;
    if (hold(args[0], &values.held, wanted[0]) == 0 && hold(args[2], &fixed.held, wanted[1]) == 0
        && long_enough(&values.held, 0, 1 + PyTuple_Size(args[1]), "values")
        && long_enough(&fixed.held, 0, PyTuple_Size(args[3]), "fixed")
        && long_enough(&fixed.held, 1, values.held.shape[1], "fixed"))
        list = shown_all(&values, &fixed, args[4]);
    let_go(&values.held, 1);
    let_go(&fixed.held, 1);
    return list;
}
