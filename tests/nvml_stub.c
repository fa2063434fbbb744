/* A stand-in for NVIDIA's management library, libnvidia-ml.so.1, driven by a text file that is read anew at each call.
 *
 * The file is called "state" and lies beside the library. Each line is "key=value"; nvml.py writes it and says which
 * keys there are. A value that is not in the file is "not supported" (3), as a card says that cannot measure it.
 * Signatures and layouts are those of NVIDIA's documented interface, as nvidia-ml-py calls it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMED_OUT = 10 };
enum { CARDS = 16, SLICES = 8 };

typedef unsigned int uint;
typedef unsigned long long wide;
typedef struct { int card, slice; } Device; /* slice -1: the whole card */

static Device whole[CARDS], parts[CARDS][SLICES];
static int started;
static char path[4096];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void locate(void)
{
    Dl_info info;
    dladdr((void *)locate, &info);
    snprintf(path, sizeof path, "%s", info.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 16, "state");
    for (int card = 0; card < CARDS; card++) {
        whole[card] = (Device){card, -1};
        for (int slice = 0; slice < SLICES; slice++)
            parts[card][slice] = (Device){card, slice};
    }
}

/* Copy the value of a key; 0 if the file has none. */
static int text(char *out, size_t size, const char *shape, ...)
{
    char key[256], line[1024];
    va_list args;
    va_start(args, shape);
    int length = vsnprintf(key, sizeof key, shape, args);
    va_end(args);
    pthread_once(&once, locate);
    FILE *file = fopen(path, "re");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        found = strncmp(line, key, length) == 0 && line[length] == '=';
        if (found)
            snprintf(out, size, "%s", line + length + 1);
    }
    if (file)
        fclose(file);
    return found;
}

static int number(wide *out, const char *key)
{
    char value[64];
    if (!text(value, sizeof value, "%s", key))
        return 0;
    *out = strtoull(value, NULL, 0);
    return 1;
}

/* What every function does first: sleep if it is told to, then say the failure that is wanted, if any. */
static int enter(const char *function, const Device *device)
{
    char key[256];
    wide value = 0;
    snprintf(key, sizeof key, "sleep.%s", function);
    if (number(&value, key) || number(&value, "sleep"))
        usleep(value * 1000);
    snprintf(key, sizeof key, "fail.%s", function);
    if (number(&value, key))
        return (int)value;
    if (device) {
        snprintf(key, sizeof key, "%d.fail.%s", device->card, function);
        if (number(&value, key))
            return (int)value;
        snprintf(key, sizeof key, "%d.fail", device->card);
        if (number(&value, key))
            return (int)value;
    }
    return started || strncmp(function, "nvmlInit", 8) == 0 ? OK : UNINITIALIZED;
}

/* Answer with a number of the card, or of its slice. */
static int tell(const char *function, const Device *device, wide *out, const char *shape, ...)
{
    char name[64], key[128];
    va_list args;
    va_start(args, shape);
    vsnprintf(name, sizeof name, shape, args);
    va_end(args);
    int code = enter(function, device);
    if (code)
        return code;
    if (device->slice < 0)
        snprintf(key, sizeof key, "%d.%s", device->card, name);
    else
        snprintf(key, sizeof key, "%d.slice.%d.%s", device->card, device->slice, name);
    return number(out, key) ? OK : NOT_SUPPORTED;
}

static int tell_text(const char *function, const Device *device, char *out, uint size, const char *name)
{
    int code = enter(function, device);
    if (code)
        return code;
    if (device->slice < 0)
        return text(out, size, "%d.%s", device->card, name) ? OK : NOT_SUPPORTED;
    return text(out, size, "%d.slice.%d.%s", device->card, device->slice, name) ? OK : NOT_SUPPORTED;
}

