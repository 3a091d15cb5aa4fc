/* libberthcuda: holds the CUDA processes of one container to a share of a GPU. For ld.so.preload.
 *
 * SHARE is a file that `berth serve shares` made for the container (worker/shares/account.py has its layout).
 * All processes of the container map it. Where there is none, BERTHCUDA_SHARE may name one.
 *
 * - Memory is granted before the driver is asked. A process owns one slot, which has the bytes that it
 *   holds, and a lock of one byte, which the kernel drops when the process ends, by kill -9 too. What
 *   is granted is the sum over slots whose lock is held: nothing can leak.
 * - Launches spend tokens, a token for each block of threads. The plugin measures what the share used
 *   of the GPU and sets how many tokens a second there are.
 *
 * Without a file everything is passed on. What cannot be accounted for is refused as out of
 * memory. Example: a limit of 100 bytes, 60 held by process A; B asks for 50 and is refused; A is
 * killed; B asks again and is granted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef int Result;
typedef unsigned long long Ptr;
typedef void *Handle;

enum { SUCCESS = 0, OUT_OF_MEMORY = 2 };

/* ---------------------------------------------------------------- the share's file */

enum { SLOTS = 512, LOCKS = 1 << 20 /* offset of the bytes that are locked: behind all data */ };
#define SHARE "/run/berthmaster/share"
#define MAGIC 0x3165726168736262ull /* "bbshare1" */
#define WAIT_LIMIT_NS 10000000000ll /* a launch waits no longer for tokens */
#define FULL_NS 100000000ll         /* tokens of so long are kept at most */

typedef struct {
    uint64_t magic, limit;
    _Atomic uint64_t rate;  /* tokens a second; 0 = no limit */
    _Atomic uint64_t spent; /* tokens, since the file was made */
    _Atomic uint64_t waits; /* launches that had to wait */
    _Atomic int64_t tokens;
    _Atomic int64_t filled_ns; /* when tokens were added last */
    uint64_t milli; /* of the GPU's compute: the plugin's own note */
    _Atomic uint64_t used[SLOTS];
} Share;

static Share *share;
static int file = -1, slot = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int lock_byte(int command, int kind, int number) {
    struct flock lock = {.l_type = (short)kind, .l_whence = SEEK_SET, .l_start = LOCKS + number, .l_len = 1};
    int code;
    do code = fcntl(file, command, &lock);
    while (code < 0 && errno == EINTR);
    return command == F_GETLK && code == 0 ? lock.l_type != F_UNLCK : code;
}

static void forget(void);

static void in_child(void) { /* a child holds nothing of its parent's: contexts do not survive a fork */
    pthread_mutex_init(&mutex, NULL);
    slot = -1;
    forget();
}

static void open_share(void) {
    const char *path = access(SHARE, F_OK) == 0 ? SHARE : getenv("BERTHCUDA_SHARE");
    if (!path || !*path) return;
    file = open(path, O_RDWR | O_CLOEXEC);
    Share *mapped = file < 0 ? MAP_FAILED
                             : mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED || mapped->magic != MAGIC) {
        static Share refuses; /* a limit of 0: nothing is granted that cannot be accounted for */
        fprintf(stderr, "libberthcuda: %s is no share: no memory is granted\n", path);
        share = &refuses;
        return;
    }
    share = mapped;
    pthread_atfork(NULL, NULL, in_child);
}

static Share *opened(void) {
    pthread_once(&once, open_share);
    return share;
}

/* Between enter and leave no other process and no other thread grants or gives back. Whether it may. */
static int enter(void) {
    pthread_mutex_lock(&mutex);
    if (file >= 0 && lock_byte(F_SETLKW, F_WRLCK, 0) == 0) {
        for (int i = 0; slot < 0 && i < SLOTS; i++)
            if (lock_byte(F_SETLK, F_WRLCK, 1 + i) == 0) {
                slot = i; /* of nobody, or of a process that has ended */
                share->used[i] = 0;
            }
        if (slot >= 0) return 1;
        lock_byte(F_SETLK, F_UNLCK, 0);
    }
    pthread_mutex_unlock(&mutex);
    return 0;
}

