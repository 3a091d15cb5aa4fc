/* A stand-in for libcuda.so.1: memory that is counted and not there, for the tests of libberthcuda.
 *
 * FAKE_CUDA_TRUTH names a file in which each process counts what it has allocated, under a lock of one
 * byte as the kernel drops it. FAKE_CUDA_LIMIT is what all living processes together must never have:
 * an allocation beyond it ends the process by abort, as the library under test should have refused.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long Ptr;
typedef void *Handle;
enum { SUCCESS = 0, INVALID = 1, SLOTS = 64, THINGS = 4096 };

typedef struct { uint64_t bytes[SLOTS], launches; } Truth;
typedef struct { int kind, handles, mappings; uint64_t bytes; Handle context; } Thing;
enum { FREE, POINTER, ARRAY, PHYSICAL };

static Truth *truth;
static int file = -1, slot = -1;
static pid_t owner;
static uint64_t limit;
static Thing things[THINGS];
static int mapped[THINGS]; /* place -> thing + 1 */
static Handle current = (Handle)0x1000;
static int primary_count;

static int lock(int command, int kind, int number) {
    struct flock one = {.l_type = (short)kind, .l_whence = SEEK_SET, .l_start = (1 << 20) + number, .l_len = 1};
    int code = fcntl(file, command, &one);
    return command == F_GETLK ? one.l_type != F_UNLCK : code;
}

/* Opened before anything else, so that its lock is the first that an ending process drops. */
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAKE_CUDA_TRUTH"), *most = getenv("FAKE_CUDA_LIMIT");
    if (!path) return;
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof *truth)) abort();
    truth = mmap(NULL, sizeof *truth, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    limit = most ? strtoull(most, NULL, 10) : UINT64_MAX;
}

static int enter(void) {
    if (!truth) return 0;
    lock(F_SETLKW, F_WRLCK, 0);
    if (owner != getpid()) {
        owner = getpid();
        memset(things, 0, sizeof things);
        memset(mapped, 0, sizeof mapped);
        for (slot = 0; slot < SLOTS && lock(F_SETLK, F_WRLCK, 1 + slot); slot++) {}
        if (slot == SLOTS) abort();
        truth->bytes[slot] = 0;
    }
    return 1;
}

static int add(int kind, uint64_t bytes) {
    int found = -1;
    if (!enter()) return -1;
    for (int i = 1; i < THINGS && found < 0; i++)
        if (things[i].kind == FREE) found = i;
    if (found >= 0) {
        uint64_t sum = bytes;
        things[found] = (Thing){kind, 1, 0, bytes, current};
        for (int i = 0; i < SLOTS; i++)
            if (truth->bytes[i] && (i == slot || lock(F_GETLK, F_WRLCK, 1 + i))) sum += truth->bytes[i];
        if (sum > limit) {
            fprintf(stderr, "fake_cuda: %llu bytes of %llu are allocated\n", (unsigned long long)sum,
                    (unsigned long long)limit);
            abort();
        }
        truth->bytes[slot] += bytes;
    }
    lock(F_SETLK, F_UNLCK, 0);
    return found;
}

static int end(int kind, uint64_t number) {
    if (!number || number >= THINGS || things[number].kind != kind) return INVALID;
    enter();
    truth->bytes[slot] -= things[number].bytes;
    things[number].kind = FREE;
    lock(F_SETLK, F_UNLCK, 0);
    return SUCCESS;
}

uint64_t fake_cuda_bytes(void) { return truth && slot >= 0 ? truth->bytes[slot] : 0; }
uint64_t fake_cuda_launches(void) { return truth ? truth->launches : 0; }

static int allocate(Ptr *pointer, size_t bytes) {
    if (!bytes) return INVALID;
    int number = add(POINTER, bytes);
    if (number < 0) return 2;
    *pointer = 0x10000000ull + (Ptr)number * 0x10000;
    return SUCCESS;
}
static uint64_t numbered(Ptr pointer) { return pointer < 0x10000000ull ? 0 : (pointer - 0x10000000ull) / 0x10000; }

