/* A library to be preloaded: every look at a path below $SLOW_BELOW takes $SLOW_MS, as on a network disk, and is written
   down in $SLOW_LOG with the thread that waited. Part of the tests; it changes no result. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void slow(const char *what, const char *path) {
    const char *below = getenv("SLOW_BELOW"), *log = getenv("SLOW_LOG"), *ms = getenv("SLOW_MS");
    if (!below || !log || !ms || !path || strncmp(path, below, strlen(below)))
        return;
    struct timespec left = {atol(ms) / 1000, atol(ms) % 1000 * 1000000L};
    nanosleep(&left, NULL);
    char line[4200];
    int size = snprintf(line, sizeof line, "%ld %s %.4000s\n", (long)syscall(SYS_gettid), what, path);
    int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (file >= 0 && write(file, line, (size_t)size) == size)
        close(file);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

int open(const char *p, int f, ...) { MODE(f) slow("open", p); return REAL(open)(p, f, mode); }
int open64(const char *p, int f, ...) { MODE(f) slow("open", p); return REAL(open64)(p, f, mode); }
int openat(int d, const char *p, int f, ...) { MODE(f) slow("open", p); return REAL(openat)(d, p, f, mode); }
int openat64(int d, const char *p, int f, ...) { MODE(f) slow("open", p); return REAL(openat64)(d, p, f, mode); }
int stat(const char *p, struct stat *s) { slow("stat", p); return REAL(stat)(p, s); }
int stat64(const char *p, struct stat64 *s) { slow("stat", p); return REAL(stat64)(p, s); }
int lstat(const char *p, struct stat *s) { slow("stat", p); return REAL(lstat)(p, s); }
int lstat64(const char *p, struct stat64 *s) { slow("stat", p); return REAL(lstat64)(p, s); }
int fstatat(int d, const char *p, struct stat *s, int f) { slow("stat", p); return REAL(fstatat)(d, p, s, f); }
int fstatat64(int d, const char *p, struct stat64 *s, int f) { slow("stat", p); return REAL(fstatat64)(d, p, s, f); }
int access(const char *p, int m) { slow("stat", p); return REAL(access)(p, m); }
DIR *opendir(const char *p) { slow("opendir", p); return REAL(opendir)(p); }