static void leave(void) {
    lock_byte(F_SETLK, F_UNLCK, 0);
    pthread_mutex_unlock(&mutex);
}

static uint64_t held(void) { /* by all that live */
    uint64_t sum = 0;
    for (int i = 0; i < SLOTS; i++) {
        uint64_t bytes = share->used[i];
        if (!bytes) continue;
        if (i != slot && lock_byte(F_GETLK, F_WRLCK, 1 + i) == 0) share->used[i] = bytes = 0;
        sum += bytes;
    }
    return sum;
}

static int reserve(uint64_t bytes) {
    if (!opened()) return 1;
    if (!enter()) return 0;
    uint64_t before = held();
    int granted = before <= share->limit && bytes <= share->limit - before;
    if (granted) share->used[slot] += bytes;
    leave();
    return granted;
}

static void give_back(uint64_t bytes) {
    if (!opened() || !bytes || !enter()) return;
    share->used[slot] -= bytes <= share->used[slot] ? bytes : share->used[slot];
    leave();
}

static uint64_t used_by_all(void) {
    uint64_t sum = share->limit;
    if (enter()) {
        sum = held();
        leave();
    }
    return sum;
}

/* ---------------------------------------------------------------- what this process holds */

typedef struct { /* memory that handles and mappings share */
    uint64_t bytes;
    unsigned handles, mappings;
} Physical;

typedef struct Entry {
    struct Entry *next;
    uint64_t key, bytes;
    Handle context;
    Physical *physical;
} Entry;

enum Kind { POINTERS, ARRAYS, HANDLES, MAPPINGS, KINDS };
enum { BUCKETS = 4096 };
static Entry *table[KINDS][BUCKETS];
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;

static Entry **bucket(enum Kind kind, uint64_t key) {
    return &table[kind][(key * 0x9e3779b97f4a7c15ull) >> 52];
}

static int keep(enum Kind kind, uint64_t key, Entry with) {
    Entry *entry = malloc(sizeof *entry);
    if (!entry) return 0;
    *entry = with;
    entry->key = key;
    pthread_mutex_lock(&table_mutex);
    Entry **first = bucket(kind, key);
    entry->next = *first;
    *first = entry;
    pthread_mutex_unlock(&table_mutex);
    return 1;
}

/* Take an entry out before the driver may give its key to somebody else; NULL = not ours. */
static Entry *take(enum Kind kind, uint64_t key) {
    pthread_mutex_lock(&table_mutex);
    Entry **at = bucket(kind, key), *found;
    while (*at && (*at)->key != key) at = &(*at)->next;
    if ((found = *at)) *at = found->next;
    pthread_mutex_unlock(&table_mutex);
    return found;
}

static void put(enum Kind kind, Entry *entry) {
    pthread_mutex_lock(&table_mutex);
    Entry **first = bucket(kind, entry->key);
    entry->next = *first;
    *first = entry;
    pthread_mutex_unlock(&table_mutex);
}

static uint64_t drop(Entry **at) {
    Entry *entry = *at;
    uint64_t bytes = entry->bytes;
    *at = entry->next;
    free(entry);
    return bytes;
}

/* The bytes of all that a context held, which has ended. */
static uint64_t drop_context(Handle context) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&table_mutex);
    for (int kind = POINTERS; kind <= ARRAYS; kind++)
        for (int i = 0; i < BUCKETS; i++)
            for (Entry **at = &table[kind][i]; *at;)
                if ((*at)->context == context) bytes += drop(at);
                else at = &(*at)->next;
    pthread_mutex_unlock(&table_mutex);
    return bytes;
}