int cuCtxGetCurrent(Handle *now) { *now = current; return SUCCESS; }
int cuMemAlloc_v2(Ptr *p, size_t n) { return allocate(p, n); }
int cuMemAllocManaged(Ptr *p, size_t n, unsigned flags) { (void)flags; return allocate(p, n); }
int cuMemAllocPitch_v2(Ptr *p, size_t *pitch, size_t width, size_t height, unsigned element) {
    (void)element;
    *pitch = (width + 255) / 256 * 256; /* otherwise than the library thinks */
    return allocate(p, *pitch * height);
}
int cuMemFree_v2(Ptr p) { return end(POINTER, numbered(p)); }
int cuMemAllocAsync(Ptr *p, size_t n, Handle s) { (void)s; return allocate(p, n); }
int cuMemAllocAsync_ptsz(Ptr *p, size_t n, Handle s) { (void)s; return allocate(p, n); }
int cuMemAllocFromPoolAsync(Ptr *p, size_t n, Handle pool, Handle s) { (void)pool, (void)s; return allocate(p, n); }
int cuMemAllocFromPoolAsync_ptsz(Ptr *p, size_t n, Handle pool, Handle s) { (void)pool, (void)s; return allocate(p, n); }
int cuMemFreeAsync(Ptr p, Handle s) { (void)s; return end(POINTER, numbered(p)); }
int cuMemFreeAsync_ptsz(Ptr p, Handle s) { (void)s; return end(POINTER, numbered(p)); }

typedef struct { size_t width, height; int format; unsigned channels; } Flat;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } Deep;
static uint64_t texels(size_t w, size_t h, size_t d, unsigned channels) {
    return (uint64_t)w * (h ? h : 1) * (d ? d : 1) * channels * 4; /* floats */
}
static int array(Handle *made, uint64_t bytes) {
    int number = bytes ? add(ARRAY, bytes) : -1;
    if (number < 0) return INVALID;
    *made = (Handle)(uintptr_t)number;
    return SUCCESS;
}
int cuArrayCreate_v2(Handle *a, const Flat *d) { return array(a, texels(d->width, d->height, 0, d->channels)); }
int cuArray3DCreate_v2(Handle *a, const Deep *d) { return array(a, texels(d->width, d->height, d->depth, d->channels)); }
int cuMipmappedArrayCreate(Handle *a, const Deep *d, unsigned levels) {
    uint64_t bytes = 0;
    size_t w = d->width, h = d->height, deep = d->depth;
    for (unsigned i = 0; i < levels; i++) {
        bytes += texels(w, h, deep, d->channels);
        if (w > 1) w /= 2;
        if (h > 1) h /= 2;
        if (deep > 1) deep /= 2;
    }
    return array(a, bytes);
}
int cuArrayDestroy(Handle a) { return end(ARRAY, (uintptr_t)a); }
int cuMipmappedArrayDestroy(Handle a) { return end(ARRAY, (uintptr_t)a); }

int cuMemCreate(Ptr *handle, size_t bytes, const void *property, unsigned long long flags) {
    (void)property, (void)flags;
    int number = bytes ? add(PHYSICAL, bytes) : -1;
    if (number < 0) return INVALID;
    *handle = (Ptr)number;
    return SUCCESS;
}
static int release(int number) {
    Thing *one = &things[number];
    return one->handles || one->mappings ? SUCCESS : end(PHYSICAL, (uint64_t)number);
}
int cuMemRelease(Ptr handle) {
    if (!handle || handle >= THINGS || things[handle].kind != PHYSICAL || !things[handle].handles) return INVALID;
    things[handle].handles--;
    return release((int)handle);
}
int cuMemMap(Ptr at, size_t bytes, size_t offset, Ptr handle, unsigned long long flags) {
    (void)bytes, (void)offset, (void)flags;
    if (!at || at >= THINGS || mapped[at] || !handle || handle >= THINGS || things[handle].kind != PHYSICAL ||
        !things[handle].handles)
        return INVALID;
    mapped[at] = (int)handle + 1;
    things[handle].mappings++;
    return SUCCESS;
}
int cuMemUnmap(Ptr at, size_t bytes) { /* places are one byte wide here */
    for (Ptr here = at; here < at + bytes; here++)
        if (!here || here >= THINGS || !mapped[here]) return INVALID;
    for (Ptr here = at; here < at + bytes; here++) {
        int number = mapped[here] - 1;
        mapped[here] = 0;
        things[number].mappings--;
        release(number);
    }
    return SUCCESS;
}
int cuMemRetainAllocationHandle(Ptr *handle, void *address) {
    Ptr at = (uintptr_t)address;
    if (!at || at >= THINGS || !mapped[at]) return INVALID;
    *handle = (Ptr)mapped[at] - 1;
    things[*handle].handles++;
    return SUCCESS;
}