#define TELL_UINT(shape, ...)                                        \
    do {                                                             \
        wide value = 0;                                              \
        int code = tell(__func__, device, &value, shape, ##__VA_ARGS__); \
        if (!code)                                                   \
            *out = (uint)value;                                      \
        return code;                                                 \
    } while (0)

/* -- the system ---------------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(uint flags)
{
    (void)flags;
    int code = enter(__func__, NULL);
    started |= code == OK;
    return code;
}

int nvmlShutdown(void)
{
    started = 0;
    return OK;
}

const char *nvmlErrorString(int code)
{
    static char said[32];
    snprintf(said, sizeof said, "stub error %d", code);
    return said;
}

int nvmlSystemGetDriverVersion(char *out, uint size)
{
    int code = enter(__func__, NULL);
    return code ? code : text(out, size, "driver") ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(uint *out)
{
    wide value = 0;
    int code = enter(__func__, NULL);
    if (!code)
        *out = number(&value, "count") ? (uint)value : 0;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, Device **out)
{
    wide count = 0;
    number(&count, "count");
    if (index >= count || index >= CARDS)
        return INVALID_ARGUMENT;
    pthread_once(&once, locate);
    *out = &whole[index];
    return enter(__func__, *out);
}

/* -- what a card is ------------------------------------------------------------------------------------------------ */

int nvmlDeviceGetName(Device *device, char *out, uint size) { return tell_text(__func__, device, out, size, "name"); }
int nvmlDeviceGetUUID(Device *device, char *out, uint size) { return tell_text(__func__, device, out, size, "uuid"); }
int nvmlDeviceGetNumGpuCores(Device *device, uint *out) { TELL_UINT("cores"); }
int nvmlDeviceGetMinorNumber(Device *device, uint *out) { TELL_UINT("minor"); }
int nvmlDeviceGetGpuInstanceId(Device *device, uint *out) { TELL_UINT("instance"); }

struct pci { char old[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(Device *device, struct pci *out)
{
    memset(out, 0, sizeof *out);
    int code = tell_text(__func__, device, out->bus_id, sizeof out->bus_id, "bus_id");
    if (!code)
        sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    return code;
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor)
{
    char value[32] = "";
    int code = tell_text(__func__, device, value, sizeof value, "capability");
    return code ? code : sscanf(value, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

struct attributes { uint units, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices; wide memory_mb; };

int nvmlDeviceGetAttributes_v2(Device *device, struct attributes *out)
{
    wide units = 0, memory = 0;
    memset(out, 0, sizeof *out);
    int code = device->slice < 0 ? NOT_SUPPORTED : tell(__func__, device, &units, "units");
    if (!code && !tell(__func__, device, &memory, "memory_total"))
        out->memory_mb = memory >> 20;
    out->units = (uint)units;
    return code;
}

int nvmlDeviceGetMigMode(Device *device, uint *out, uint *pending)
{
    *pending = 0;
    TELL_UINT("mig");
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, uint *out) { TELL_UINT("slices"); }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, uint index, Device **out)
{
    char value[256];
    int code = enter(__func__, device);
    if (code)
        return code;
    if (index >= SLICES || !text(value, sizeof value, "%d.slice.%u.uuid", device->card, index))
        return NOT_FOUND;
    *out = &parts[device->card][index];
    return OK;
}

/* -- what it does now ---------------------------------------------------------------------------------------------- */

int nvmlDeviceGetUtilizationRates(Device *device, uint out[2])
{
    wide kernels = 0, memory = 0;
    int code = tell(__func__, device, &kernels, "utilisation");
    if (!code)
        code = tell(__func__, device, &memory, "memory_busy");
    out[0] = (uint)kernels;
    out[1] = (uint)memory;
    return code;
}

int nvmlDeviceGetMemoryInfo(Device *device, wide out[3])
{
    wide reserved = 0;
    int code = tell(__func__, device, &out[0], "memory_total");
    if (!code)
        code = tell(__func__, device, &out[2], "memory_used");
    if (!code && !tell(__func__, device, &reserved, "memory_reserved"))
        out[2] += reserved; /* the first form counts what the driver keeps for itself as used */
    out[1] = out[0] - out[2];
    return code;
}

struct memory { uint version; wide total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(Device *device, struct memory *out)
{
    int code = tell(__func__, device, &out->total, "memory_total");
    if (!code)
        code = tell(__func__, device, &out->used, "memory_used");
    if (tell(__func__, device, &out->reserved, "memory_reserved"))
        out->reserved = 0;
    out->free = out->total - out->used - out->reserved;
    return code;
}

int nvmlDeviceGetTemperature(Device *device, int sensor, uint *out)
{
    (void)sensor;
    TELL_UINT("temperature");
}

struct temperature { uint version; int sensor, value; };

int nvmlDeviceGetTemperatureV(Device *device, struct temperature *into)
{
    int *out = &into->value;
    TELL_UINT("temperature");
}

int nvmlDeviceGetTemperatureThreshold(Device *device, int kind, uint *out) { TELL_UINT("threshold.%d", kind); }
int nvmlDeviceGetPowerUsage(Device *device, uint *out) { TELL_UINT("power_mw"); }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, uint *out) { TELL_UINT("power_limit_mw"); }
int nvmlDeviceGetClockInfo(Device *device, int kind, uint *out) { TELL_UINT("clock.%d", kind); }
int nvmlDeviceGetMaxClockInfo(Device *device, int kind, uint *out) { TELL_UINT("max_clock.%d", kind); }

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, wide *out)
{
    return tell(__func__, device, out, "reasons");
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, wide *out)
{
    return tell(__func__, device, out, "reasons");
}

/* -- its health ---------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int counter, wide *out)
{
    return tell(__func__, device, out, "ecc.%d.%d", kind, counter);
}

int nvmlDeviceGetRemappedRows(Device *device, uint *corrected, uint *uncorrected, uint *pending, uint *failed)
{
    char value[128] = "";
    int code = tell_text(__func__, device, value, sizeof value, "remapped");
    if (code)
        return code;
    return sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetRetiredPages(Device *device, int cause, uint *count, wide *pages)
{
    wide there = 0;
    int code = tell(__func__, device, &there, "retired.%d", cause);
    if (code)
        return code;
    uint room = *count;
    *count = (uint)there;
    if (!pages || room < there)
        return there ? INSUFFICIENT_SIZE : OK;
    memset(pages, 0, there * sizeof *pages);
    return OK;
}

int nvmlDeviceGetRetiredPagesPendingStatus(Device *device, uint *out) { TELL_UINT("retired.pending"); }

int nvmlDeviceGetNvLinkState(Device *device, uint link, uint *out)
{
    wide links = 0;
    int code = tell(__func__, device, &links, "links");
    if (code)
        return code;
    if (link >= links)
        return INVALID_ARGUMENT;
    TELL_UINT("link.%u", link);
}

int nvmlDeviceGetNvLinkErrorCounter(Device *device, uint link, uint counter, wide *out)
{
    return tell(__func__, device, out, "link.%u.errors.%u", link, counter);
}

/* -- its processes: "0.compute.0=PID BYTES INSTANCE", BYTES "-" where the driver does not know ----------------------- */

struct process { uint pid; wide memory; uint instance, compute; };

static int list(const char *function, const char *kind, Device *device, uint *count, struct process *out)
{
    uint there = 0, room = *count;
    char value[256], bytes[64];
    int code = enter(function, device);
    if (code)
        return code;
    while (text(value, sizeof value, "%d.%s.%u", device->card, kind, there)) {
        uint pid = 0, instance = ~0u;
        sscanf(value, "%u %63s %u", &pid, bytes, &instance);
        if (out && there < room)
            out[there] = (struct process){pid, *bytes == '-' ? ~0ull : strtoull(bytes, NULL, 0), instance, ~0u};
        there++;
    }
    *count = there;
    return there > room || (there && !out) ? INSUFFICIENT_SIZE : OK;
}

#define LISTS(kind, key)                                                                          \
    int nvmlDeviceGet##kind##RunningProcesses_v2(Device *device, uint *count, struct process *out) \
    {                                                                                             \
        return list(__func__, key, device, count, out);                                           \
    }                                                                                             \
    int nvmlDeviceGet##kind##RunningProcesses_v3(Device *device, uint *count, struct process *out) \
    {                                                                                             \
        return list(__func__, key, device, count, out);                                           \
    }

LISTS(Compute, "compute")
LISTS(Graphics, "graphics")
LISTS(MPSCompute, "mps")

/* -- events: "xid.N=CARD CODE", N = 0, 1, ...; each set tells those that were written after it was made --------------- */

struct set { uint next; wide cards; };
struct event { Device *device; wide kind, data; uint instance, compute; };

int nvmlEventSetCreate(struct set **out)
{
    char value[64];
    int code = enter(__func__, NULL);
    if (code)
        return code;
    *out = calloc(1, sizeof **out);
    while (text(value, sizeof value, "xid.%u", (*out)->next))
        (*out)->next++;
    return OK;
}

int nvmlEventSetFree(struct set *set)
{
    free(set);
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(Device *device, wide *out) { return tell(__func__, device, out, "events"); }

int nvmlDeviceRegisterEvents(Device *device, wide kinds, struct set *set)
{
    wide supported = 0;
    int code = tell(__func__, device, &supported, "events");
    if (code)
        return code;
    if (kinds & ~supported)
        return NOT_SUPPORTED;
    set->cards |= 1ull << device->card;
    return OK;
}

int nvmlEventSetWait_v2(struct set *set, struct event *out, uint limit_ms)
{
    int code = enter(__func__, NULL);
    for (uint waited = 0; !code; waited += 20) {
        char value[64];
        int card, xid;
        while (text(value, sizeof value, "xid.%u", set->next)) {
            set->next++;
            if (sscanf(value, "%d %d", &card, &xid) == 2 && card >= 0 && card < CARDS && set->cards >> card & 1) {
                *out = (struct event){&whole[card], 8, (wide)xid, ~0u, ~0u};
                return OK;
            }
        }
        if (waited >= limit_ms)
            return TIMED_OUT;
        usleep(20000);
    }
    return code;
}