static void forget(void) {
    pthread_mutex_init(&table_mutex, NULL);
    memset(table, 0, sizeof table); /* entries stay allocated: a child must not call free here */
}

/* ---------------------------------------------------------------- the driver's own functions */

typedef void *(*Dlsym)(void *, const char *);

static Dlsym real_dlsym(void) {
    static _Atomic(Dlsym) known;
    if (!known) {
        Dlsym found = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!found) found = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        if (!found) found = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
        if (!found) abort(); /* no glibc */
        known = found;
    }
    return known;
}

static void *library(const char *name) {
    void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    return handle ? handle : dlopen(name, RTLD_LAZY);
}

static void *real(const char *name) {
    static void *cuda, *nvml;
    void **from = name[0] == 'n' ? &nvml : &cuda;
    if (!*from) *from = library(name[0] == 'n' ? "libnvidia-ml.so.1" : "libcuda.so.1");
    return *from ? real_dlsym()(*from, name) : NULL;
}

/* REAL(cuMemFree_v2, Ptr)(pointer): call the driver's function, or say that it has none. */
#define NOT_FOUND 500
static Result absent(void) { return NOT_FOUND; }
#define REAL(name, ...)                                     \
    ({                                                      \
        static Result (*function)(__VA_ARGS__);             \
        if (!function) function = real(#name);              \
        function ? function : (Result(*)(__VA_ARGS__))(void *)absent; \
    })

static Handle context(void) {
    Handle now = NULL;
    REAL(cuCtxGetCurrent, Handle *)(&now);
    return now;
}

/* ---------------------------------------------------------------- memory */

/* After the driver's answer: hold what was reserved, or give it back. */
static Result settle(Result code, enum Kind kind, const uint64_t *key, uint64_t bytes, Handle of) {
    if (code != SUCCESS || !key) give_back(bytes);
    else if (opened()) keep(kind, *key, (Entry){.bytes = bytes, .context = of});
    return code;
}

static Result freed(enum Kind kind, Entry *entry, Result code) {
    if (!entry) return code;
    if (code != SUCCESS) {
        put(kind, entry);
    } else {
        give_back(entry->bytes);
        free(entry);
    }
    return code;
}

EXPORT Result cuMemAlloc_v2(Ptr *pointer, size_t bytes) {
    if (!reserve(bytes)) return OUT_OF_MEMORY;
    Result code = REAL(cuMemAlloc_v2, Ptr *, size_t)(pointer, bytes);
    return settle(code, POINTERS, (uint64_t *)pointer, bytes, context());
}

EXPORT Result cuMemAllocManaged(Ptr *pointer, size_t bytes, unsigned flags) {
    if (!reserve(bytes)) return OUT_OF_MEMORY;
    Result code = REAL(cuMemAllocManaged, Ptr *, size_t, unsigned)(pointer, bytes, flags);
    return settle(code, POINTERS, (uint64_t *)pointer, bytes, context());
}

EXPORT Result cuMemAllocPitch_v2(Ptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    uint64_t row = (width + 511) / 512 * 512; /* as drivers align; what they say counts */
    if (height && row > UINT64_MAX / height) return OUT_OF_MEMORY;
    if (!reserve(row * height)) return OUT_OF_MEMORY;
    Result code = REAL(cuMemAllocPitch_v2, Ptr *, size_t *, size_t, size_t, unsigned)(pointer, pitch, width,
                                                                                      height, element);
    uint64_t bytes = row * height;
    if (code == SUCCESS && pitch && *pitch < row) {
        give_back((row - *pitch) * height);
        bytes = *pitch * height;
    } else if (code == SUCCESS && pitch && *pitch > row) {
        if (!reserve((*pitch - row) * height)) {
            REAL(cuMemFree_v2, Ptr)(*pointer);
            give_back(bytes);
            return OUT_OF_MEMORY;
        }
        bytes = *pitch * height;
    }
    return settle(code, POINTERS, (uint64_t *)pointer, bytes, context());
}

EXPORT Result cuMemFree_v2(Ptr pointer) {
    Entry *entry = take(POINTERS, pointer);
    return freed(POINTERS, entry, REAL(cuMemFree_v2, Ptr)(pointer));
}

/* A device's pools outlive contexts of their own; the primary one's end is the end of all. */
static Handle primary;

#define ASYNC(suffix)                                                                            \
    EXPORT Result cuMemAllocAsync##suffix(Ptr *pointer, size_t bytes, Handle stream) {           \
        if (!reserve(bytes)) return OUT_OF_MEMORY;                                               \
        Result code = REAL(cuMemAllocAsync##suffix, Ptr *, size_t, Handle)(pointer, bytes, stream); \
        return settle(code, POINTERS, (uint64_t *)pointer, bytes, primary);                      \
    }                                                                                            \
    EXPORT Result cuMemAllocFromPoolAsync##suffix(Ptr *pointer, size_t bytes, Handle pool,       \
                                                  Handle stream) {                               \
        if (!reserve(bytes)) return OUT_OF_MEMORY;                                               \
        Result code = REAL(cuMemAllocFromPoolAsync##suffix, Ptr *, size_t, Handle, Handle)(      \
            pointer, bytes, pool, stream);                                                       \
        return settle(code, POINTERS, (uint64_t *)pointer, bytes, primary);                      \
    }                                                                                            \
    EXPORT Result cuMemFreeAsync##suffix(Ptr pointer, Handle stream) {                           \
        Entry *entry = take(POINTERS, pointer);                                                  \
        return freed(POINTERS, entry, REAL(cuMemFreeAsync##suffix, Ptr, Handle)(pointer, stream)); \
    }
ASYNC()
ASYNC(_ptsz)

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} Flat;
typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} Deep;

