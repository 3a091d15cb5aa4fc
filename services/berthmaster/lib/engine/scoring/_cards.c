/* Scorecards in C: what nodes are worth to one kind of pod, without an array for every step.

What is worked out is said by value.py (score_nodes) and score_cache.py (Scorecard), which are used where this
is not built. Both give the same bits: arithmetic is double, in the order in which they write it,
and made float at the end; hence no contraction of products and sums when this is compiled.

Nodes holds the fleet's arrays, Ask what a pod asks for. Their shapes are checked when they are made,
a card's in each call; what arrays say (a slot, a cluster, free milli) is checked where it is used as
an index. So no call reads or writes elsewhere. A card that a call raised on is of no use any more. */

#include "_cards.h"
#include <structmember.h>

#define LOOK_AGAIN (-1) /* instead of a best slot: it got worse */

/* ---- arrays that are handed in */

int hold(PyObject *from, Py_buffer *to, Wanted wanted)
{
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (wanted.written ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(from, to, flags) < 0) {
        to->obj = NULL;
        return -1;
    }
    Py_ssize_t size = wanted.kind == '?' ? 1 : wanted.kind == 'h' ? 2 : wanted.kind == 'f' ? 4 : 8;
    const char *format = to->format ? to->format : "B";
    int right = format[0] == wanted.kind || (format[0] == 'l' && wanted.kind == 'q');
    if (!right || format[1] || to->itemsize != size || (uintptr_t)to->buf % (size_t)size) {
        PyErr_Format(PyExc_TypeError, "%s: items are %s, not %c", wanted.name, format, wanted.kind);
        PyBuffer_Release(to);
        return -1;
    }
    if (to->ndim != wanted.axes) {
        PyErr_Format(PyExc_ValueError, "%s: of %d axes, not %d", wanted.name, to->ndim, wanted.axes);
        PyBuffer_Release(to);
        return -1;
    }
    return 0;
}

int long_enough(const Py_buffer *held, int axis, Py_ssize_t wanted, const char *name)
{
    if (held->shape[axis] == wanted)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s: %zd long, not %zd", name, held->shape[axis], wanted);
    return 0;
}

void let_go(Py_buffer *held, int count)
{
    for (int i = 0; i < count; i++)
        if (held[i].obj)
            PyBuffer_Release(&held[i]);
}

static void end(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *begin(PyTypeObject *type) /* all zero: a buffer that holds nothing has no obj */
{
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

/* ---- Nodes: the fleet's arrays, for as long as its layout lasts */

static const Wanted of_nodes[ARRAYS] = {
    {"cpu", 'q', 1, 1},   {"memory", 'q', 1, 1}, {"gpu", 'q', 2, 1}, {"whole", 'q', 1, 1},
    {"milli", 'q', 1, 1}, {"a_gpu", 'd', 1},  {"open", '?', 1}, {"cluster_of", 'q', 1},
    {"starts", 'q', 1}, {"log", 'q', 1},   {"newest", 'q', 1},
};

static PyObject *nodes_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"cpu",  "memory",     "gpu",    "whole", "milli",  "a_gpu",
                            "open", "cluster_of", "starts", "log",   "newest", NULL};
    PyObject *from[ARRAYS];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOOOOOOOOO:Nodes", names, &from[0], &from[1],
                                     &from[2], &from[3], &from[4], &from[5], &from[6], &from[7],
                                     &from[8], &from[9], &from[10]))
        return NULL;
    Nodes *self = (Nodes *)begin(type);
    if (!self)
        return NULL;
    for (int i = 0; i < ARRAYS; i++) {
        if (hold(from[i], &self->held[i], of_nodes[i]) < 0)
            goto wrong;
        if (i != STARTS && i != LOG
            && !long_enough(&self->held[i], i == GPU, self->held[CPU].shape[0], names[i]))
            goto wrong;
    }
    self->count = self->held[CPU].shape[0];
    self->width = self->held[GPU].shape[0];
    self->clusters = self->held[STARTS].shape[0];
    self->logged = self->held[LOG].shape[0];
    self->cpu = self->held[CPU].buf;
    self->memory = self->held[MEMORY].buf;
    self->gpu = self->held[GPU].buf;
    self->whole = self->held[WHOLE_GPUS].buf;
    self->milli = self->held[MILLI].buf;
    self->a_gpu = self->held[A_GPU].buf;
    self->open = self->held[OPEN].buf;
    self->cluster_of = self->held[CLUSTER_OF].buf;
    self->starts = self->held[STARTS].buf;
    self->log = self->held[LOG].buf;
    self->newest = self->held[NEWEST].buf;
    return (PyObject *)self;
wrong:
    Py_DECREF(self);
    return NULL;
}

static void nodes_dealloc(PyObject *self)
{
    let_go(((Nodes *)self)->held, ARRAYS);
    end(self);
}

