/* Orders of calls from two processes that share a limit, one of which is killed now and then.
 *
 *     LD_PRELOAD=libberthcuda.so fuzz SEED SEQUENCES
 *
 * After each sequence of calls a process compares what the library counts for it with what the stand-in
 * driver counts, to the byte. The driver itself aborts a process when all have more than the limit.
 * At the end nobody lives, and nothing may be held.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long Ptr;
typedef void *Handle;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } Deep;
typedef struct { size_t width, height; int format; unsigned channels; } Flat;
typedef struct { int type, handle_types, location, device; } Property;

uint64_t fake_cuda_bytes(void);
int cuMemAlloc_v2(Ptr *, size_t); /* linked, as a program of the driver's API does */
int cuMemFree_v2(Ptr);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

typedef struct {
    _Atomic uint64_t done, refused, kills, checks;
} Progress;
static Progress *progress;
static uint64_t state, limit;

static uint32_t dice(uint32_t sides) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 16) % sides;
}

/* A function as programs find them: by linking, dlsym, or the driver's own look-up. */
static void *cuda;
static void *look_up(const char *name, const char *base) {
    void *found = NULL;
    switch (dice(3)) {
    case 0: found = dlsym(cuda, name); break;
    case 1: found = dlsym(RTLD_DEFAULT, name); break;
    default: cuGetProcAddress_v2(base, &found, 12040, strstr(name, "_ptsz") ? 2 : 0, NULL);
    }
    if (!found) { fprintf(stderr, "fuzz: no %s\n", name); exit(3); }
    return found;
}
#define CALL(name, base, ...) ((int (*)(__VA_ARGS__))look_up(#name, #base))

enum { MOST = 256 };
static Ptr pointers[MOST], handles[MOST], places[MOST];
static Handle arrays[MOST];
static int count, array_count, handle_count, place_count, is_async[MOST], next_place = 1;

static size_t size(void) { return 1 + dice((uint32_t)(limit / 6)); }

static void allocated(int code, Ptr pointer, int async) {
    if (code == 2) progress->refused++;
    if (code == 0) is_async[count] = async, pointers[count++] = pointer;
}