static uint64_t texels(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned channels) {
    unsigned each = format == 1 || format == 8 ? 1 : format == 2 || format == 9 || format == 0x10 ? 2 : 4;
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(width, height ? height : 1, &bytes) ||
        __builtin_mul_overflow(bytes, depth ? depth : 1, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)each * (channels ? channels : 1), &bytes))
        return UINT64_MAX; /* more than any limit */
    return bytes;
}

EXPORT Result cuArrayCreate_v2(Handle *array, const Flat *what) {
    uint64_t bytes = what ? texels(what->width, what->height, 0, what->format, what->channels) : 0;
    if (!reserve(bytes)) return OUT_OF_MEMORY;
    Result code = REAL(cuArrayCreate_v2, Handle *, const Flat *)(array, what);
    return settle(code, ARRAYS, (uint64_t *)array, bytes, context());
}

EXPORT Result cuArray3DCreate_v2(Handle *array, const Deep *what) {
    uint64_t bytes =
        what ? texels(what->width, what->height, what->depth, what->format, what->channels) : 0;
    if (!reserve(bytes)) return OUT_OF_MEMORY;
    Result code = REAL(cuArray3DCreate_v2, Handle *, const Deep *)(array, what);
    return settle(code, ARRAYS, (uint64_t *)array, bytes, context());
}

EXPORT Result cuMipmappedArrayCreate(Handle *array, const Deep *what, unsigned levels) {
    uint64_t bytes = 0, width = what ? what->width : 0, height = what ? what->height : 0;
    uint64_t depth = what ? what->depth : 0;
    for (unsigned level = 0; what && level < levels && level < 64; level++) {
        uint64_t one = texels(width, height, depth, what->format, what->channels);
        if (__builtin_add_overflow(bytes, one, &bytes)) bytes = UINT64_MAX;
        width = width > 1 ? width / 2 : width;
        height = height > 1 ? height / 2 : height;
        depth = depth > 1 ? depth / 2 : depth;
    }
    if (!reserve(bytes)) return OUT_OF_MEMORY;
    Result code = REAL(cuMipmappedArrayCreate, Handle *, const Deep *, unsigned)(array, what, levels);
    return settle(code, ARRAYS, (uint64_t *)array, bytes, context());
}

