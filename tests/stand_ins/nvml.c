/* A libnvidia-ml.so.1 whose GPUs are lines of the file that STAND_IN_GPUS names: "<gpu>.<key> <value>". What the file
 * does not have is not supported. Structures and codes are those of nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4 };

static int look(long gpu, const char *key, char *text) {
    char wanted[64], name[64], value[256];
    snprintf(wanted, sizeof wanted, "%ld.%s", gpu, key);
    FILE *file = fopen(getenv("STAND_IN_GPUS"), "r");
    int found = 0;
    while (file && !found && fscanf(file, "%63s %255[^\n]", name, value) == 2)
        if (!strcmp(name, wanted)) { strcpy(text, value); found = 1; }
    if (file) fclose(file);
    return found;
}

static int number(long gpu, const char *key, double *value) {
    char text[256];
    if (!look(gpu, key, text)) return NOT_SUPPORTED;
    if (!strcmp(text, "no-permission")) return NO_PERMISSION;
    if (!strcmp(text, "lost")) return 15;
    if (!strcmp(text, "hang")) sleep(1000);
    *value = atof(text);
    return OK;
}

static int whole(long gpu, const char *key, unsigned *value) {
    double found;
    int code = number(gpu, key, &found);
    if (code == OK) *value = (unsigned)found;
    return code;
}

static int large(long gpu, const char *key, unsigned long long *value) {
    double found;
    int code = number(gpu, key, &found);
    if (code == OK) *value = (unsigned long long)found;
    return code;
}

static int text(long gpu, const char *key, char *value, unsigned size) {
    char found[256];
    if (!look(gpu, key, found)) return NOT_SUPPORTED;
    snprintf(value, size, "%s", found);
    return OK;
}

#define GPU ((long)device - 1)
typedef void *device_t;

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    char name[256];
    for (*count = 0; look(*count, "name", name); ++*count);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    char name[256];
    *device = (device_t)(long)(index + 1);
    if (look(index, "gone", name)) return 15;
    if (look(index, "denied", name)) return NO_PERMISSION;
    return look(index, "name", name) ? OK : INVALID;
}
int nvmlDeviceGetName(device_t device, char *name, unsigned size) { return text(GPU, "name", name, size); }
int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned size) { return text(GPU, "uuid", uuid, size); }
int nvmlDeviceGetUtilizationRates(device_t device, unsigned *use) {
    int code = whole(GPU, "gpu_percent", &use[0]);
    return code ? code : whole(GPU, "memory_percent", &use[1]);
}
int nvmlDeviceGetMemoryInfo(device_t device, unsigned long long *memory) {
    int code = large(GPU, "memory_total", &memory[0]);
    code = code ? code : large(GPU, "memory_used", &memory[2]);
    memory[1] = memory[0] - memory[2];
    return code;
}
int nvmlDeviceGetPowerUsage(device_t device, unsigned *mw) { return whole(GPU, "power_mw", mw); }
int nvmlDeviceGetTotalEnergyConsumption(device_t device, unsigned long long *mj) { return large(GPU, "energy_mj", mj); }
int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *mw) { return whole(GPU, "limit_mw", mw); }
int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *c) { return whole(GPU, "temperature_c", c); }
int nvmlDeviceGetClockInfo(device_t device, int which, unsigned *mhz) {
    return whole(GPU, which == 1 ? "sm_mhz" : "", mhz);
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *bits) {
    return large(GPU, "reasons", bits);
}