/* ---- Ask: what one pod asks for, and what that is worth by what was learned */

static PyObject *ask_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nodes",     "gpus",       "losses",      "dear",      "breaks",
                            "cpu_milli", "memory_mib", "gpu_count",   "gpu_milli", "takes",
                            "left_over", "slope",      "offset",      "a_cpu",     "short_of_cpu",
                            "own",       NULL};
    static const Wanted wanted[ASKED] = {{"nodes", '?', 1},     {"gpus", '?', 2},
                                         {"losses", 'd', 1},    {"dear", 'd', 1},
                                         {"breaks", 'd', 1}};
    Ask *self = (Ask *)begin(type);
    PyObject *from[ASKED];
    if (!self)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "$OOOOOLLLLddddddd:Ask", names, &from[0], &from[1], &from[2], &from[3],
            &from[4], &self->cpu_milli, &self->memory_mib, &self->gpu_count, &self->gpu_milli, &self->takes,
            &self->left_over, &self->slope, &self->offset, &self->a_cpu,
            &self->short_of_cpu, &self->own))
        goto wrong;
    for (int i = 0; i < ASKED; i++)
        if ((i == FITTING || from[i] != Py_None) && hold(from[i], &self->held[i], wanted[i]) < 0)
            goto wrong;
    if (self->held[LOSSES].obj && !long_enough(&self->held[LOSSES], 0, WHOLE + 1, "losses"))
        goto wrong;
    if (self->held[BREAKS].obj && !long_enough(&self->held[BREAKS], 0, LARGEST_BLOCK + 1, "breaks"))
        goto wrong;
    self->nodes = self->held[FITTING].buf;
    self->gpus = self->held[FITTING_GPUS].buf;
    self->losses = self->held[LOSSES].buf;
    self->dear = self->held[DEAR].buf;
    self->breaks = self->held[BREAKS].buf;
    return (PyObject *)self;
wrong:
    Py_DECREF(self);
    return NULL;
}

static void ask_dealloc(PyObject *self)
{
    let_go(((Ask *)self)->held, ASKED);
    end(self);
}

/* ---- cards: the twin of score_cache.py */

typedef struct {
    Py_buffer held[3];
    float *scores, *best;
    int64_t *best_slot;
} Scorecard;

static int look(const Nodes *n, Scorecard *card, Py_ssize_t cluster)
{
    int64_t first = n->starts[cluster];
    int64_t last = cluster + 1 < n->clusters ? n->starts[cluster + 1] : n->count;
    if (first < 0 || first >= last || last > n->count) {
        PyErr_SetString(PyExc_ValueError, "starts: a cluster is empty or elsewhere");
        return -1;
    }
    int64_t best = best_of(card->scores, first, last);
    card->best_slot[cluster] = best;
    card->best[cluster] = card->scores[best];
    return 0;
}

static int make(const Nodes *n, const Ask *ask, Scorecard *card)
{
    score_span(n, ask, 0, n->count, card->scores);
    for (Py_ssize_t cluster = 0; cluster < n->clusters; cluster++)
        if (look(n, card, cluster) < 0)
            return -1;
    return 0;
}

static void tell(Scorecard *card, int64_t slot, float score, int64_t cluster)
{
    int64_t best_slot = card->best_slot[cluster];
    float best = card->best[cluster];
    if (best_slot == LOOK_AGAIN)
        return;
    if (slot == best_slot) {
        card->best[cluster] = score;
        if (score < best)
            card->best_slot[cluster] = LOOK_AGAIN;
    } else if (score > best || (score == best && score > NOT_HERE && slot < best_slot)) {
        card->best[cluster] = score;
        card->best_slot[cluster] = slot;
    }
}

static int update(const Nodes *n, const Ask *ask, Scorecard *card, Py_ssize_t first, Py_ssize_t last,
                  int64_t forgotten)
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
        card->scores[slot] = score(n, ask, slot);
        tell(card, slot, card->scores[slot], n->cluster_of[slot]);
    }
    for (Py_ssize_t i = first; i < last; i++) {
        int64_t cluster = n->cluster_of[n->log[i]];
        if (card->best_slot[cluster] == LOOK_AGAIN && look(n, card, cluster) < 0)
            return -1;
    }
    return 0;
}

/* ---- what Python calls */

typedef struct {
    PyTypeObject *nodes, *ask;
} State;