EXPORT Result cuArrayDestroy(Handle array) {
    Entry *entry = take(ARRAYS, (uintptr_t)array);
    return freed(ARRAYS, entry, REAL(cuArrayDestroy, Handle)(array));
}

EXPORT Result cuMipmappedArrayDestroy(Handle array) {
    Entry *entry = take(ARRAYS, (uintptr_t)array);
    return freed(ARRAYS, entry, REAL(cuMipmappedArrayDestroy, Handle)(array));
}

/* Virtual memory: what cuMemCreate made goes when it has neither a handle nor a mapping. */

typedef struct {
    int type, handle_types, location, device;
} Property;

static pthread_mutex_t physical_mutex = PTHREAD_MUTEX_INITIALIZER;

static void unless_used(Physical *one) { /* called with physical_mutex held */
    if (one->handles || one->mappings) return;
    give_back(one->bytes);
    free(one);
}

EXPORT Result cuMemCreate(Ptr *handle, size_t bytes, const Property *property, unsigned long long flags) {
    int counts = !property || property->location == 1; /* on a device, not on the host */
    if (counts && !reserve(bytes)) return OUT_OF_MEMORY;
    Result code = REAL(cuMemCreate, Ptr *, size_t, const Property *, unsigned long long)(handle, bytes,
                                                                                         property, flags);
    if (!counts || !opened()) return code;
    Physical *one = code == SUCCESS ? malloc(sizeof *one) : NULL;
    if (!one) {
        give_back(bytes);
        return code;
    }
    *one = (Physical){bytes, 1, 0};
    keep(HANDLES, *handle, (Entry){.physical = one});
    return code;
}

EXPORT Result cuMemRelease(Ptr handle) {
    pthread_mutex_lock(&physical_mutex);
    Entry *entry = take(HANDLES, handle);
    Result code = REAL(cuMemRelease, Ptr)(handle);
    if (entry && (code != SUCCESS || --entry->physical->handles)) {
        put(HANDLES, entry);
    } else if (entry) {
        unless_used(entry->physical);
        free(entry);
    }
    pthread_mutex_unlock(&physical_mutex);
    return code;
}

EXPORT Result cuMemRetainAllocationHandle(Ptr *handle, void *address) {
    pthread_mutex_lock(&physical_mutex);
    Result code = REAL(cuMemRetainAllocationHandle, Ptr *, void *)(handle, address);
    Entry *mapping = code == SUCCESS ? take(MAPPINGS, (uintptr_t)address) : NULL;
    if (mapping) {
        Entry *known = take(HANDLES, *handle);
        if (known) {
            known->physical->handles++;
            put(HANDLES, known);
        } else {
            mapping->physical->handles++;
            keep(HANDLES, *handle, (Entry){.physical = mapping->physical});
        }
        put(MAPPINGS, mapping);
    }
    pthread_mutex_unlock(&physical_mutex);
    return code;
}

EXPORT Result cuMemMap(Ptr at, size_t bytes, size_t offset, Ptr handle, unsigned long long flags) {
    pthread_mutex_lock(&physical_mutex);
    Result code = REAL(cuMemMap, Ptr, size_t, size_t, Ptr, unsigned long long)(at, bytes, offset, handle, flags);
    Entry *entry = code == SUCCESS ? take(HANDLES, handle) : NULL;
    if (entry) {
        entry->physical->mappings++;
        keep(MAPPINGS, at, (Entry){.bytes = bytes, .physical = entry->physical});
        put(HANDLES, entry);
    }
    pthread_mutex_unlock(&physical_mutex);
    return code;
}