static void one_call(void) {
    Ptr pointer = 0, handle = 0;
    size_t pitch;
    Handle array = NULL;
    Flat flat = {1 + dice(500), dice(20), 0x20, 1 + dice(4)};
    Deep deep = {1 + dice(64), dice(32), dice(8), 0x20, 1 + dice(4), 0};
    Property property = {1, 0, 1, 0};
    int code, i;
    switch (count < MOST && array_count < MOST && handle_count < MOST && place_count < MOST ? dice(16)
                                                                                            : 8 + dice(6)) {
    case 0: code = cuMemAlloc_v2(&pointer, size()); allocated(code, pointer, 0); break;
    case 1: code = CALL(cuMemAlloc_v2, cuMemAlloc, Ptr *, size_t)(&pointer, size()); allocated(code, pointer, 0); break;
    case 2: code = CALL(cuMemAllocManaged, cuMemAllocManaged, Ptr *, size_t, unsigned)(&pointer, size(), 1); allocated(code, pointer, 0); break;
    case 3: code = CALL(cuMemAllocPitch_v2, cuMemAllocPitch, Ptr *, size_t *, size_t, size_t, unsigned)(&pointer, &pitch, 1 + dice(2000), 1 + dice(40), 4); allocated(code, pointer, 0); break;
    case 4: code = dice(2) ? CALL(cuMemAllocAsync, cuMemAllocAsync, Ptr *, size_t, Handle)(&pointer, size(), NULL)
                           : CALL(cuMemAllocAsync_ptsz, cuMemAllocAsync, Ptr *, size_t, Handle)(&pointer, size(), NULL);
        allocated(code, pointer, 1); break;
    case 5: code = CALL(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, Ptr *, size_t, Handle, Handle)(&pointer, size(), NULL, NULL); allocated(code, pointer, 1); break;
    case 6:
        switch (dice(3)) {
        case 0: code = CALL(cuArrayCreate_v2, cuArrayCreate, Handle *, const Flat *)(&array, &flat); break;
        case 1: code = CALL(cuArray3DCreate_v2, cuArray3DCreate, Handle *, const Deep *)(&array, &deep); break;
        default: code = CALL(cuMipmappedArrayCreate, cuMipmappedArrayCreate, Handle *, const Deep *, unsigned)(&array, &deep, 1 + dice(5));
        }
        if (code == 0) arrays[array_count++] = array;
        break;
    case 7: code = CALL(cuMemCreate, cuMemCreate, Ptr *, size_t, const Property *, unsigned long long)(&handle, size(), &property, 0);
        if (code == 2) progress->refused++;
        if (code == 0) handles[handle_count++] = handle;
        break;
    case 8: case 9: case 10:
        if (!count) break;
        i = (int)dice((uint32_t)count);
        code = is_async[i] || dice(4) == 0 ? CALL(cuMemFreeAsync, cuMemFreeAsync, Ptr, Handle)(pointers[i], NULL) : cuMemFree_v2(pointers[i]);
        if (code) { fprintf(stderr, "fuzz: free said %d\n", code); exit(3); }
        pointers[i] = pointers[--count], is_async[i] = is_async[count];
        break;
    case 11:
        if (!array_count) break;
        i = (int)dice((uint32_t)array_count);
        CALL(cuArrayDestroy, cuArrayDestroy, Handle)(arrays[i]);
        arrays[i] = arrays[--array_count];
        break;
    case 12:
        if (!handle_count) break;
        i = (int)dice((uint32_t)handle_count);
        CALL(cuMemRelease, cuMemRelease, Ptr)(handles[i]);
        handles[i] = handles[--handle_count];
        break;
    case 13: /* unmap, or what nobody has */
        if (place_count && dice(8)) {
            i = (int)dice((uint32_t)place_count);
            CALL(cuMemUnmap, cuMemUnmap, Ptr, size_t)(places[i], 1);
            places[i] = places[--place_count];
        } else {
            cuMemFree_v2(12345);
            CALL(cuMemUnmap, cuMemUnmap, Ptr, size_t)(4000, 1);
        }
        break;
    case 14:
        if (!handle_count) break;
        if (next_place >= 3900) next_place = 1;
        code = CALL(cuMemMap, cuMemMap, Ptr, size_t, size_t, Ptr, unsigned long long)((Ptr)next_place, 1, 0, handles[dice((uint32_t)handle_count)], 0);
        if (code == 0) places[place_count++] = (Ptr)next_place;
        next_place++;
        break;
    default:
        if (!place_count) break;
        code = CALL(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, Ptr *, void *)(&handle, (void *)(uintptr_t)places[dice((uint32_t)place_count)]);
        if (code == 0) handles[handle_count++] = handle;
    }
}

/* PyTorch's caching allocator: blocks of 2 or 20 MiB, all returned when one is refused, and once more. */
static void like_pytorch(void) {
    Ptr blocks[32];
    int had = 0, again = 1;
    size_t unit = limit / 40;
    for (int i = 0; i < 24; i++) {
        size_t bytes = dice(3) ? unit : unit * 10;
        if (had < 32 && cuMemAlloc_v2(&blocks[had], bytes) == 0) {
            had++;
        } else if (again) {
            while (had) cuMemFree_v2(blocks[--had]);
            again = 0;
        }
    }
    while (had) cuMemFree_v2(blocks[--had]);
}

/* PyTorch's expandable segments: pieces created, mapped, and their handles released at once. */
static void like_expandable_segments(void) {
    Property property = {1, 0, 1, 0};
    int first = 3901, mapped = 0;
    for (; mapped < 20; mapped++) {
        Ptr handle;
        if (CALL(cuMemCreate, cuMemCreate, Ptr *, size_t, const Property *, unsigned long long)(&handle, limit / 30, &property, 0)) break;
        CALL(cuMemMap, cuMemMap, Ptr, size_t, size_t, Ptr, unsigned long long)((Ptr)(first + mapped), 1, 0, handle, 0);
        CALL(cuMemRelease, cuMemRelease, Ptr)(handle);
    }
    int half = mapped / 2;
    if (half) CALL(cuMemUnmap, cuMemUnmap, Ptr, size_t)((Ptr)first, (size_t)half);
    for (int i = half; i < mapped; i++) CALL(cuMemUnmap, cuMemUnmap, Ptr, size_t)((Ptr)(first + i), 1);
}

