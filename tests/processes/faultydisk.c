/* A library to be preloaded: the disk fails as the file $FAULTS says, from the moment that it says so. Each line of it is

       CALL ERRNO SKIP TIMES PART

   CALL is write, fsync, rename, open (of new files), mkdir or room; PART must be part of the path, its end if PART ends
   with a $. The call fails with
   ERRNO after SKIP such calls (write: after SKIP bytes, the last write before being a short one), TIMES times, -1: for
   ever. "room" never fails: the disk claims to have a lot of it. Every process counts for itself, and anew when the file
   changes. What failed is written down in $FAULTS.log as "PID CALL PATH". Part of the tests. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define LINES 8

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static char known[4096];
static long passed[LINES], failed[LINES];

static void note(const char *call, const char *path) {
    char name[4200], line[4300];
    snprintf(name, sizeof name, "%s.log", getenv("FAULTS"));
    int size = snprintf(line, sizeof line, "%d %s %.4000s\n", (int)getpid(), call, path);
    int file = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        if (syscall(SYS_write, file, line, (size_t)size) < 0)
            _exit(99);
        syscall(SYS_close, file);
    }
}

static int fits(const char *path, const char *part) {
    size_t size = strlen(part), long_ = strlen(path);
    if (!size || part[size - 1] != '$')
        return strstr(path, part) != NULL;
    return long_ >= size - 1 && !strncmp(path + long_ - (size - 1), part, size - 1);
}

/* Return how much of `amount` passes; less than all of it means that the call fails (errno is set) or is a short one. */
static long passes(const char *call, const char *path, long amount) {
    const char *name = getenv("FAULTS");
    char text[sizeof known] = "";
    if (!name || !path)
        return amount;
    int file = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return amount;
    long size = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    if (size <= 0)
        return amount;
    pthread_mutex_lock(&turn);
    if (strcmp(text, known)) {
        strcpy(known, text);
        memset(passed, 0, sizeof passed);
        memset(failed, 0, sizeof failed);
    }
    long rest = amount;
    int at = 0;
    char *next = NULL;
    for (char *line = strtok_r(text, "\n", &next); line && at < LINES; line = strtok_r(NULL, "\n", &next), at++) {
        char what[32], part[1024];
        int code;
        long skip, times;
        if (sscanf(line, "%31s %d %ld %ld %1023s", what, &code, &skip, &times, part) != 5)
            _exit(98);
        if (strcmp(what, call) || !fits(path, part) || (times >= 0 && failed[at] >= times))
            continue;
        if (passed[at] + amount <= skip) {
            passed[at] += amount;
            continue;
        }
        rest = strcmp(call, "write") ? 0 : (skip - passed[at]) / 4096 * 4096; /* whole blocks, or O_DIRECT refuses */
        if (rest > 0)
            passed[at] += rest;
        else
            passed[at] = skip, rest = 0, failed[at]++, note(call, path);
        errno = code;
        break;
    }
    pthread_mutex_unlock(&turn);
    return rest;
}

static const char *named(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
    path[size > 0 ? size : 0] = 0;
    return path[0] == '/' ? path : NULL;
}

#define WRITING(call) \
    char path[4096]; \
    long may = count ? passes("write", named(fd, path), (long)count) : 0; \
    return count && may <= 0 ? -1 : call;

ssize_t write(int fd, const void *data, size_t count) { WRITING(REAL(write)(fd, data, (size_t)may)) }
ssize_t pwrite(int fd, const void *data, size_t count, off_t at) { WRITING(REAL(pwrite)(fd, data, (size_t)may, at)) }
ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at) {
    WRITING(REAL(pwrite64)(fd, data, (size_t)may, at))
}

int fsync(int fd) {
    char path[4096];
    return passes("fsync", named(fd, path), 1) ? REAL(fsync)(fd) : -1;
}

int fdatasync(int fd) {
    char path[4096];
    return passes("fsync", named(fd, path), 1) ? REAL(fdatasync)(fd) : -1;
}

int rename(const char *from, const char *to) { return passes("rename", to, 1) ? REAL(rename)(from, to) : -1; }
int renameat2(int a, const char *from, int b, const char *to, unsigned how) {
    return passes("rename", to, 1) ? REAL(renameat2)(a, from, b, to, how) : -1;
}

int mkdir(const char *path, mode_t mode) { return passes("mkdir", path, 1) ? REAL(mkdir)(path, mode) : -1; }

#define OPENING(call) \
    mode_t mode = 0; \
    if (flags & O_CREAT) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
        if (!passes("open", path, 1)) \
            return -1; \
    } \
    return call;

int open(const char *path, int flags, ...) { OPENING(REAL(open)(path, flags, mode)) }
int open64(const char *path, int flags, ...) { OPENING(REAL(open64)(path, flags, mode)) }

int statvfs(const char *path, struct statvfs *found) {
    int done = REAL(statvfs)(path, found);
    if (!done && !passes("room", path, 1))
        found->f_bavail = found->f_bfree = 1L << 30;
    return done;
}

int statvfs64(const char *path, struct statvfs64 *found) {
    int done = REAL(statvfs64)(path, found);
    if (!done && !passes("room", path, 1))
        found->f_bavail = found->f_bfree = 1L << 30;
    return done;
}