EXPORT Result cuMemUnmap(Ptr at, size_t bytes) {
    pthread_mutex_lock(&physical_mutex);
    Result code = REAL(cuMemUnmap, Ptr, size_t)(at, bytes);
    for (Ptr here = at; code == SUCCESS && here < at + bytes;) { /* it may cover several mappings */
        Entry *entry = take(MAPPINGS, here);
        if (!entry) break;
        here += entry->bytes;
        entry->physical->mappings--;
        unless_used(entry->physical);
        free(entry);
    }
    pthread_mutex_unlock(&physical_mutex);
    return code;
}

/* Memory of another process is on that one's account, so cuIpcOpenMemHandle and imported handles are
 * passed on: they are in no table here, and freeing them gives nothing back. */

/* ---------------------------------------------------------------- contexts */

EXPORT Result cuCtxDestroy_v2(Handle ended) {
    Result code = REAL(cuCtxDestroy_v2, Handle)(ended);
    if (code == SUCCESS) give_back(drop_context(ended));
    return code;
}

EXPORT Result cuDevicePrimaryCtxRetain(Handle *made, int device) {
    Result code = REAL(cuDevicePrimaryCtxRetain, Handle *, int)(made, device);
    if (code == SUCCESS) primary = *made;
    return code;
}

EXPORT Result cuDevicePrimaryCtxReset_v2(int device) {
    Result code = REAL(cuDevicePrimaryCtxReset_v2, int)(device);
    if (code == SUCCESS && primary) give_back(drop_context(primary));
    return code;
}

EXPORT Result cuDevicePrimaryCtxRelease_v2(int device) {
    Result code = REAL(cuDevicePrimaryCtxRelease_v2, int)(device);
    unsigned flags;
    int active = 1;
    if (code == SUCCESS && primary &&
        REAL(cuDevicePrimaryCtxGetState, int, unsigned *, int *)(device, &flags, &active) == SUCCESS && !active)
        give_back(drop_context(primary));
    return code;
}

/* ---------------------------------------------------------------- what there is */

static void shown(uint64_t *total, uint64_t *left) {
    uint64_t used = used_by_all(), own = share->limit > used ? share->limit - used : 0;
    *left = *left < own ? *left : own;
    *total = *total < share->limit ? *total : share->limit;
}

EXPORT Result cuMemGetInfo_v2(size_t *left, size_t *total) {
    Result code = REAL(cuMemGetInfo_v2, size_t *, size_t *)(left, total);
    if (code == SUCCESS && opened()) shown((uint64_t *)total, (uint64_t *)left);
    return code;
}

EXPORT Result cuDeviceTotalMem_v2(size_t *total, int device) {
    Result code = REAL(cuDeviceTotalMem_v2, size_t *, int)(total, device);
    if (code == SUCCESS && opened() && *total > share->limit) *total = share->limit;
    return code;
}

typedef struct {
    unsigned long long total, free, used;
} Memory;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

EXPORT Result nvmlDeviceGetMemoryInfo(Handle device, Memory *memory) {
    Result code = REAL(nvmlDeviceGetMemoryInfo, Handle, Memory *)(device, memory);
    if (code == SUCCESS && opened()) {
        shown((uint64_t *)&memory->total, (uint64_t *)&memory->free);
        memory->used = memory->total - memory->free;
    }
    return code;
}

EXPORT Result nvmlDeviceGetMemoryInfo_v2(Handle device, MemoryV2 *memory) {
    Result code = REAL(nvmlDeviceGetMemoryInfo_v2, Handle, MemoryV2 *)(device, memory);
    if (code == SUCCESS && opened()) {
        shown((uint64_t *)&memory->total, (uint64_t *)&memory->free);
        memory->reserved = 0;
        memory->used = memory->total - memory->free;
    }
    return code;
}

