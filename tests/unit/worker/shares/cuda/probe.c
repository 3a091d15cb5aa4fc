/* Says what a program sees through the library: `probe COMMAND [NUMBER]`, one line of output. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long Ptr;
void *fake_cuda_next(void);
int cuMemAlloc_v2(Ptr *, size_t);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuDeviceTotalMem_v2(size_t *, int);
int cuGetProcAddress(const char *, void **, int, uint64_t);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                   void **, void **);

static const char *whose(void *function) {
    Dl_info info;
    return dladdr(function, &info) && strstr(info.dli_fname, "berthcuda") ? "ours" : "driver";
}

int main(int words, char **word) {
    size_t left, total, all;
    Ptr pointer;
    long number = words > 2 ? atol(word[2]) : 0;
    if (!strcmp(word[1], "memory")) { /* after an allocation of so many bytes, and of a child's */
        int code = cuMemAlloc_v2(&pointer, (size_t)number), status;
        if (!fork()) _exit(cuMemAlloc_v2(&pointer, (size_t)number));
        wait(&status);
        cuMemGetInfo_v2(&left, &total);
        cuDeviceTotalMem_v2(&all, 0);
        printf("%d %d %zu %zu %zu\n", code, WEXITSTATUS(status), left, total, all);
    } else if (!strcmp(word[1], "versions")) { /* of cuMemAlloc, and of the look-up itself */
        void *old = NULL, *now = NULL, *stream = NULL, *self = NULL, *other = NULL;
        cuGetProcAddress("cuMemAlloc", &old, 2000, 0);
        cuGetProcAddress_v2("cuMemAlloc", &now, 12040, 0, NULL);
        cuGetProcAddress_v2("cuLaunchKernel", &stream, 12040, 2, NULL);
        cuGetProcAddress("cuGetProcAddress", &self, 12040, 0);
        cuGetProcAddress_v2("cuCtxGetCurrent", &other, 12040, 0, NULL);
        printf("%s %d %d %d %s\n", old ? whose(old) : "none", now == (void *)cuMemAlloc_v2,
               stream == dlsym(RTLD_DEFAULT, "cuLaunchKernel_ptsz"), self == (void *)cuGetProcAddress_v2,
               whose(other));
    } else if (!strcmp(word[1], "next")) { /* RTLD_NEXT is the next after the library that asks */
        printf("%d\n", fake_cuda_next() == NULL);
    } else if (!strcmp(word[1], "nvml")) {
        struct { unsigned long long total, left, used; } memory = {0, 0, 0};
        void *device = NULL, *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
        ((int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
        ((int (*)(void *, void *))dlsym(nvml, "nvmlDeviceGetMemoryInfo"))(device, &memory);
        printf("%llu %llu %llu\n", memory.total, memory.left, memory.used);
    } else if (!strcmp(word[1], "launch")) { /* launches of 100 blocks in a second */
        struct timespec begin, now;
        long launches = 0;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        do {
            for (int i = 0; i < 10; i++, launches++)
                cuLaunchKernel(NULL, 100, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while (now.tv_sec - begin.tv_sec + (now.tv_nsec - begin.tv_nsec) / 1e9 < (double)number);
        printf("%ld\n", launches);
    }
    return 0;
}