/* JAX: three quarters of what is said to be free in one block, smaller ones where that is refused. */
static void like_jax(void) {
    size_t left, total;
    Ptr block = 0;
    cuMemGetInfo_v2(&left, &total);
    if (total != limit || left > limit) { fprintf(stderr, "fuzz: %zu of %zu are shown\n", left, total); exit(3); }
    for (size_t bytes = left / 4 * 3; bytes > 64; bytes = bytes / 10 * 9)
        if (cuMemAlloc_v2(&block, bytes) == 0) {
            cuMemFree_v2(block);
            return;
        }
}

/* A context with memory of its own, which ends with it. */
static void like_a_context(void) {
    Handle own = (Handle)0x2000;
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, Handle)(own);
    Ptr pointer;
    for (int i = 0; i < 3; i++) cuMemAlloc_v2(&pointer, size());
    CALL(cuCtxDestroy_v2, cuCtxDestroy, Handle)(own);
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, Handle)((Handle)0x1000);
}

/* What the library counts for this process: its slots are 64 bytes into the file. */
static uint64_t *used;
static void check(void) {
    uint64_t truth = fake_cuda_bytes(), sum = 0;
    int same = 0;
    for (int i = 0; i < 512; i++) sum += used[i], same |= used[i] == truth;
    if (!same || sum > limit) {
        fprintf(stderr, "fuzz: the driver counts %llu bytes here, the library %llu of all\n", (unsigned long long)truth, (unsigned long long)sum);
        exit(4);
    }
    progress->checks++;
}

static int work(uint64_t seed, uint64_t sequences) {
    state = seed * 0x9e3779b97f4a7c15ull | 1;
    cuda = dlopen("libcuda.so.1", RTLD_LAZY);
    while (progress->done < sequences) {
        uint32_t which = dice(40);
        if (which == 0) like_pytorch();
        else if (which == 1) like_expandable_segments();
        else if (which == 2) like_jax();
        else if (which == 3) like_a_context();
        else
            for (uint32_t calls = 1 + dice(12); calls; calls--) one_call();
        check();
        progress->done++;
    }
    return 0;
}

int main(int words, char **word) {
    if (words < 3) return 2;
    uint64_t seed = strtoull(word[1], NULL, 10), sequences = strtoull(word[2], NULL, 10);
    limit = strtoull(getenv("FAKE_CUDA_LIMIT"), NULL, 10);
    progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FILE *file = fopen(getenv("BERTHCUDA_SHARE"), "r+");
    used = (uint64_t *)((char *)mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0) + 64);
    pid_t child[2] = {0, 0};
    int bad = 0;
    state = seed | 1;
    for (uint64_t round = 0; progress->done < sequences && !bad; round++) {
        for (int i = 0; i < 2; i++)
            if (!child[i] && !(child[i] = fork())) _exit(work(seed + 1000 * round + (uint64_t)i, sequences));
        nanosleep(&(struct timespec){0, 2000000 + (long)dice(30000000)}, NULL);
        int victim = (int)dice(2), status;
        kill(child[victim], SIGKILL);
        waitpid(child[victim], &status, 0);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) progress->kills++;
        else bad |= status;
        child[victim] = 0;
    }
    for (int i = 0, status; i < 2; i++)
        if (child[i]) waitpid(child[i], &status, 0), bad |= status;
    /* The one that lives last sees that the others have left nothing. */
    size_t left = 0, total = 0;
    cuMemGetInfo_v2(&left, &total);
    printf("%llu sequences, %llu kills, %llu refused, %llu checks, %llu bytes left over\n",
           (unsigned long long)progress->done, (unsigned long long)progress->kills,
           (unsigned long long)progress->refused, (unsigned long long)progress->checks,
           (unsigned long long)(total - left));
    return bad || left != total || total != limit;
}