/* ---------------------------------------------------------------- compute */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void refill(uint64_t rate) {
    int64_t now = now_ns(), before = share->filled_ns, since = now - before;
    if (since < 1000000 || !atomic_compare_exchange_strong(&share->filled_ns, &before, now)) return;
    if (since > FULL_NS) since = FULL_NS;
    int64_t most = (int64_t)(rate / (1000000000 / FULL_NS));
    int64_t added = (int64_t)((double)rate * (double)since / 1e9);
    if (share->tokens + added > most) share->tokens = most;
    else share->tokens += added;
}

/* Wait for tokens. A launch may take more than there are: the next one waits the longer. */
static void spend(uint64_t blocks) {
    if (!opened() || file < 0) return;
    share->spent += blocks;
    uint64_t rate = share->rate;
    if (!rate) return;
    refill(rate);
    if (share->tokens <= 0) {
        int64_t until = now_ns() + WAIT_LIMIT_NS;
        share->waits++;
        while (share->rate && share->tokens <= 0 && now_ns() < until) {
            nanosleep(&(struct timespec){0, 1000000}, NULL);
            refill(share->rate);
        }
    }
    share->tokens -= (int64_t)blocks;
}

typedef struct {
    unsigned x, y, z, block_x, block_y, block_z, shared;
    Handle stream, attributes;
    unsigned count;
} Config;

static uint64_t blocks_of(unsigned x, unsigned y, unsigned z) { return (uint64_t)x * y * z; }

#define LAUNCH(suffix)                                                                               \
    EXPORT Result cuLaunchKernel##suffix(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx,  \
                                         unsigned by, unsigned bz, unsigned shared, Handle stream,   \
                                         void **parameters, void **extra) {                          \
        spend(blocks_of(x, y, z));                                                                   \
        return REAL(cuLaunchKernel##suffix, Handle, unsigned, unsigned, unsigned, unsigned, unsigned, \
                    unsigned, unsigned, Handle, void **, void **)(f, x, y, z, bx, by, bz, shared,    \
                                                                  stream, parameters, extra);        \
    }                                                                                                \
    EXPORT Result cuLaunchKernelEx##suffix(const Config *config, Handle f, void **parameters,        \
                                           void **extra) {                                           \
        if (config) spend(blocks_of(config->x, config->y, config->z));                               \
        return REAL(cuLaunchKernelEx##suffix, const Config *, Handle, void **, void **)(config, f,   \
                                                                                        parameters,  \
                                                                                        extra);      \
    }                                                                                                \
    EXPORT Result cuLaunchCooperativeKernel##suffix(Handle f, unsigned x, unsigned y, unsigned z,    \
                                                    unsigned bx, unsigned by, unsigned bz,           \
                                                    unsigned shared, Handle stream,                  \
                                                    void **parameters) {                             \
        spend(blocks_of(x, y, z));                                                                   \
        return REAL(cuLaunchCooperativeKernel##suffix, Handle, unsigned, unsigned, unsigned,         \
                    unsigned, unsigned, unsigned, unsigned, Handle, void **)(                        \
            f, x, y, z, bx, by, bz, shared, stream, parameters);                                     \
    }                                                                                                \
    EXPORT Result cuGraphLaunch##suffix(Handle graph, Handle stream) {                               \
        spend(GRAPH_BLOCKS);                                                                         \
        return REAL(cuGraphLaunch##suffix, Handle, Handle)(graph, stream);                           \
    }
#define GRAPH_BLOCKS 1024 /* what is in a graph is not looked at; the measured use corrects the rate */
LAUNCH()
LAUNCH(_ptsz)

/* ---------------------------------------------------------------- who looks functions up */

EXPORT Result cuGetProcAddress(const char *, void **, int, uint64_t);
EXPORT Result cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

enum { PER_THREAD = 2 }; /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

typedef struct {
    const char *name, *base;
    int since; /* the CUDA version from which `base` means `name` */
    int per_thread;
    void *ours;
} Known;