int fitting_together(PyObject *module, PyObject *nodes, PyObject *asked)
{
    State *state = PyModule_GetState(module);
    if (!PyObject_TypeCheck(nodes, state->nodes) || (asked && !PyObject_TypeCheck(asked, state->ask))) {
        PyErr_SetString(PyExc_TypeError, "Nodes and an Ask come first");
        return 0;
    }
    const Nodes *n = (const Nodes *)nodes;
    const Ask *ask = (const Ask *)asked;
    static const char *names[ASKED] = {"nodes", "gpus", NULL, "dear", NULL};
    for (int i = 0; ask && i < ASKED; i++)
        if (names[i] && ask->held[i].obj && !long_enough(&ask->held[i], 0, n->count, names[i]))
            return 0;
    return !ask || !ask->gpus || long_enough(&ask->held[FITTING_GPUS], 1, n->width, "gpus");
}

static int take_card(PyObject *module, PyObject *const *args, Scorecard *card)
{
    static const Wanted wanted[3] = {
        {"scores", 'f', 1, 1}, {"best", 'f', 1, 1}, {"best_slot", 'q', 1, 1}};
    if (!fitting_together(module, args[0], args[1]))
        return -1;
    const Nodes *n = (const Nodes *)args[0];
    for (int i = 0; i < 3; i++)
        card->held[i].obj = NULL;
    for (int i = 0; i < 3; i++)
        if (hold(args[2 + i], &card->held[i], wanted[i]) < 0
            || !long_enough(&card->held[i], 0, i ? n->clusters : n->count, wanted[i].name)) {
            let_go(card->held, 3);
            return -1;
        }
    card->scores = card->held[0].buf;
    card->best = card->held[1].buf;
    card->best_slot = card->held[2].buf;
    return 0;
}

static PyObject *cards_make(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Scorecard card;
    if (count != 5) {
        PyErr_Format(PyExc_TypeError, "make takes 5 arguments, not %zd", count);
        return NULL;
    }
    if (take_card(module, args, &card) < 0)
        return NULL;
    int done = make((const Nodes *)args[0], (const Ask *)args[1], &card);
    let_go(card.held, 3);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *cards_update(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Scorecard card;
    if (count != 8) {
        PyErr_Format(PyExc_TypeError, "update takes 8 arguments, not %zd", count);
        return NULL;
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[5]), last = PyLong_AsSsize_t(args[6]);
    long long forgotten = PyLong_AsLongLong(args[7]);
    if (PyErr_Occurred() || take_card(module, args, &card) < 0)
        return NULL;
    const Nodes *n = (const Nodes *)args[0];
    int done = -1;
    if (first < 0 || first > last || last > n->logged)
        PyErr_SetString(PyExc_ValueError, "the log does not reach so far");
    else
        done = update(n, (const Ask *)args[1], &card, first, last, forgotten);
    let_go(card.held, 3);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"make", (PyCFunction)(void (*)(void))cards_make, METH_FASTCALL, NULL},
    {"update", (PyCFunction)(void (*)(void))cards_update, METH_FASTCALL, NULL},
    {"rank", (PyCFunction)(void (*)(void))ranks_rank, METH_FASTCALL, NULL},
    {"room", (PyCFunction)(void (*)(void))gangs_room, METH_FASTCALL, NULL},
    {"seat", (PyCFunction)(void (*)(void))gangs_seat, METH_FASTCALL, NULL},
    {"shown", (PyCFunction)(void (*)(void))ranks_shown, METH_FASTCALL, NULL},
    {"useful", (PyCFunction)(void (*)(void))scores_useful, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef nodes_members[] = {
    {"cpu", T_OBJECT_EX, offsetof(Nodes, held[CPU].obj), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot nodes_slots[] = {{Py_tp_new, nodes_new},
                                    {Py_tp_dealloc, nodes_dealloc},
                                    {Py_tp_members, nodes_members},
                                    {0, NULL}};
static PyType_Slot ask_slots[] = {{Py_tp_new, ask_new}, {Py_tp_dealloc, ask_dealloc}, {0, NULL}};
static PyType_Spec nodes_spec = {"berthmaster.lib.engine.scoring._cards.Nodes", sizeof(Nodes), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, nodes_slots};
static PyType_Spec ask_spec = {"berthmaster.lib.engine.scoring._cards.Ask", sizeof(Ask), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, ask_slots};

static int begin_module(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->nodes = (PyTypeObject *)PyType_FromModuleAndSpec(module, &nodes_spec, NULL);
    state->ask = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ask_spec, NULL);
    if (!state->nodes || !state->ask)
        return -1;
    return PyModule_AddType(module, state->nodes) < 0 || PyModule_AddType(module, state->ask) < 0 ? -1 : 0;
}

static int visit_module(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->nodes);
    Py_VISIT(state->ask);
    return 0;
}

static int clear_module(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->nodes);
    Py_CLEAR(state->ask);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, begin_module}, {0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_cards", "Scorecards in C: see _cards.c.", sizeof(State), functions,
    module_slots, visit_module, clear_module, NULL,
};

PyMODINIT_FUNC PyInit__cards(void)
{
    return PyModuleDef_Init(&module);
}
