/* A stand-in for libnvidia-ml.so.1: eight GPUs or FAKE_NVML_GPUS, each with two processes, and faults
 * from a file.
 *
 * Built by the tests where there is a C compiler, so that the agent can be run as it is shipped, with
 * pynvml loading this library, and its cost be measured without a GPU. FAKE_NVML_FAULTS names a file
 * with lines "GPU CODE": that GPU answers every call with that return code; GPU -1 is the driver
 * itself. It is read when the driver is opened, once a read of the agent, and when a GPU
 * is looked up by its UUID.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, GPUS = 8 };

typedef struct { int index; } Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } Sample;
typedef struct {
    unsigned field, scope;
    long long at, latency;
    unsigned type;
    int result;
    union { double d; unsigned u; unsigned long long l; } value;
} Field;

static Device devices[GPUS];
static int faults[GPUS], driver_fault;
static unsigned long long clock_us;

static void read_faults(void) {
    const char *path = getenv("FAKE_NVML_FAULTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    int gpu, code;
    memset(faults, 0, sizeof faults);
    driver_fault = 0;
    if (!file) return;
    while (fscanf(file, "%d %d", &gpu, &code) == 2) {
        if (gpu < 0) driver_fault = code;
        else if (gpu < GPUS) faults[gpu] = code;
    }
    fclose(file);
}

static int refuse(Device *device) {
    return driver_fault ? driver_fault : faults[device->index];
}

#define ANSWER(device, statement) \
    do { int code = refuse(device); if (code) return code; statement; return SUCCESS; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; read_faults(); return driver_fault; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake driver"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "550.54.15");
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *told = getenv("FAKE_NVML_GPUS");
    *count = told ? (unsigned)atoi(told) : GPUS;
    return driver_fault;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= GPUS) return NOT_FOUND;
    devices[index].index = (int)index;
    *device = &devices[index];
    return driver_fault;
}
int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e%02d", device->index);
    return driver_fault;
}
int nvmlDeviceGetMinorNumber(Device *device, unsigned *minor) {
    ANSWER(device, *minor = (unsigned)device->index);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    read_faults();
    return nvmlDeviceGetHandleByIndex_v2((unsigned)atoi(uuid + strlen(uuid) - 2), device);
}
int nvmlDeviceGetName(Device *device, char *text, unsigned size) {
    ANSWER(device, snprintf(text, size, "NVIDIA A100-SXM4-80GB"));
}
int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    if (memory->version != (sizeof *memory | 2u << 24)) return 25;
    ANSWER(device, (memory->total = 81920ull << 20, memory->reserved = 640ull << 20,
                    memory->used = (1024ull + clock_us / 1000000 % 64) << 20,
                    memory->free = memory->total - memory->reserved - memory->used));
}
int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    ANSWER(device, (memory->total = 81920ull << 20, memory->used = 1664ull << 20,
                    memory->free = memory->total - memory->used));
}
int nvmlDeviceGetUtilizationRates(Device *device, Rates *rates) {
    ANSWER(device, (rates->gpu = 40 + (unsigned)(clock_us / 1000000 % 50), rates->memory = 20));
}
int nvmlDeviceGetPowerUsage(Device *device, unsigned *mw) { ANSWER(device, *mw = 250500); }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *mw) { ANSWER(device, *mw = 400000); }
int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) {
    ANSWER(device, *celsius = 50 + sensor);
}
int nvmlDeviceGetClockInfo(Device *device, unsigned domain, unsigned *mhz) {
    ANSWER(device, *mhz = domain == 2 ? 1593 : 1410);
}
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
    ANSWER(device, *reasons = 4);
}
int nvmlDeviceGetTotalEccErrors(Device *device, unsigned kind, unsigned since, unsigned long long *n) {
    (void)since;
    ANSWER(device, *n = kind ? 0 : 7);
}
int nvmlDeviceGetRemappedRows(Device *device, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    ANSWER(device, (*a = *b = *c = *d = 0));
}
int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
    int code = refuse(device), i;
    for (i = 0; !code && i < count; i++) {
        fields[i].result = SUCCESS;
        fields[i].value.u = 0;
    }
    return code;
}
int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    (void)current, (void)pending;
    ANSWER(device, return NOT_SUPPORTED);
}

static int processes(Device *device, unsigned *count, Process *array) {
    unsigned room = *count, i;
    int code = refuse(device);
    if (code) return code;
    *count = 2;
    if (!array || room < 2) return TOO_SMALL;
    for (i = 0; i < 2; i++) {
        array[i].pid = (unsigned)((i ? 500000 : 1000) + device->index);
        array[i].used = 512ull << 20;
    }
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *array) {
    return processes(device, count, array);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *device, unsigned *count, Process *array) {
    (void)array;
    ANSWER(device, *count = 0);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, Process *array) {
    (void)array;
    ANSWER(device, *count = 0);
}
int nvmlDeviceGetProcessUtilization(Device *device, Sample *array, unsigned *count,
                                    unsigned long long since) {
    unsigned i;
    int code = refuse(device);
    if (code) return code;
    if (since >= clock_us) return NOT_FOUND;
    if (!array || *count < 2) { *count = 2; return TOO_SMALL; }
    *count = 2;
    for (i = 0; i < 2; i++) {
        array[i].pid = (unsigned)(1000 + device->index);
        array[i].at = clock_us;
        array[i].sm = 30 + 10 * i;
    }
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) { *set = faults; return driver_fault; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(Device *device, unsigned long long kinds, void *set) {
    (void)kinds, (void)set;
    ANSWER(device, (void)0);
}
int nvmlEventSetWait_v2(void *set, void *data, unsigned timeout_ms) {
    (void)set, (void)data, (void)timeout_ms;
    clock_us += 1000000;
    read_faults();
    return driver_fault ? driver_fault : TIMEOUT;
}