#define ONE(base, suffix, since) {#base #suffix, #base, since, 0, (void *)base##suffix}
#define BOTH(base) {#base, #base, 0, 0, (void *)base}, {#base "_ptsz", #base, 0, 1, (void *)base##_ptsz}
static const Known KNOWN[] = {
    ONE(cuMemAlloc, _v2, 3020),
    ONE(cuMemAllocPitch, _v2, 3020),
    ONE(cuMemFree, _v2, 3020),
    ONE(cuMemGetInfo, _v2, 3020),
    ONE(cuDeviceTotalMem, _v2, 3020),
    ONE(cuArrayCreate, _v2, 3020),
    ONE(cuArray3DCreate, _v2, 3020),
    ONE(cuCtxDestroy, _v2, 4000),
    ONE(cuDevicePrimaryCtxReset, _v2, 11000),
    ONE(cuDevicePrimaryCtxRelease, _v2, 11000),
    ONE(cuDevicePrimaryCtxRetain, , 0),
    ONE(cuMemAllocManaged, , 0),
    ONE(cuArrayDestroy, , 0),
    ONE(cuMipmappedArrayCreate, , 0),
    ONE(cuMipmappedArrayDestroy, , 0),
    ONE(cuMemCreate, , 0),
    ONE(cuMemRelease, , 0),
    ONE(cuMemMap, , 0),
    ONE(cuMemUnmap, , 0),
    ONE(cuMemRetainAllocationHandle, , 0),
    BOTH(cuMemAllocAsync),
    BOTH(cuMemAllocFromPoolAsync),
    BOTH(cuMemFreeAsync),
    BOTH(cuLaunchKernel),
    BOTH(cuLaunchKernelEx),
    BOTH(cuLaunchCooperativeKernel),
    BOTH(cuGraphLaunch),
    ONE(cuGetProcAddress, _v2, 12000),
    ONE(cuGetProcAddress, , 0),
    ONE(nvmlDeviceGetMemoryInfo, , 0),
    ONE(nvmlDeviceGetMemoryInfo, _v2, 0),
};
enum { NUMBER = sizeof KNOWN / sizeof *KNOWN };

static void *by_name(const char *name) {
    if (strncmp(name, "cu", 2) != 0 && strncmp(name, "nvml", 4) != 0) return NULL;
    for (int i = 0; i < NUMBER; i++)
        if (strcmp(KNOWN[i].name, name) == 0) return KNOWN[i].ours;
    return NULL;
}

/* The version that the driver would give, if that is one of ours. */
static void *by_version(const char *base, int version, uint64_t flags) {
    for (int per_thread = (flags & PER_THREAD) != 0; per_thread >= 0; per_thread--)
        for (int i = 0; i < NUMBER; i++)
            if (KNOWN[i].per_thread == per_thread && version >= KNOWN[i].since && KNOWN[i].base[0] == 'c' &&
                strcmp(KNOWN[i].base, base) == 0)
                return KNOWN[i].ours;
    return NULL;
}

EXPORT Result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    Result code =
        REAL(cuGetProcAddress, const char *, void **, int, uint64_t)(name, function, version, flags);
    void *ours = code == SUCCESS && name && function && *function ? by_version(name, version, flags) : NULL;
    if (ours) *function = ours;
    return code;
}

EXPORT Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                  int *status) {
    Result code = REAL(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *)(
        name, function, version, flags, status);
    void *ours = code == SUCCESS && name && function && *function ? by_version(name, version, flags) : NULL;
    if (ours) *function = ours;
    return code;
}

/* What we do not know is looked up by a jump, as compilers make of a last call with -O2, since RTLD_NEXT
 * means the next after whoever calls. */
EXPORT void *dlsym(void *handle, const char *name) {
    void *ours = by_name(name);
    if (ours && real_dlsym()(handle, name)) return ours;
    Dlsym found = real_dlsym();
    return found(handle, name);
}