static void end_context(Handle which) {
    for (int i = 1; i < THINGS; i++)
        if (things[i].kind && things[i].kind != PHYSICAL && things[i].context == which)
            end(things[i].kind, (uint64_t)i);
}
int cuCtxDestroy_v2(Handle which) { end_context(which); return SUCCESS; }
int cuCtxSetCurrent(Handle which) { current = which; return SUCCESS; }
int cuDevicePrimaryCtxRetain(Handle *made, int device) { (void)device; primary_count++; *made = (Handle)0x1000; return SUCCESS; }
int cuDevicePrimaryCtxReset_v2(int device) { (void)device; end_context((Handle)0x1000); return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    if (!primary_count) return INVALID;
    if (!--primary_count) end_context((Handle)0x1000);
    return SUCCESS;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    (void)device;
    *flags = 0;
    *active = primary_count > 0;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *left, size_t *total) { *total = 1ull << 36; *left = 1ull << 35; return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *total, int device) { (void)device; *total = 1ull << 36; return SUCCESS; }

static int launched(void) { if (truth) __atomic_add_fetch(&truth->launches, 1, __ATOMIC_RELAXED); return SUCCESS; }
#define LAUNCH(suffix)                                                                                     \
    int cuLaunchKernel##suffix(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,     \
                               unsigned bz, unsigned m, Handle s, void **p, void **e) {                    \
        (void)f, (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)m, (void)s, (void)p, (void)e; \
        return launched();                                                                                 \
    }                                                                                                      \
    int cuLaunchKernelEx##suffix(const void *c, Handle f, void **p, void **e) {                            \
        (void)c, (void)f, (void)p, (void)e;                                                                \
        return launched();                                                                                 \
    }                                                                                                      \
    int cuLaunchCooperativeKernel##suffix(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx,       \
                                          unsigned by, unsigned bz, unsigned m, Handle s, void **p) {      \
        (void)f, (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)m, (void)s, (void)p;       \
        return launched();                                                                                 \
    }                                                                                                      \
    int cuGraphLaunch##suffix(Handle g, Handle s) { (void)g, (void)s; return launched(); }
LAUNCH()
LAUNCH(_ptsz)

#include <dlfcn.h>
/* As the driver does: the newest function that the CUDA version has, of the stream that is asked for. */
static int find(const char *name, void **function, int version, uint64_t flags) {
    char longer[128];
    static void *self;
    if (!self) self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    snprintf(longer, sizeof longer, "%s%s", name, flags & 2 ? "_ptsz" : "_v2");
    *function = flags & 2 || version >= 12000 ? dlsym(self, longer) : NULL;
    if (!*function) {
        snprintf(longer, sizeof longer, "%s_v2", name);
        *function = version >= 3020 && strcmp(name, "cuGetProcAddress") ? dlsym(self, longer) : NULL;
    }
    if (!*function) *function = dlsym(self, name);
    return *function ? SUCCESS : 500;
}
/* NULL: behind this library no other has the function. */
void *fake_cuda_next(void) {
    void *volatile found = dlsym(RTLD_NEXT, "fake_cuda_next");
    return found;
}
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return find(name, function, version, flags);
}
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (status) *status = 0;
    return find(name, function, version, flags);
}
